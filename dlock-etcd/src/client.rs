//! What the claims of one client share.

mod held;
mod session;

use std::sync::Arc;

use dlock_core::{
    Kind, LockName, Result,
    driver::{Info, Seats},
};

use crate::{config::EtcdConfig, connection::Connection, keys::Keys, listen::Listening};
pub(crate) use held::{Held, Hold, Order, event as held_event};
pub(crate) use session::{BEATS, Lease, Session};

/// One client: its settings, its connection, its session, and its watches.
pub(crate) struct Client {
    pub(crate) config: EtcdConfig,
    pub(crate) info: Info,
    pub(crate) connection: Arc<Connection>,
    pub(crate) session: Arc<Session>,
    /// Those who wait for a key to be deleted.
    pub(crate) seats: Seats,
    /// The keys that are held.
    pub(crate) held: Arc<Held>,
}

impl Client {
    pub(crate) fn new(
        config: EtcdConfig,
        info: Info,
        connection: Arc<Connection>,
        session: Arc<Session>,
    ) -> Self {
        let held = Arc::new(Held::new());
        let listening = Listening::new(Arc::clone(&connection), Arc::clone(&session), Arc::clone(&held));
        Self { config, info, connection, session, seats: Seats::new(listening), held }
    }

    pub(crate) fn keys(&self, name: &LockName, id: dlock_core::ClaimId) -> Result<Keys> {
        Keys::new(&self.config, name, id)
    }

    /// Makes sure that the client's one task runs: it keeps the session alive, deletes overdue claims, and listens. It may have
    /// ended with the runtime that it ran on.
    pub(crate) fn keep_running(&self) {
        drop(self.seats.sit(String::new(), None, Kind::Mutex));
    }
}
