//! Redis and Valkey, each in four [flavours](Flavour): one recipe each.

mod cluster;
mod resp;
mod sentinel;
mod standalone;
mod tls;

use std::io;

use dlock_conformance::Unreachable;

use super::{
    Running,
    port::Port,
    recipe::{self, Member, STANDALONE},
};

/// The program that the servers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Brand {
    /// Redis.
    Redis,
    /// Redis 5, which knows no TLS.
    Redis5,
    /// Redis 6.0, which cannot have the user of [`Flavour::Tls`].
    Redis6,
    /// Valkey, its fork.
    Valkey,
}

impl Brand {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Redis, Self::Redis5, Self::Redis6, Self::Valkey];

    /// In lower case, as `DLOCK_REQUIRE` says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Redis5 => "redis5",
            Self::Redis6 => "redis6",
            Self::Valkey => "valkey",
        }
    }
}

/// How servers are set up, and the URL that names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// One server: `redis://host:port`.
    Standalone,
    /// One server that speaks TLS and knows one user: `rediss://user:password@host:port`, with a
    /// [certificate authority](Running::ca) of its own.
    Tls,
    /// A primary, its replica and one Sentinel, in this order: `redis+sentinel://host:port/dlock`.
    Sentinel,
    /// Three primaries: `redis-cluster://host:port,host:port,host:port`.
    Cluster,
}

impl Flavour {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Standalone, Self::Tls, Self::Sentinel, Self::Cluster];

    /// In lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Standalone => STANDALONE,
            Self::Tls => tls::FLAVOUR,
            Self::Sentinel => sentinel::FLAVOUR,
            Self::Cluster => cluster::FLAVOUR,
        }
    }

    /// The environment variable with the address of such a store.
    pub fn variable(self, brand: Brand) -> String {
        recipe::variable(brand.name(), self.name())
    }
}

/// Finds or starts a store. One is meant to serve all cases of a suite.
///
/// # Errors
/// [`Unreachable`] by the brand's name, with everything that was tried.
///
/// # Cancel safety
/// Dropping the future ends in the background the servers that it started.
pub async fn start(brand: Brand, flavour: Flavour) -> Result<Running, Unreachable> {
    match flavour {
        Flavour::Standalone => super::start(standalone::Standalone(brand)).await,
        Flavour::Tls => super::start(tls::Tls(brand)).await,
        Flavour::Sentinel => super::start(sentinel::Sentinel(brand)).await,
        Flavour::Cluster => super::start(cluster::Cluster(brand)).await,
    }
}

/// A server that keeps data, with these lines in its configuration beside those that all have.
fn member(program: &str, name: &str, ports: Vec<Port>, more: &str) -> Member {
    // Appending to a file without syncing is enough: what the kernel has received survives `kill -9`.
    const COMMON: &str = "bind 127.0.0.1\ndir .\nsave \"\"\nappendonly yes\nrepl-diskless-sync-delay 0\n";
    let config = format!("port {}\n{COMMON}{more}", ports[0].number());
    Member {
        name: name.to_owned(),
        command: [program, "server.conf"].map(str::to_owned).to_vec(),
        files: vec![("server.conf", config)],
        data: "appendonly* dump.rdb",
        ports,
    }
}

/// An error with the server's answer, unless the server agrees.
fn agreed(agreed: bool, told: &str) -> io::Result<()> {
    if agreed { Ok(()) } else { Err(io::Error::other(told.split_whitespace().collect::<Vec<_>>().join(" "))) }
}
