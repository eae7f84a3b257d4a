//! What the claims of one client share.

mod renewals;
mod who;

use std::sync::Arc;

use dlock_core::{
    LockName,
    driver::{Gathering, Info},
};

use crate::{
    config::{Dialect, RedisConfig},
    connection::Connection,
    error::STORE,
    keys::Keys,
    scripts::{PLAIN_RENEW, RENEW},
};

pub(crate) use renewals::Record;
use renewals::Renewals;
use who::Written;

/// One client: its settings, its connections, its renewals, and what it has told of who asks.
pub(crate) struct Client {
    pub(crate) config: RedisConfig,
    pub(crate) connection: Arc<Connection>,
    pub(crate) renewals: Gathering<Renewals>,
    pub(crate) info: Info,
    written: Written,
}

impl Client {
    pub(crate) fn new(connection: Connection, config: RedisConfig, info: Info) -> Self {
        let script = if config.dialect == Dialect::Plain { &PLAIN_RENEW } else { &RENEW };
        let connection = Arc::new(connection);
        let renewals = Gathering::new(STORE, Renewals::new(Arc::clone(&connection), script));
        Self { config, connection, renewals, info, written: Written::new() }
    }

    pub(crate) fn keys(&self, name: &LockName) -> Keys {
        let of = if self.connection.is_cluster() { Keys::on_cluster } else { Keys::new };
        of(&self.config.prefix, name)
    }
}
