//! The backend of the queue.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Kind, Result,
    driver::{AttemptAll, Backend, Claim, Info, Request},
};

use super::{
    claim::{PostgresClaim, attempt_all},
    client::Client,
};
use crate::{config::PostgresConfig, connection::Connection, error::STORE, keys::KINDS};

/// Maximum number of locks that one transaction grants. It locks the bucket of each.
const MAX_LOCKS_PER_STEP: usize = 100;

/// A client that keeps its locks in the queue.
pub(crate) struct QueueBackend {
    pub(super) client: Arc<Client>,
}

impl QueueBackend {
    /// # Errors
    /// For a file of the configuration that cannot be read.
    pub(crate) fn new(config: &PostgresConfig, connection: Arc<Connection>) -> Result<Self> {
        let info = info(config).driver_data(Arc::clone(connection.location()));
        Ok(Self { client: Arc::new(Client::new(connection, config, info)?) })
    }
}

impl fmt::Debug for QueueBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueBackend").field(&self.client.info.identity).finish()
    }
}

#[async_trait]
impl Backend for QueueBackend {
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
        // More, because releases do not wait for each other, and each connection pipelines them.
        .releases_in_flight(config.connections * 64)
        .late_for(config.timeout)
        .downgrades(&[Kind::Mutex, Kind::Fair, Kind::Write])
        // With a shorter ttl, commits on a busy disk would often take longer than the ttl.
        .ttl(Duration::from_millis(10)..=Info::MAX_TTL)
}
