//! ZooKeeper servers, with a recipe for each of the three [flavours](Flavour).

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

/// Name of the store in `DLOCK_REQUIRE` and in `images/official`.
pub const NAME: &str = "zookeeper";

/// Set of servers, with the form of its URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// One server: `zk://host:port`.
    Standalone,
    /// Three servers that elect a leader: `zk://host:port,host:port,host:port`.
    Ensemble,
    /// One server with TLS: `zk://host:port`. Its clients need [`tls_params`], and the feature
    /// `tls` of `dlock-zk`.
    Tls,
}

impl Flavour {
    /// All flavours.
    pub const ALL: [Self; 3] = [Self::Standalone, Self::Ensemble, Self::Tls];

    /// Name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Standalone => STANDALONE,
            Self::Ensemble => ensemble::FLAVOUR,
            Self::Tls => tls::FLAVOUR,
        }
    }

    /// Returns the name of the environment variable with the URL of an external store of this
    /// flavour.
    pub fn variable(self) -> String {
        recipe::variable(NAME, self.name())
    }
}

/// Finds or starts a store. All cases of a suite can share it.
///
/// # Errors
/// [`Unreachable`], with a reason that lists every attempt.
///
/// # Cancel safety
/// Dropping the future stops the servers that it has started, in the background.
pub async fn start(flavour: Flavour) -> Result<Running, Unreachable> {
    match flavour {
        Flavour::Standalone => super::start(standalone::Standalone::default()).await,
        Flavour::Ensemble => super::start(ensemble::Ensemble::default()).await,
        Flavour::Tls => super::start(tls::Tls).await,
    }
}

/// Finds or starts one server, with these lines of configuration in addition. A line overrides that
/// of all servers, for example `maxClientCnxns=2`. The line `jute.maxbuffer=BYTES` sets the property.
///
/// # Errors
/// As [`start`].
///
/// # Cancel safety
/// As [`start`].
pub async fn start_with(lines: &'static str) -> Result<Running, Unreachable> {
    super::start(standalone::Standalone { lines }).await
}

/// Returns the URL parameters for a client of [`Flavour::Tls`]: the certificate authority, and a
/// certificate that the server accepts.
pub fn tls_params(server: &Server) -> String {
    tls::params(server)
}

/// Finds or starts an ensemble whose first server is behind proxies.
///
/// In an ensemble that this starts, the first server connects through `links` when it follows the
/// second or the third server. The previous targets of the proxies are replaced.
///
/// # Errors
/// As [`start`].
///
/// # Cancel safety
/// As [`start`].
pub async fn start_behind(links: [Arc<Proxy>; 2]) -> Result<Running, Unreachable> {
    super::start(ensemble::Ensemble { links: Some(links), ..ensemble::Ensemble::default() }).await
}

/// Finds or starts an ensemble, each server with a [disk](Server::hang_disk) of its own.
///
/// # Errors
/// As [`start`].
///
/// # Cancel safety
/// As [`start`].
pub async fn start_with_disks() -> Result<Running, Unreachable> {
    super::start(ensemble::Ensemble { own_disks: true, ..ensemble::Ensemble::default() }).await
}

/// Returns a server with the configuration that all servers share, and the lines `more`.
fn member(name: &str, ports: Vec<Port>, more: &str) -> Member {
    // Short sessions keep the tests short, and one test needs a session of a minute. The number of
    // connections per address is unlimited, because all clients run on one machine.
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
