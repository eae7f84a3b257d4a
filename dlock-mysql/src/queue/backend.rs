//! The backend of the queue.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Kind, Result,
    driver::{Backend, Claim, Info, Request},
};

use super::{claim::QueueClaim, client::QueueClient};
use crate::{
    config::MysqlConfig,
    connection::{Call, Connection},
    error::STORE,
    keys::KINDS,
    sql::{CLOCK, column, expect},
};

/// A client that keeps its locks in the queue.
pub(crate) struct QueueBackend {
    pub(super) client: Arc<QueueClient>,
}

impl QueueBackend {
    /// # Errors
    /// For a file of the configuration that cannot be read.
    pub(crate) fn new(config: &MysqlConfig, connection: Arc<Connection>) -> Result<Self> {
        Ok(Self { client: Arc::new(QueueClient::new(connection, config, info(config))?) })
    }
}

#[async_trait]
impl Backend for QueueBackend {
    fn info(&self) -> &Info {
        &self.client.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(QueueClaim::new(Arc::clone(&self.client), request))
    }

    async fn clock(&self) -> Result<Duration> {
        let connection = &self.client.connection;
        let call = Call::new(CLOCK.with(&[]), connection.timeout());
        let reply = connection.call_without_tables(call).await?;
        column(expect(reply.rows.first(), "a request for the time")?, "clock").map(Duration::from_micros)
    }

    async fn close(&self) {
        self.client.connection.close(self.client.doorbells.take_all_idle()).await;
    }
}

impl fmt::Debug for QueueBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueBackend").field(&self.client.info.identity).finish()
    }
}

fn info(config: &MysqlConfig) -> Info {
    Info::new(STORE.store(), config.identity())
        .kinds(KINDS)
        .tokens(true)
        .detaches(true)
        .clock(true)
        // An attempt then waits for few others, and for none longer than a call may take.
        .attempts_in_flight(config.connections * 8)
        // More, because most of them only look up the claims ahead, and those share a statement.
        .repeats_in_flight(config.connections * 16)
        .releases_in_flight(config.connections * 16)
        .late_for(config.timeout)
        .downgrades(&[Kind::Mutex, Kind::Fair, Kind::Write])
        // With a shorter ttl, commits on a busy disk would often take longer than the ttl.
        .ttl(Duration::from_millis(10)..=Info::MAX_TTL)
}
