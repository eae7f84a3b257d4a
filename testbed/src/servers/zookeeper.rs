//! ZooKeeper, in three [flavours](Flavour): one recipe each.

mod ensemble;
mod standalone;
mod tls;
mod words;

use std::sync::Arc;

use dlock_conformance::{Proxy, Unreachable};

use super::{
    Running,
    port::Port,
    recipe::{self, Member, STANDALONE},
    server::Server,
};

pub use words::word;

/// The name of the store in `DLOCK_REQUIRE`, and of its package.
pub const NAME: &str = "zookeeper";

/// How servers are set up, and the URL that names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// One server: `zk://host:port`.
    Standalone,
    /// Three servers that elect a leader: `zk://host:port,host:port,host:port`.
    Ensemble,
    /// One server that speaks TLS there: `zk://host:port`. Its clients need [`tls_params`] and, in the feature set of
    /// `dlock-zk`, `tls`.
    Tls,
}

impl Flavour {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Standalone, Self::Ensemble, Self::Tls];

    /// In lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Standalone => STANDALONE,
            Self::Ensemble => ensemble::FLAVOUR,
            Self::Tls => tls::FLAVOUR,
        }
    }

    /// The environment variable with the address of such a store.
    pub fn variable(self) -> String {
        recipe::variable(NAME, self.name())
    }
}

/// Finds or starts a store. One is meant to serve all cases of a suite.
///
/// # Errors
/// [`Unreachable`], with everything that was tried.
///
/// # Cancel safety
/// Dropping the future ends in the background the servers that it started.
pub async fn start(flavour: Flavour) -> Result<Running, Unreachable> {
    match flavour {
        Flavour::Standalone => super::start(standalone::Standalone).await,
        Flavour::Ensemble => super::start(ensemble::Ensemble::default()).await,
        Flavour::Tls => super::start(tls::Tls).await,
    }
}

/// The parameters for the URL of a client of [`Flavour::Tls`]: the authority, and a certificate that the server takes.
pub fn tls_params(server: &Server) -> String {
    tls::params(server)
}

/// Finds or starts an ensemble. If this starts one, the first server reaches the second and the third through these proxies when it
/// follows one of them. Where the proxies led before is of no importance.
///
/// # Errors
/// As [`start`].
///
/// # Cancel safety
/// As [`start`].
pub async fn start_behind(links: [Arc<Proxy>; 2]) -> Result<Running, Unreachable> {
    super::start(ensemble::Ensemble { links: Some(links) }).await
}

/// A server that keeps data, with these lines in its configuration beside those that all have.
fn member(name: &str, ports: Vec<Port>, more: &str) -> Member {
    // A session may be short, so that a test need not wait long for its end, or a minute long. One machine has all clients.
    const COMMON: &str = "dataDir=./data\ntickTime=200\ninitLimit=100\nsyncLimit=50\nminSessionTimeout=1000\nmaxSessionTimeout=60000\n\
        maxClientCnxns=0\n4lw.commands.whitelist=*\nautopurge.purgeInterval=0\nclientPortAddress=127.0.0.1\n";
    let config = format!("{COMMON}clientPort={}\n{more}", ports[0].number());
    Member {
        name: name.to_owned(),
        command: ["sh", "-c", include_str!("zookeeper/run.sh"), "run.sh"].map(str::to_owned).to_vec(),
        files: vec![("server.conf", config)],
        data: "data",
        ports,
    }
}
