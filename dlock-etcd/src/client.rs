//! What the claims of one client share.

mod held;
mod session;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use dlock_core::{
    Kind, LockName, Result,
    driver::{Info, Seats},
};
use tokio::{sync::Semaphore, time::Instant};

use crate::{config::EtcdConfig, connection::Connection, keys::Keys, listen::Listening};
pub(crate) use held::{Held, Hold, Order, event as held_event};
pub(crate) use session::{BEATS, Lease, Session};

/// Maximum number of attempts of one client in flight. Enough to keep a server busy over a round trip of 10 ms, and few
/// enough that a server on a slow disk answers all of them within one request's time limit.
pub(crate) const ATTEMPTS_IN_FLIGHT: usize = 128;

/// Maximum number of releases, detachments, resumptions and renewals of one client in flight. They do not share the bound of
/// the attempts, so attempts cannot delay them. Keep-alives have no bound at all: there is one at a time.
const OTHERS_IN_FLIGHT: usize = 128;

/// Interval between two looks of a client's waiters that nothing has woken.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

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
    /// Permits for the requests of claims that are no attempts.
    lane: Semaphore,
    /// Time of the last look of a waiter that nothing had woken.
    checked: Mutex<Instant>,
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
        let (lane, checked) = (Semaphore::new(OTHERS_IN_FLIGHT), Mutex::new(Instant::now()));
        Self { config, info, connection, session, seats: Seats::new(listening), held, lane, checked }
    }

    /// Runs a call of a claim that is no attempt, when fewer than [`OTHERS_IN_FLIGHT`] of them are in flight.
    pub(crate) async fn in_lane<T>(&self, call: impl Future<Output = T>) -> T {
        // The semaphore is never closed.
        let _permit = self.lane.acquire().await.ok();
        call.await
    }

    /// Returns `true` at most once in [`CHECK_INTERVAL`]: one waiter may then look into its queue although nothing woke it.
    pub(crate) fn allows_check(&self) -> bool {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = checked.elapsed() >= CHECK_INTERVAL;
        if is_due {
            *checked = Instant::now();
        }
        is_due
    }

    pub(crate) fn keys(&self, name: &LockName, id: dlock_core::ClaimId) -> Result<Keys> {
        Keys::new(&self.config, name, id)
    }

    /// Makes sure that the client's one task runs: it keeps the session alive, deletes overdue claims, and listens. It may have
    /// ended with the runtime that it ran on.
    pub(crate) fn keep_running(&self) {
        drop(self.seats.join_without_subscription(String::new(), None, Kind::Mutex));
    }
}
