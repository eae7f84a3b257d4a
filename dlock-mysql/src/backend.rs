//! The store as its users and the engine see it, in either mode.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Contender, LockName, LockState, Result,
    driver::{Backend, Claim, Driver, Info, Inspect, Request, Store, StoreUrl},
};

use crate::{
    config::{Mode, MysqlConfig},
    connection::Connection,
    named::NamedBackend,
    queue::QueueBackend,
};

/// `mysql://` and `mariadb://`, which mean the same.
pub const DRIVER: Driver = Driver::new(&["mysql", "mariadb"], |url| Box::pin(connect(url)));

/// A client of a MySQL or MariaDB store. Clones are the same client. Its sessions end when the last
/// clone and the last claim are dropped, and also when any clone is [closed](Backend::close). Another
/// clone then opens new sessions.
#[derive(Clone)]
pub struct MysqlBackend {
    backend: Arc<dyn Backend>,
    inspect: Arc<dyn Inspect>,
}

impl MysqlBackend {
    /// Connects, and creates the tables if they do not exist.
    ///
    /// # Errors
    /// - [`InvalidConfig`](dlock_core::Error::InvalidConfig) for a file that cannot be read.
    /// - [`Refused`](dlock_core::Error::Refused) for a wrong password, a database that does not
    ///   exist, missing rights, or tables of a later version.
    /// - [`Unwritable`](dlock_core::Error::Unwritable) if no host accepts writes.
    /// - [`Unavailable`](dlock_core::Error::Unavailable) if no host can be reached within the time
    ///   limit of a call.
    ///
    /// # Cancel safety
    /// Safe. A dropped future may have created the tables.
    pub async fn connect(config: MysqlConfig) -> Result<Self> {
        let connection = Arc::new(Connection::open(&config).await?);
        Ok(match config.mode {
            Mode::Queue => Self::new(QueueBackend::new(&config, connection)?),
            Mode::Session(names) => Self::new(NamedBackend::new(config, names, connection)?),
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

impl fmt::Debug for MysqlBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MysqlBackend").field(&self.info().identity).finish()
    }
}

#[async_trait]
impl Backend for MysqlBackend {
    fn info(&self) -> &Info {
        self.backend.info()
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        self.backend.claim(request)
    }

    async fn clock(&self) -> Result<Duration> {
        self.backend.clock().await
    }

    async fn close(&self) {
        self.backend.close().await;
    }
}

#[async_trait]
impl Inspect for MysqlBackend {
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
    let config = MysqlConfig::from_url(&url)?;
    MysqlBackend::connect(config).await.map(MysqlBackend::into_store)
}
