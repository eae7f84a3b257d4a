//! The settings and the state that all claims of one client share.

use std::{sync::Arc, time::Duration};

use dlock_core::{
    ClaimId, LockName, Result,
    driver::{Batcher, Info, Seats, WeakMap},
};
use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::Instant};

use crate::{
    claim::HoldReads,
    config::EtcdConfig,
    connection::Connection,
    error::STORE,
    keys::Keys,
    queue::Queue,
    session::Session,
    wake::{HeldKeys, Pump},
};

/// Maximum number of first attempts of one client in flight. Enough to keep a server busy over a
/// round trip of 10 ms, and few enough that a server on a slow disk replies to all of them within
/// the time limit of one request.
pub(crate) const ATTEMPTS_IN_FLIGHT: usize = 128;

/// Maximum number of attempts in flight that waiters repeat.
pub(crate) const REPEATS_IN_FLIGHT: usize = 64;

/// Maximum number of releases of one client's holds in flight, and of its other releases.
pub(crate) const RELEASES_IN_FLIGHT: usize = 128;

/// Maximum number of detachments and resumptions of one client in flight, and of renewals that
/// change a key. They do not share the bounds of attempts and releases, so these cannot delay them.
/// Keep-alives need no bound, because there is one at a time.
const OTHERS_IN_FLIGHT: usize = 128;

/// Minimum interval between two reads of a queue by waiters of one client that no event has woken.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The settings, the connection, the session and the watches of one client.
pub(crate) struct Client {
    pub(crate) config: EtcdConfig,
    pub(crate) info: Info,
    pub(crate) connection: Arc<Connection>,
    pub(crate) session: Arc<Session>,
    /// Waiters for the deletion of a key, and holders. The pump is their source of events.
    pub(crate) seats: Seats,
    pub(crate) held_keys: Arc<HeldKeys>,
    /// Reads that verify holds.
    pub(crate) hold_reads: Batcher<HoldReads>,
    /// Queues in which claims of this client wait, by the prefix of their keys.
    queues: WeakMap<String, Queue>,
    /// Slots for the requests of claims that are in flight and are not attempts or releases.
    others_in_flight: Semaphore,
    /// Time of the last read of a queue by a waiter that no event had woken.
    checked_at: Mutex<Instant>,
}

impl Client {
    pub(crate) fn new(
        config: EtcdConfig,
        info: Info,
        connection: Arc<Connection>,
        session: Arc<Session>,
    ) -> Self {
        let held_keys = Arc::new(HeldKeys::new());
        let pump = Pump::new(Arc::clone(&connection), Arc::clone(&session), Arc::clone(&held_keys));
        let hold_reads = Batcher::new(STORE, HoldReads::new(Arc::clone(&connection)));
        Self {
            config,
            info,
            connection,
            session,
            seats: Seats::new(pump),
            held_keys,
            hold_reads,
            queues: WeakMap::new(),
            others_in_flight: Semaphore::new(OTHERS_IN_FLIGHT),
            checked_at: Mutex::new(Instant::now()),
        }
    }

    /// Runs a call of a claim that is not an attempt or a release, as soon as fewer than
    /// [`OTHERS_IN_FLIGHT`] such calls are in flight.
    pub(crate) async fn run_other<T>(&self, call: impl Future<Output = T>) -> T {
        // The semaphore is never closed.
        let _permit = self.others_in_flight.acquire().await.ok();
        call.await
    }

    /// Returns `true` at most once per [`CHECK_INTERVAL`]. One waiter may then read its queue
    /// although no event has woken it.
    pub(crate) fn allows_check(&self) -> bool {
        let mut checked_at = self.checked_at.lock();
        let is_due = checked_at.elapsed() >= CHECK_INTERVAL;
        if is_due {
            *checked_at = Instant::now();
        }
        is_due
    }

    /// Returns the queue of a name, which all claims of the client that wait there share.
    pub(crate) fn queue(&self, keys: &Keys) -> Arc<Queue> {
        self.queues.get_or_insert_with(&keys.queue, || Queue::new(&keys.queue))
    }

    /// Returns the keys of the claim with this id.
    ///
    /// # Errors
    /// For a name that the store cannot represent.
    pub(crate) fn keys(&self, name: &LockName, id: ClaimId) -> Result<Keys> {
        Keys::new(&self.config, name, id)
    }

    /// Starts the pump, unless it runs. It keeps the session alive, deletes overdue claims, and
    /// reads the stream of watches. It may have ended with the runtime that it ran on.
    pub(crate) fn ensure_pump_runs(&self) {
        self.seats.ensure_source_runs();
    }
}
