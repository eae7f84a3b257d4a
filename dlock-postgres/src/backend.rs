//! The store as its users and the engine see it.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Kind, Result,
    driver::{AttemptAll, Backend, Claim, Driver, Info, Request, Store, StoreUrl},
};

use crate::{
    claim::{PostgresClaim, attempt_all},
    client::Client,
    config::PostgresConfig,
    connection::Connection,
    error::STORE,
    keys::KINDS,
};

/// `postgres://` and `postgresql://`, which mean the same.
pub const DRIVER: Driver = Driver::new(&["postgres", "postgresql"], |url| Box::pin(connect(url)));

/// Maximum number of locks that one transaction grants. It locks the bucket of each.
const MAX_LOCKS_PER_STEP: usize = 100;

/// A client of a PostgreSQL store. Clones are the same client. Its sessions end when the last clone
/// and the last claim are dropped.
#[derive(Clone)]
pub struct PostgresBackend {
    pub(crate) client: Arc<Client>,
}

impl PostgresBackend {
    /// Connects, and creates the schema if it does not exist.
    ///
    /// # Errors
    /// - [`InvalidConfig`](dlock_core::Error::InvalidConfig) for a file that cannot be read.
    /// - [`Refused`](dlock_core::Error::Refused) for a wrong password, a database that does not
    ///   exist, missing rights, or a server that is not PostgreSQL 14 or newer.
    /// - [`Unwritable`](dlock_core::Error::Unwritable) if no host accepts writes.
    /// - [`Unavailable`](dlock_core::Error::Unavailable) if no host can be reached within the time
    ///   limit of a call.
    ///
    /// # Cancel safety
    /// Safe. A dropped future may have created the schema.
    pub async fn connect(config: PostgresConfig) -> Result<Self> {
        let connection = Arc::new(Connection::open(&config).await?);
        let info = info(&config).driver_data(Arc::clone(connection.place()));
        Ok(Self { client: Arc::new(Client::new(connection, &config, info)?) })
    }

    /// Returns the store with all its abilities.
    pub fn into_store(self) -> Store {
        let backend = Arc::new(self);
        let inspect = Arc::<Self>::clone(&backend);
        Store::new(backend).with_inspect(inspect)
    }
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresBackend").field(&self.client.info.identity).finish()
    }
}

#[async_trait]
impl Backend for PostgresBackend {
    fn info(&self) -> &Info {
        &self.client.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(PostgresClaim::new(Arc::clone(&self.client), request))
    }

    async fn attempt_all(&self, requests: Vec<Request>) -> Result<AttemptAll> {
        attempt_all(&self.client, requests).await
    }

    async fn clock(&self) -> Result<Duration> {
        self.client.connection.clock().await
    }
}

fn info(config: &PostgresConfig) -> Info {
    Info::new(STORE.store(), config.identity())
        .kinds(KINDS)
        .tokens(true)
        .detaches(true)
        .clock(true)
        .locks_per_step(MAX_LOCKS_PER_STEP)
        // An attempt then waits for few others, and for none longer than a call may take.
        .attempts_in_flight(config.connections * 8)
        .downgrades(&[Kind::Mutex, Kind::Fair, Kind::Write])
        // With a shorter ttl, commits on a busy disk would often take longer than the ttl.
        .ttl(Duration::from_millis(10)..=Info::MAX_TTL)
}

async fn connect(url: StoreUrl) -> Result<Store> {
    let config = PostgresConfig::from_url(&url)?;
    PostgresBackend::connect(config).await.map(PostgresBackend::into_store)
}
