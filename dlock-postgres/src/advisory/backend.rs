//! The backend of session-level advisory locks.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Kind, Result,
    driver::{Backend, Claim, Info, Request},
};

use super::{claim::AdvisoryClaim, client::AdvisoryClient};
use crate::{
    config::{KeyRule, PostgresConfig},
    connection::Connection,
    error::STORE,
};

/// The kinds of locks that advisory locks support.
pub(super) const KINDS: &[Kind] = &[Kind::Mutex, Kind::Read, Kind::Write];

/// Range of the ttl. The server's limit for the silence of a session is 24.8 days.
const TTLS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(24 * 24 * 3600);

/// A client that keeps its locks as session-level advisory locks of the server.
pub(crate) struct AdvisoryBackend {
    pub(super) client: Arc<AdvisoryClient>,
    info: Info,
}

impl AdvisoryBackend {
    /// Opens a session, and checks that it is not shared with other clients.
    ///
    /// # Errors
    /// For a file of the configuration that cannot be read, if no session can be opened, and for a
    /// connection pooler that shares sessions.
    pub(crate) async fn open(
        config: &PostgresConfig,
        key_rule: KeyRule,
        connection: Arc<Connection>,
    ) -> Result<Self> {
        let client = AdvisoryClient::open(config, key_rule, connection).await?;
        Ok(Self { client: Arc::new(client), info: info(config) })
    }
}

#[async_trait]
impl Backend for AdvisoryBackend {
    fn info(&self) -> &Info {
        &self.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(AdvisoryClaim::new(Arc::clone(&self.client), request))
    }

    async fn clock(&self) -> Result<Duration> {
        self.client.connection.clock().await
    }
}

impl fmt::Debug for AdvisoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AdvisoryBackend").field(&self.info.identity).finish()
    }
}

fn info(config: &PostgresConfig) -> Info {
    Info::new(STORE.store(), config.identity())
        .kinds(KINDS)
        .alternatives(&[
            (Kind::Fair, "`mutex` waits in order of arrival with `mode=session`"),
            (Kind::Permit, "use `mode=queue`"),
        ])
        .tokens(true)
        .clock(true)
        .ends_with_connection(true)
        .ttl(TTLS)
}
