//! What the suite needs to put a proxy between a store's clients and their server.

use std::{io, net::SocketAddr, time::Duration};

use async_trait::async_trait;
use dlock_core::{Result, driver::Store};

/// Which data a server has when it starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// All that it had acknowledged: servers append every write to a file.
    Kept,
    /// Nothing. It keeps its configuration, and its place in a cluster.
    Lost,
}

/// How clients reach the one server of a store by TCP: see [`Fixture::network`](crate::Fixture::network).
#[async_trait]
pub trait Network: Send + Sync {
    /// Where the server listens.
    fn server(&self) -> SocketAddr;

    /// Connects a new client as [`Fixture::connect`](crate::Fixture::connect) does, but to this address: that of a
    /// [`Proxy`](crate::Proxy) to the server.
    ///
    /// # Errors
    /// Fails the case, unless the proxy lets nothing through.
    async fn connect_to(&self, address: SocketAddr) -> Result<Store>;

    /// The longest that one call of the driver may take with a ttl, whatever the server does, from the call to its end.
    /// Default: a third of the ttl. A driver whose own bound is longer for short ttls says so here, and in its README.
    fn bound(&self, ttl: Duration) -> Duration {
        ttl / 3
    }

    /// How to restart the server. `None` where the fixture cannot: the cases that need it are then left out. They run alone,
    /// because all cases share the server.
    fn restart(&self) -> Option<&dyn Restart> {
        None
    }
}

/// Restarts the server of a store: see [`Network::restart`].
#[async_trait]
pub trait Restart: Send + Sync {
    /// Ends the server as `kill -9` does, starts it again in the same place, and waits until it answers.
    ///
    /// # Errors
    /// Fails the case.
    async fn restart(&self, data: Data) -> io::Result<()>;
}
