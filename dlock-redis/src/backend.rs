//! The store as its users and the engine see it.

pub(crate) mod redlock;

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use dlock_core::{
    Kind, LockName, LockState, Result,
    driver::{Backend, Claim, Driver, Info, Inspect, Request, Store, StoreUrl},
};

use crate::{
    claim::RedisClaim,
    client::Client,
    config::{Dialect, RedisConfig},
    connection::{Connection, server},
    error::STORE,
    inspect,
};

/// `redis://`, `rediss://`, `redis+unix://`, `redis+sentinel://`, `redis-cluster://` and `redis+redlock://`.
pub const DRIVER: Driver = Driver {
    schemes: &["redis", "rediss", "redis+unix", "redis+sentinel", "redis-cluster", "redis+redlock"],
    connect: |url| Box::pin(connect(url)),
};

/// A client of a Redis or Valkey store. Clones are the same client. Its connections close when the last clone and the last
/// claim are dropped.
#[derive(Clone)]
pub struct RedisBackend {
    client: Arc<Client>,
}

impl RedisBackend {
    /// Connects, and checks whether the server is fit for locks.
    ///
    /// # Errors
    /// [`InvalidConfig`](dlock_core::Error::InvalidConfig) for a certificate that cannot be read;
    /// [`Refused`](dlock_core::Error::Refused) for a password that is wrong, or a server that is too old or one node of a cluster;
    /// [`Unavailable`](dlock_core::Error::Unavailable) if it cannot be reached within the time of a command.
    ///
    /// # Cancel safety
    /// Safe: dropping the future ends the attempt.
    pub async fn connect(config: RedisConfig) -> Result<Self> {
        let connection = Connection::open(&config).await?;
        server::check(&connection).await?;
        Ok(Self::on(connection, config))
    }

    /// A client that connects when it is first used. Not for a cluster.
    pub(crate) fn later(config: RedisConfig) -> Result<Self> {
        Ok(Self::on(Connection::later(&config)?, config))
    }

    fn on(connection: Connection, config: RedisConfig) -> Self {
        let info = info(&config);
        Self { client: Arc::new(Client::new(connection, config, info)) }
    }

    /// The store with all its abilities.
    pub fn into_store(self) -> Store {
        Store::new(Arc::new(self.clone())).with_inspect(Arc::new(self))
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisBackend").field(&self.client.info.identity).finish()
    }
}

impl Backend for RedisBackend {
    fn info(&self) -> &Info {
        &self.client.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(RedisClaim::new(Arc::clone(&self.client), request))
    }
}

#[async_trait]
impl Inspect for RedisBackend {
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

/// The kinds of Redisson's dialect, and permits, which only dlock knows.
const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit];

fn info(config: &RedisConfig) -> Info {
    let plain = config.dialect == Dialect::Plain;
    let info = Info::new(STORE.store(), config.identity()).detaches(true);
    if plain {
        return info;
    }
    // A mutex cannot be downgraded: its hash is that of Redisson's mutex, and cannot become that of a read lock.
    info.kinds(KINDS).tokens(true).downgrades(&[Kind::Write])
}

async fn connect(url: StoreUrl) -> Result<Store> {
    if url.scheme() == "redis+redlock" {
        return redlock::connect(url).await;
    }
    let config = RedisConfig::from_url(&url)?;
    RedisBackend::connect(config).await.map(RedisBackend::into_store)
}
