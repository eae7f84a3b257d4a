//! The description of a store's servers. `redis/standalone.rs` is the shortest one.

use std::{fmt::Debug, io};

use async_trait::async_trait;

use super::{port::Port, server::Server};

/// A store in one of its flavours, such as a single server, a cluster, or a server with TLS.
///
/// All servers are started concurrently. After every server has answered the
/// [`probe`](Self::probe), the servers are [joined](Self::join). The store is ready when
/// [`health`](Self::health) succeeds.
#[async_trait]
pub(super) trait Recipe: Debug + Send + Sync + 'static {
    /// Name of the store in `testbed/images/official`, in `DLOCK_REQUIRE` and in the environment
    /// variables.
    fn package(&self) -> &'static str;

    /// Name of the flavour in lower case, for messages and environment variables. The simplest
    /// flavour is [`STANDALONE`].
    fn flavour(&self) -> &'static str;

    /// Returns the servers, each with at least one port. All ports are claimed before the first
    /// server starts, so the files of one server can contain the ports of the others.
    ///
    /// # Errors
    /// If no port is free.
    fn members(&self, program: &str) -> io::Result<Vec<Member>>;

    /// Checks whether one server accepts requests. Repeated until it succeeds.
    ///
    /// # Errors
    /// The failure or the server's reply, if the server does not accept requests yet.
    async fn probe(&self, server: &Server) -> io::Result<()>;

    /// Makes one store of the servers, all of which accept requests. Called once.
    ///
    /// # Errors
    /// If a server refuses.
    async fn join(&self, _servers: &[Server]) -> io::Result<()> {
        Ok(())
    }

    /// Checks whether the store as a whole works, at first and after a fault. Repeated until it
    /// succeeds.
    ///
    /// # Errors
    /// The reason why the store does not work yet.
    async fn health(&self, _servers: &[Server]) -> io::Result<()> {
        Ok(())
    }

    /// Returns whether each server has a [file system](super::disk) of its own.
    fn has_own_disks(&self) -> bool {
        false
    }

    /// Returns the URL of the store for dlock clients.
    fn url(&self, servers: &[Server]) -> String;
}

/// The flavour that is omitted in the names of environment variables.
pub(super) const STANDALONE: &str = "standalone";

/// Returns the name of the environment variable with the URL of an external store.
pub(super) fn variable(package: &str, flavour: &str) -> String {
    let infix = if flavour == STANDALONE { String::new() } else { format!("_{flavour}") };
    format!("DLOCK_TEST_{package}{infix}_URL").to_uppercase()
}

/// One server of a store. It listens on 127.0.0.1 and runs in a folder of its own.
#[derive(Debug)]
pub(super) struct Member {
    /// Name of the server's folder, unique among the members.
    pub(super) name: String,
    /// Program and arguments. If preparations are necessary, this is a `sh -c` that ends with
    /// `exec`.
    pub(super) command: Vec<String>,
    /// Names and contents of the files that are written into the folder before the first start.
    pub(super) files: Vec<(&'static str, String)>,
    /// Shell patterns of the files that the server writes into its folder. They are deleted when a
    /// test makes the server lose its data.
    pub(super) data: &'static str,
    /// Ports of the server. The first one is probed.
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
