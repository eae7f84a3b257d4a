//! What must be known about a store so that its servers can be run. The shortest example is `redis/standalone.rs`.

use std::{fmt::Debug, io};

use async_trait::async_trait;

use super::{port::Port, server::Server};

/// A store in one of its flavours: one server, several that belong together, or one that speaks TLS.
///
/// All members are started at once. When each answers the [`probe`](Self::probe), they are [joined](Self::join). The store
/// is ready when its [`health`](Self::health) is good.
#[async_trait]
pub(super) trait Recipe: Debug + Send + Sync + 'static {
    /// What its servers are run from: a name in `testbed/images/official`. `DLOCK_REQUIRE` and the environment
    /// variables use this name for the store.
    fn package(&self) -> &'static str;

    /// The flavour's name in lower case, for messages and environment variables. The simplest flavour is [`STANDALONE`].
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
    /// The server's answer, if it is not up.
    async fn probe(&self, server: &Server) -> io::Result<()>;

    /// Joins the servers, which all answer, to one store. Called once.
    ///
    /// # Errors
    /// If the servers refuse.
    async fn join(&self, _servers: &[Server]) -> io::Result<()> {
        Ok(())
    }

    /// Asks the servers whether the store as a whole is well. Called again until it is; also after a fault.
    ///
    /// # Errors
    /// What is not well.
    async fn health(&self, _servers: &[Server]) -> io::Result<()> {
        Ok(())
    }

    /// The URL of the store for a dlock client.
    fn url(&self, servers: &[Server]) -> String;
}

/// The flavour that the names of environment variables leave out.
pub(super) const STANDALONE: &str = "standalone";

/// The environment variable with the address of a store that somebody else runs.
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
    /// Shell patterns for the files that it writes into its folder. They are removed when it is to lose its data.
    pub(super) data: &'static str,
    /// Its ports. It answers the probe at the first.
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
