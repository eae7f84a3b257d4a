//! One session with the servers. It knows its connection and the time for which it is certainly
//! alive.
//!
//! `session/validity.rs` computes that time from the confirmed requests. `session/heartbeat.rs`
//! sends the heartbeats. `session/records.rs` keeps what each claim has in the store,
//! `session/late.rs` deletes nodes that a late request has created, `session/reaper.rs` deletes the
//! claims whose keepers have fallen silent, and `session/paths.rs` limits how much a session may
//! contain.

mod heartbeat;
mod late;
mod paths;
mod reaper;
mod records;
mod validity;

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use dlock_core::{
    ClaimId, Error, Result,
    driver::{Moment, Reaper, WeakMap},
};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::timeout};
use zookeeper_client::{Client as ZkClient, SessionState, StateWatcher};

use crate::{error, queue::Queue};

use late::LateCreate;
use paths::Paths;
pub(crate) use paths::WatchedPath;
pub(crate) use records::Record;
use validity::Validity;

/// One session of a client. Claims may still refer to a session that is over.
pub(crate) struct Session {
    /// Client of the crate `zookeeper-client`. `None` once the session is closed. Dropping the
    /// client ends the session.
    client: Mutex<Option<ZkClient>>,
    states: StateWatcher,
    /// Number of state changes that this watcher has seen. It numbers the connections.
    connection_changes: Mutex<(StateWatcher, u64)>,
    /// Session timeout that the servers have granted.
    pub(crate) timeout: Duration,
    validity: Mutex<Validity>,
    reaper: Reaper,
    /// Wakes the reaper's loop, because a claim may be overdue before `next_reap`.
    reaper_wake: Arc<Notify>,
    /// Time of the reaper's next search for overdue claims.
    next_reap: Mutex<Moment>,
    records: Mutex<HashMap<ClaimId, Record>>,
    late_creates: Mutex<HashMap<ClaimId, LateCreate>>,
    pub(crate) paths: Arc<Paths>,
    /// Number of requests sent that may have created a node. Numbers the records.
    creates_sent: AtomicU64,
    /// Time until which no new claim uses the session, because it had no connection.
    avoided_until: Mutex<Option<Moment>>,
    queues: WeakMap<Arc<str>, Queue>,
    /// Whether the servers support container nodes. If not, the client deletes each directory that
    /// it leaves empty.
    pub(crate) has_containers: bool,
}

/// Maximum time that a claim waits for its session's new connection before it opens another
/// session. A call with a short time limit waits for a quarter of its limit instead, so that time
/// remains for the other session.
const RECONNECT_WAIT: Duration = Duration::from_millis(500);

/// Divisor of the timeout. If no heartbeat was confirmed for this part of the timeout, new claims
/// get another session. Three heartbeats are sent in that time.
const STALE_DIVISOR: u32 = 2;

/// Maximum time that a client waits for the server to confirm the end of a session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

impl Session {
    /// Creates the session of `client`, which began to connect at `began`.
    pub(crate) fn new(client: ZkClient, has_containers: bool, began: Moment) -> Self {
        Self {
            states: client.state_watcher(),
            connection_changes: Mutex::new((client.state_watcher(), 0)),
            timeout: client.session_timeout(),
            client: Mutex::new(Some(client)),
            validity: Mutex::new(Validity::new(began)),
            reaper: Reaper::new(),
            reaper_wake: Arc::default(),
            next_reap: Mutex::new(began),
            records: Mutex::default(),
            late_creates: Mutex::default(),
            paths: Arc::default(),
            creates_sent: AtomicU64::default(),
            avoided_until: Mutex::default(),
            queues: WeakMap::new(),
            has_containers,
        }
    }

    /// Returns the background task of the session, which sends heartbeats and deletes overdue
    /// claims.
    ///
    /// The future does not keep the session alive. It ends when the session is over or dropped.
    pub(crate) fn maintain(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        let (session, states) = (Arc::downgrade(self), self.states.clone());
        let reaper_wake = Arc::clone(&self.reaper_wake);
        let period = heartbeat::period(self.timeout);
        async move {
            tokio::join!(
                heartbeat::run(&session, states, &reaper_wake, period),
                reaper::run(&session, &reaper_wake, period),
            );
        }
    }

    /// Ends the session if no server has confirmed a request for a whole timeout. Returns whether
    /// the session is over, which means that it has ended or will not be used again. Its nodes are
    /// deleted, or will be when the servers end the session.
    pub(crate) fn end_if_silent(&self) -> bool {
        if self.states.peek_state().is_terminated() || self.client.lock().is_none() {
            return true;
        }
        let is_silent = self.validity.lock().age() > self.timeout;
        if is_silent {
            self.end();
        }
        is_silent
    }

