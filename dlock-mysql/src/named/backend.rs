//! The backend of the server's named locks.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Kind, Result,
    driver::{Backend, Claim, Info, Request},
};

use super::{claim::NamedClaim, client::NamedClient};
use crate::{
    config::{MysqlConfig, Names},
    connection::Connection,
    error::STORE,
};

/// Maximum ttl of a named lock. The server's limit for the silence of a session is one year.
const LONGEST_TTL: Duration = Duration::from_secs(365 * 24 * 3600);

/// A client that keeps its locks as named locks of the server.
pub(crate) struct NamedBackend {
    pub(super) client: Arc<NamedClient>,
    info: Info,
}

impl NamedBackend {
    /// # Errors
    /// For a file of the configuration that cannot be read.
    pub(crate) fn new(config: MysqlConfig, names: Names, connection: Arc<Connection>) -> Result<Self> {
        let info = info(&config);
        Ok(Self { client: Arc::new(NamedClient::new(config, names, connection)?), info })
    }
}

#[async_trait]
impl Backend for NamedBackend {
    fn info(&self) -> &Info {
        &self.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(NamedClaim::new(Arc::clone(&self.client), request))
    }

    async fn close(&self) {
        self.client.connection.close(self.client.take_all_idle()).await;
    }
}

impl fmt::Debug for NamedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NamedBackend").field(&self.info.identity).finish()
    }
}

fn info(config: &MysqlConfig) -> Info {
    Info::new(STORE.store(), config.identity())
        .kinds(&[Kind::Mutex, Kind::Fair])
        .tokens(true)
        .ends_with_connection(true)
        // The server counts whole seconds.
        .ttl(Duration::from_secs(1)..=LONGEST_TTL)
}
