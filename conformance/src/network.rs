//! The connection between a store's clients and their server, as the fixture describes it.

use std::{io, net::SocketAddr, time::Duration};

use async_trait::async_trait;
use dlock_core::{Result, driver::Store};

/// Data of a server after its restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// All data that the server had acknowledged. Servers append every write to a file.
    Kept,
    /// No data. The server keeps its configuration, and its place in a cluster.
    Lost,
}

/// Describes how clients reach the only server of a store by TCP, see
/// [`Fixture::network`](crate::Fixture::network).
#[async_trait]
pub trait Network: Send + Sync {
    /// Returns the address of the server.
    fn server(&self) -> SocketAddr;

    /// Connects a new client as [`Fixture::connect`](crate::Fixture::connect) does, but to
    /// `address`, which is that of a [`Proxy`](crate::Proxy) to the server.
    ///
    /// # Errors
    /// An error fails the case, unless the proxy lets nothing through.
    async fn connect_to(&self, address: SocketAddr) -> Result<Store>;

    /// Connects a new client as [`connect_to`](Self::connect_to) does, for a case whose faults must
    /// end before the client's claims do. A store whose claims end with their client's session
    /// returns a client with a session of 30 s or more. Default: the same client.
    ///
    /// # Errors
    /// As [`connect_to`](Self::connect_to).
    async fn connect_lasting_to(&self, address: SocketAddr) -> Result<Store> {
        self.connect_to(address).await
    }

    /// Returns the maximum duration of one call of the driver for a claim with this ttl, whatever
    /// the server does. Default: a third of the ttl. A driver with a longer bound for short ttls
    /// returns it here and states it in its README.
    fn bound(&self, ttl: Duration) -> Duration {
        ttl / 3
    }

    /// Returns a way to restart the server. `None` if the fixture cannot restart it, and the cases
    /// that need it are then ignored. These cases run alone, because all cases share the server.
    fn restart(&self) -> Option<&dyn Restart> {
        None
    }
}

/// Restarts the server of a store, see [`Network::restart`].
#[async_trait]
pub trait Restart: Send + Sync {
    /// Ends the server as `kill -9` does, starts it again at the same address, and waits until it
    /// replies.
    ///
    /// # Errors
    /// An error fails the case.
    async fn restart(&self, data: Data) -> io::Result<()>;
}