    /// Stops using the session. If a server can be reached, the session is closed there.
    pub(crate) fn end(&self) {
        drop(self.client.lock().take());
        self.reaper_wake.notify_one();
    }

    /// Waits until the session has a connection, and returns the client of `zookeeper-client`. The
    /// caller bounds the wait.
    ///
    /// Without a connection, `zookeeper-client` would queue a request and send it at any later
    /// time, even after its caller has given it up.
    ///
    /// # Errors
    /// If the session is over.
    pub(crate) async fn client(&self) -> Result<ZkClient> {
        let mut states = self.states.clone();
        loop {
            let state = states.state();
            if state.is_terminated() {
                return Err(error::session_is_over());
            }
            if state == SessionState::SyncConnected {
                return self.client.lock().clone().ok_or_else(error::session_is_over);
            }
            states.changed().await;
        }
    }

    /// Returns whether the session has a connection or gets one soon. `limit` is the time limit of
    /// the caller's whole call.
    pub(crate) async fn is_connected(&self, limit: Duration) -> bool {
        !self.is_stale()
            && timeout(RECONNECT_WAIT.min(limit / 4), self.client()).await.is_ok_and(|client| client.is_ok())
    }

    /// Returns whether several heartbeats in a row were not confirmed. The connection may break
    /// again and again, or the server may answer only other requests.
    fn is_stale(&self) -> bool {
        self.validity.lock().age() > self.timeout / STALE_DIVISOR
    }

    /// Returns whether the session has a connection on which heartbeats are confirmed.
    pub(crate) fn is_healthy(&self) -> bool {
        !self.end_if_silent() && !self.is_stale() && self.states.peek_state() == SessionState::SyncConnected
    }

    /// Makes new claims use other sessions for a part of the timeout, because this one has no
    /// connection. A connection that breaks again and again would delay them.
    pub(crate) fn avoid(&self) {
        *self.avoided_until.lock() = Some(Moment::now().after(self.timeout / STALE_DIVISOR));
    }

    /// Returns whether the session has had no connection so recently that new claims use another.
    pub(crate) fn is_avoided(&self) -> bool {
        self.avoided_until.lock().is_some_and(|until| !until.has_passed())
    }

    /// Records that a majority of the servers has confirmed a request that was sent at `sent`.
    pub(crate) fn note_confirmed(&self, sent: Moment) {
        self.validity.lock().confirm(sent, self.timeout);
    }

    /// Returns the time for which the session is certainly alive.
    ///
    /// # Errors
    /// If no heartbeat was confirmed for too long.
    pub(crate) fn valid_for(&self) -> Result<Duration> {
        let remaining = self.validity.lock().remaining(self.timeout);
        remaining.ok_or_else(error::session_is_silent)
    }

    /// Returns the client's snapshot of the queue in a directory, which all claims that wait there
    /// share.
    pub(crate) fn queue(&self, directory: &Arc<str>) -> Arc<Queue> {
        self.queues.get_or_insert_with(directory, || Queue::new(Arc::clone(directory)))
    }

    /// Checks that the chroot exists.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if it does not exist.
    pub(crate) async fn check_chroot(&self) -> Result<()> {
        let client = self.client().await?;
        if client.path() == "/" {
            return Ok(());
        }
        match client.check_stat("/").await.map_err(error::explain)? {
            Some(_) => Ok(()),
            None => {
                let reason = format!(
                    "the `chroot` `{}` does not exist, and dlock does not create it; create the node, or write its path as the \
                     URL's path, which dlock creates",
                    client.path()
                );
                Err(Error::InvalidConfig { reason })
            }
        }
    }

    /// Ends the session, and waits until the server has confirmed that or [`CLOSE_TIMEOUT`] has
    /// passed.
    pub(crate) async fn close(&self) {
        let Some(client) = self.client.lock().take() else { return };
        let mut states = client.state_watcher();
        drop(client);
        self.reaper_wake.notify_one();
        let closed =
            async { while !states.state().is_terminated() && !states.changed().await.is_terminated() {} };
        // Calls in flight keep the session until their own time limits. If no reply arrives, the
        // server ends the session after its timeout.
        let _ = timeout(self.timeout.min(CLOSE_TIMEOUT), closed).await;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.reaper_wake.notify_one();
    }
}
