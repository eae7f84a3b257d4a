//! The driver, and the client of a ZooKeeper store as users and the engine see it.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Contender, Kind, LockName, LockState, Result,
    driver::{Backend, Claim, Driver, Info, Inspect, Request, Store, StoreUrl, Watch},
};

use crate::{
    claim::ZooKeeperClaim, client::Client, config::ZooKeeperConfig, connection::Connection, error::STORE,
    inspect, wake::ObservedDirectory,
};

/// Driver for URLs with the scheme `zk`.
pub const DRIVER: Driver = Driver::new(&["zk"], |url| Box::pin(connect(url)));

/// A client of a ZooKeeper store.
///
/// Its claims share a session. When that session is full, over or without a connection, new claims
/// get another session. Clones are the same client. Its sessions end when the last clone and the
/// last claim are dropped.
#[derive(Clone)]
pub struct ZooKeeperBackend {
    client: Arc<Client>,
}

impl ZooKeeperBackend {
    /// Opens a client with its first session.
    ///
    /// # Errors
    /// - [`InvalidConfig`](dlock_core::Error::InvalidConfig): the chroot does not exist, or the server
    ///   does not grant the session timeout of the URL.
    /// - [`Refused`](dlock_core::Error::Refused): the server does not accept the login.
    /// - [`Unavailable`](dlock_core::Error::Unavailable): no server opens a session within `timeout`.
    ///
    /// # Cancel safety
    /// Dropping the future ends the session if it was opened.
    pub async fn connect(config: ZooKeeperConfig) -> Result<Self> {
        let (connection, session) = Connection::open(&config).await?;
        let info = info(&config, session.timeout);
        Ok(Self { client: Arc::new(Client { config, connection, info }) })
    }

    /// Returns the store, with [`Inspect`].
    pub fn into_store(self) -> Store {
        Store::new(Arc::new(self.clone())).with_inspect(Arc::new(self))
    }
}

impl fmt::Debug for ZooKeeperBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ZooKeeperBackend").field(&self.client.info.identity).finish()
    }
}

#[async_trait]
impl Backend for ZooKeeperBackend {
    fn info(&self) -> &Info {
        &self.client.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(ZooKeeperClaim::new(Arc::clone(&self.client), request))
    }

    fn watch(&self, name: &LockName) -> Option<Box<dyn Watch>> {
        Some(Box::new(ObservedDirectory::new(&self.client, name)?))
    }

    async fn close(&self) {
        self.client.connection.close().await;
    }
}

#[async_trait]
impl Inspect for ZooKeeperBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        inspect::inspect(&self.client, name).await
    }

    async fn holder(&self, name: &LockName) -> Result<Option<Contender>> {
        inspect::holder(&self.client, name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        inspect::list(&self.client, prefix).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        inspect::force_release(&self.client, name).await
    }
}

const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit];

/// Minimum ttl and minimum lease.
const SHORTEST: Duration = Duration::from_millis(1);

/// Maximum number of first attempts in flight, and of repeated ones. An attempt sends up to four
/// small requests. With 256 releases of holds and 256 of waiters that leave, a heartbeat queues behind
/// about 1500 requests, to which a server replies in a fraction of a second.
const MAX_ATTEMPTS_IN_FLIGHT: usize = 128;

/// Returns the capabilities of a client with this session timeout.
fn info(config: &ZooKeeperConfig, session: Duration) -> Info {
    // A renewal promises two thirds of the session timeout less the age of the last heartbeat,
    // which is at most a sixth.
    Info::new(STORE.store(), config.identity())
        .kinds(KINDS)
        .tokens(true)
        // As in Curator. Its mutex cannot be downgraded, so the waiters of a mutex do not look for
        // a read hold.
        .downgrades(&[Kind::Write])
        .attempts_in_flight(MAX_ATTEMPTS_IN_FLIGHT)
        .ttl(SHORTEST..=session / 2)
        .session(session, SHORTEST..=Info::MAX_TTL)
}

async fn connect(url: StoreUrl) -> Result<Store> {
    ZooKeeperBackend::connect(ZooKeeperConfig::from_url(&url)?).await.map(ZooKeeperBackend::into_store)
}
