//! The store as its users and the engine see it, in either mode.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Contender, LockName, LockState, Result,
    driver::{AttemptAll, Backend, Claim, Driver, Info, Inspect, Request, Store, StoreUrl},
};

use crate::{
    advisory::AdvisoryBackend,
    config::{Mode, PostgresConfig},
    connection::Connection,
    queue::QueueBackend,
};

/// `postgres://` and `postgresql://`, which mean the same.
pub const DRIVER: Driver = Driver::new(&["postgres", "postgresql"], |url| Box::pin(connect(url)));

/// A client of a PostgreSQL store. Clones are the same client. Its sessions end when the last clone
/// and the last claim are dropped.
#[derive(Clone)]
pub struct PostgresBackend {
    backend: Arc<dyn Backend>,
    inspect: Arc<dyn Inspect>,
}

impl PostgresBackend {
    /// Connects, and creates the schema if it does not exist.
    ///
    /// # Errors
    /// - [`InvalidConfig`](dlock_core::Error::InvalidConfig) for a file that cannot be read.
    /// - [`Refused`](dlock_core::Error::Refused) for a wrong password, a database that does not
    ///   exist, missing rights, or a server that is not PostgreSQL 14 or newer. In session mode also for a
    ///   connection pooler that shares sessions between transactions.
    /// - [`Unwritable`](dlock_core::Error::Unwritable) if no host accepts writes.
    /// - [`Unavailable`](dlock_core::Error::Unavailable) if no host can be reached within the time
    ///   limit of a call.
    ///
    /// # Cancel safety
    /// Safe. A dropped future may have created the schema.
    pub async fn connect(config: PostgresConfig) -> Result<Self> {
        let connection = Arc::new(Connection::open(&config).await?);
        Ok(match config.mode {
            Mode::Queue => Self::new(QueueBackend::new(&config, connection)?),
            Mode::Session(key_rule) => Self::new(AdvisoryBackend::open(&config, key_rule, connection).await?),
        })
    }

    fn new(backend: impl Backend + Inspect) -> Self {
        let backend = Arc::new(backend);
        Self { inspect: Arc::<_>::clone(&backend) as _, backend }
    }

    /// Returns the store with all its abilities.
    pub fn into_store(self) -> Store {
        Store::new(self.backend).with_inspect(self.inspect)
    }
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresBackend").field(&self.info().identity).finish()
    }
}

#[async_trait]
impl Backend for PostgresBackend {
    fn info(&self) -> &Info {
        self.backend.info()
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        self.backend.claim(request)
    }

    async fn attempt_all(&self, requests: Vec<Request>) -> Result<AttemptAll> {
        self.backend.attempt_all(requests).await
    }

    async fn clock(&self) -> Result<Duration> {
        self.backend.clock().await
    }
}

#[async_trait]
impl Inspect for PostgresBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        self.inspect.inspect(name).await
    }

    async fn holder(&self, name: &LockName) -> Result<Option<Contender>> {
        self.inspect.holder(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        self.inspect.list(prefix).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        self.inspect.force_release(name).await
    }
}

async fn connect(url: StoreUrl) -> Result<Store> {
    let config = PostgresConfig::from_url(&url)?;
    PostgresBackend::connect(config).await.map(PostgresBackend::into_store)
}
