//! The backend of a Redis or Valkey store, and its driver.

pub(crate) mod redlock;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Kind, Result,
    driver::{AttemptAll, Backend, Claim, Driver, Info, Request, Store, StoreUrl},
};

use crate::{
    claim::{RedisClaim, attempt_all},
    client::Client,
    config::{Dialect, RedisConfig},
    connection::{Connection, server},
    error::STORE,
};

/// `redis://`, `rediss://`, `redis+unix://`, `redis+sentinel://`, `redis-cluster://` and
/// `redis+redlock://`.
pub const DRIVER: Driver = Driver::new(
    &["redis", "rediss", "redis+unix", "redis+sentinel", "redis-cluster", "redis+redlock"],
    |url| Box::pin(connect(url)),
)
.connecting_later(connect_later);

/// Key whose node shows a cluster's time, so that all clients read one clock.
const CLOCK_KEY: &str = "dlock_clock";

/// A client of a Redis or Valkey store. Clones share one client, whose connections close when the
/// last clone and the last claim are dropped.
#[derive(Clone)]
pub struct RedisBackend {
    pub(crate) client: Arc<Client>,
}

impl RedisBackend {
    /// Connects, and checks whether the server is suitable for locks.
    ///
    /// # Errors
    /// - [`InvalidConfig`](dlock_core::Error::InvalidConfig) for a certificate that cannot be read.
    /// - [`Refused`](dlock_core::Error::Refused) for a wrong password, for a server that is too
    ///   old, and for a single node of a cluster.
    /// - [`Unavailable`](dlock_core::Error::Unavailable) if the server cannot be reached within the
    ///   time limit of a command.
    ///
    /// # Cancel safety
    /// Safe. Dropping the future ends the attempt.
    pub async fn connect(config: RedisConfig) -> Result<Self> {
        let connection = Connection::open(&config).await?;
        server::check(&connection).await?;
        Ok(Self::with_connection(connection, config))
    }

    /// Creates a client that connects when it is first used. Not for a cluster.
    pub(crate) fn lazy(config: RedisConfig) -> Result<Self> {
        Ok(Self::with_connection(Connection::lazy(&config)?, config))
    }

    fn with_connection(connection: Connection, config: RedisConfig) -> Self {
        let info = info(&config);
        Self { client: Arc::new(Client::new(connection, config, info)) }
    }

    /// Returns the store with all its capabilities.
    pub fn into_store(self) -> Store {
        Store::new(Arc::new(self.clone())).with_inspect(Arc::new(self))
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisBackend").field(&self.client.info.identity).finish()
    }
}

#[async_trait]
impl Backend for RedisBackend {
    fn info(&self) -> &Info {
        &self.client.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(RedisClaim::new(Arc::clone(&self.client), request))
    }

    async fn attempt_all(&self, requests: Vec<Request>) -> Result<AttemptAll> {
        attempt_all::attempt_all(&self.client, requests).await
    }

    async fn clock(&self) -> Result<Duration> {
        self.client.server_time(CLOCK_KEY).await
    }

    /// Deletes the labels that nothing needs any more. The connections close when the client is
    /// dropped.
    async fn close(&self) {
        self.client.delete_labels().await;
    }
}

/// The kinds of Redisson's dialect, and permits, which only dlock has.
const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit];

fn info(config: &RedisConfig) -> Info {
    let info = Info::new(STORE.store(), config.identity()).detaches(true).clock(true);
    let info = info.locks_per_step(attempt_all::locks_per_step(config)).late_for(config.timeout);
    if config.dialect == Dialect::Plain {
        return info;
    }
    // A mutex cannot be downgraded. Its hash has the format of Redisson's mutex, and cannot become
    // the hash of a read lock.
    info.kinds(KINDS).tokens(true).downgrades(&[Kind::Write])
}

/// Returns a store that connects when it is first used. A cluster cannot, because its nodes are
/// unknown until it replies.
fn connect_later(url: StoreUrl) -> Result<Option<Store>> {
    if matches!(url.scheme(), "redis-cluster" | "redis+redlock") {
        return Ok(None);
    }
    RedisBackend::lazy(RedisConfig::from_url(&url)?).map(|backend| Some(backend.into_store()))
}

async fn connect(url: StoreUrl) -> Result<Store> {
    if url.scheme() == "redis+redlock" {
        return redlock::connect(url).await;
    }
    let config = RedisConfig::from_url(&url)?;
    RedisBackend::connect(config).await.map(RedisBackend::into_store)
}
