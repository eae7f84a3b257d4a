//! What a store has to say of itself so that its servers can be run: see `redis/standalone.rs` for the shortest.

use std::{fmt::Debug, io};

use async_trait::async_trait;

use super::{port::Port, server::Server};

/// A store in one of its flavours: one server, several that belong together, or one that speaks TLS.
///
/// The members are all started at once. When each answers the [`probe`](Self::probe), they are [joined](Self::join), and the
/// store is there when its [`health`](Self::health) is good.
#[async_trait]
pub(super) trait Recipe: Debug + Send + Sync + 'static {
    /// What its servers are run from: a name of `conformance/images/official`. `DLOCK_REQUIRE` and the environment variables
    /// call the store so.
    fn package(&self) -> &'static str;

    /// In lower case, as messages and environment variables say it. The simplest is [`STANDALONE`].
    fn flavour(&self) -> &'static str;

    /// The servers, with a port or more for each. All ports are claimed before the first server starts, so a member's files can
    /// name the others'.
    ///
    /// # Errors
    /// When no port is free.
    fn members(&self, program: &str) -> io::Result<Vec<Member>>;

    /// Asks one server whether it is up. Called again until it says so.
    ///
    /// # Errors
    /// What it said instead.
    async fn probe(&self, server: &Server) -> io::Result<()>;

    /// Makes one store of servers that answer. Called once.
    ///
    /// # Errors
    /// When they do not let it.
    async fn join(&self, _servers: &[Server]) -> io::Result<()> {
        Ok(())
    }

    /// Asks the servers whether all is well between them. Called again until they agree: also after a fault.
    ///
    /// # Errors
    /// What they said instead.
    async fn health(&self, _servers: &[Server]) -> io::Result<()> {
        Ok(())
    }

    /// What names the store to a dlock client.
    fn url(&self, servers: &[Server]) -> String;
}

/// The flavour that environment variables need not name.
pub(super) const STANDALONE: &str = "standalone";

/// The environment variable that says where a store is, for one that somebody else runs.
pub(super) fn variable(package: &str, flavour: &str) -> String {
    let infix = if flavour == STANDALONE { String::new() } else { format!("_{flavour}") };
    format!("DLOCK_TEST_{package}{infix}_URL").to_uppercase()
}

/// One server of a store. It runs in a folder of its own, on 127.0.0.1.
#[derive(Debug)]
pub(super) struct Member {
    /// Unique among the members: the name of its folder.
    pub(super) name: String,
    /// The program and its arguments. A server that must be prepared first is a `sh -c` that ends with `exec`.
    pub(super) command: Vec<String>,
    /// Written into the folder before the first start.
    pub(super) files: Vec<(&'static str, String)>,
    /// What it writes into its folder, as patterns of the shell: removed where it is to lose its data.
    pub(super) data: &'static str,
    /// The first is where it answers the probe.
    pub(super) ports: Vec<Port>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_names_the_package_and_any_flavour_but_the_simplest() {
        assert_eq!(variable("redis5", STANDALONE), "DLOCK_TEST_REDIS5_URL");
        assert_eq!(variable("redis", "tls"), "DLOCK_TEST_REDIS_TLS_URL");
    }
}
