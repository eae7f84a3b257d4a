//! Redis and Valkey servers, with a recipe for each of the four [flavours](Flavour).

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
    /// Redis 5, which has no TLS.
    Redis5,
    /// Redis 6.0, which cannot create the user of [`Flavour::Tls`].
    Redis6,
    /// Valkey, the fork of Redis.
    Valkey,
}

impl Brand {
    /// All brands.
    pub const ALL: [Self; 4] = [Self::Redis, Self::Redis5, Self::Redis6, Self::Valkey];

    /// Name in lower case, as in `DLOCK_REQUIRE`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Redis5 => "redis5",
            Self::Redis6 => "redis6",
            Self::Valkey => "valkey",
        }
    }
}

/// Set of servers, with the form of its URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// One server: `redis://host:port`.
    Standalone,
    /// One server with TLS and one user: `rediss://user:password@host:port`. It has its own
    /// [certificate authority](Running::ca).
    Tls,
    /// A primary, its replica and one Sentinel, in this order: `redis+sentinel://host:port/dlock`.
    Sentinel,
    /// Three primaries: `redis-cluster://host:port,host:port,host:port`.
    Cluster,
}

impl Flavour {
    /// All flavours.
    pub const ALL: [Self; 4] = [Self::Standalone, Self::Tls, Self::Sentinel, Self::Cluster];

    /// Name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Standalone => STANDALONE,
            Self::Tls => tls::FLAVOUR,
            Self::Sentinel => sentinel::FLAVOUR,
            Self::Cluster => cluster::FLAVOUR,
        }
    }

    /// Returns the name of the environment variable with the URL of an external store of this kind.
    pub fn variable(self, brand: Brand) -> String {
        recipe::variable(brand.name(), self.name())
    }
}

/// Finds or starts a store. All cases of a suite can share it.
///
/// # Errors
/// [`Unreachable`] with the brand's name, and a reason that lists every attempt.
///
/// # Cancel safety
/// Dropping the future stops the servers that it has started, in the background.
pub async fn start(brand: Brand, flavour: Flavour) -> Result<Running, Unreachable> {
    match flavour {
        Flavour::Standalone => super::start(standalone::Standalone(brand)).await,
        Flavour::Tls => super::start(tls::Tls(brand)).await,
        Flavour::Sentinel => super::start(sentinel::Sentinel(brand)).await,
        Flavour::Cluster => super::start(cluster::Cluster(brand)).await,
    }
}

/// Returns a server with the configuration that all servers with data share, and the lines `more`.
fn member(program: &str, name: &str, ports: Vec<Port>, more: &str) -> Member {
    // The file is not synced, because data in the kernel's cache survives `kill -9`.
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

/// Returns an error with the server's reply, unless the reply is the expected one.
fn expect_reply(is_expected: bool, reply: &str) -> io::Result<()> {
    if is_expected {
        Ok(())
    } else {
        Err(io::Error::other(reply.split_whitespace().collect::<Vec<_>>().join(" ")))
    }
}
