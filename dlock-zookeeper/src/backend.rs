//! The store as its users and the engine see it.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Kind, LockName, LockState, Result,
    driver::{Backend, Claim, Driver, Info, Inspect, Request, Store, StoreUrl},
};

use crate::{
    claim::ZooKeeperClaim, client::Client, config::ZooKeeperConfig, connection::Connection, error::STORE,
    inspect,
};

/// `zk://`.
pub const DRIVER: Driver = Driver { schemes: &["zk"], connect: |url| Box::pin(connect(url)) };

/// A client of a ZooKeeper store. Its claims share a session, and further ones when it is full. When that session is over or cut off, new claims get another.
/// Clones are the same client. Its sessions end when the last clone and the last claim are dropped.
#[derive(Clone)]
pub struct ZooKeeperBackend {
    client: Arc<Client>,
}

impl ZooKeeperBackend {
    /// Opens a session.
    ///
    /// # Errors
    /// [`InvalidConfig`](dlock_core::Error::InvalidConfig) for a chroot that does not exist, or a session timeout that the server
    /// does not grant; [`Refused`](dlock_core::Error::Refused) for a login that the server does not take;
    /// [`Unavailable`](dlock_core::Error::Unavailable) if no server opens a session within the time of a call.
    ///
    /// # Cancel safety
    /// Safe: dropping the future ends the session, if there is one.
    pub async fn connect(config: ZooKeeperConfig) -> Result<Self> {
        let (connection, session) = Connection::open(&config).await?;
        let info = info(&config, session.timeout);
        Ok(Self { client: Arc::new(Client { config, connection, info }) })
    }

    /// The store with all its abilities.
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

    async fn close(&self) {
        self.client.connection.close().await;
    }
}

#[async_trait]
impl Inspect for ZooKeeperBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        inspect::inspect(&self.client, name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        inspect::list(&self.client, prefix).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        inspect::force_release(&self.client, name).await
    }
}

const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit];

/// The shortest ttl and lease, and the longest lease.
const LEAST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Maximum number of attempts in flight. An attempt sends up to four small requests, so a heartbeat queues behind a thousand of
/// them at most, which a server answers in a tenth of a second.
const ATTEMPTS: usize = 256;

fn info(config: &ZooKeeperConfig, session: Duration) -> Info {
    // A renewal promises two thirds of the session less the age of the last heartbeat, which is a sixth or less.
    Info::new(STORE.store(), config.identity())
        .kinds(KINDS)
        .tokens(true)
        // As in Curator. A mutex of Curator cannot be downgraded, so nobody looks for a read hold in its place.
        .downgrades(&[Kind::Write])
        .attempts_in_flight(ATTEMPTS)
        .ttl(LEAST..=session / 2)
        .session(session, LEAST..=LONGEST)
}

async fn connect(url: StoreUrl) -> Result<Store> {
    ZooKeeperBackend::connect(ZooKeeperConfig::from_url(&url)?).await.map(ZooKeeperBackend::into_store)
}
