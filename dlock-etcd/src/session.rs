//! A client's session. It is one lease, which keep-alives extend for all claims of the client.
//!
//! `session/reaper.rs` ends claims that are past their own ttl while the lease is alive, and
//! deletes the keys of late requests. `session/upkeep.rs` is the loop that sends keep-alives and
//! runs the reaper.

mod reaper;
mod upkeep;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{
    ClaimId, Result,
    driver::{Moment, Reaper, SharedError},
};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    connection::{Connection, lease_id},
    error::STORE,
};
use reaper::Record;

/// Number of keep-alives that a client sends in one ttl of its lease. Directly before a keep-alive,
/// four fifths of the lease are left. Claims can rely on this part, so it is the maximum ttl of a
/// claim.
pub(crate) const KEEP_ALIVES_PER_TTL: u32 = 5;

/// Time limit for opening a session, as a multiple of the timeout of a call. By default, etcd elects
/// a new leader within 2 s of the failure of the old one.
const CALLS_TO_OPEN: u32 = 2;

/// Pause between two attempts to open a session.
const ELECTION_PAUSE: Duration = Duration::from_millis(100);

/// The lease of a client, and the time for which it is certainly alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    ttl: Duration,
    /// Send time of the last grant or keep-alive that the server has confirmed.
    confirmed_at: Moment,
}

impl Lease {
    /// Returns the minimum time for which the server will keep the keys of the lease.
    pub(crate) fn remaining(&self) -> Duration {
        self.ttl.saturating_sub(self.confirmed_at.elapsed())
    }

    /// Returns the time of the next keep-alive.
    fn next_keep_alive(&self) -> Moment {
        self.confirmed_at.after(self.ttl / KEEP_ALIVES_PER_TTL)
    }
}

/// The session of a client. If its lease has ended, the next claim that needs one gets a new lease.
pub(crate) struct Session {
    connection: Arc<Connection>,
    /// Ttl that the client requests for a lease.
    requested_ttl: Duration,
    lease: Mutex<Option<Lease>>,
    /// Held during a request for the lease, so that callers share its result.
    lease_request: tokio::sync::Mutex<()>,
    /// Number of failed requests for the lease.
    failures: AtomicU64,
    last_failure: Mutex<Option<SharedError>>,
    reaper: Reaper,
    /// Claims whose keys the session may have to delete.
    records: Mutex<HashMap<ClaimId, Record>>,
    /// Whether the client has closed the session. It then gets no new lease.
    is_closed: AtomicBool,
    /// Time of the next upkeep. `None` if none is necessary.
    planned_upkeep: Mutex<Option<Moment>>,
    /// Wakes the upkeep loop, because an upkeep may be due before `planned_upkeep`.
    upkeep_wake: Notify,
}

impl Session {
    /// Opens the session with a new lease. If members respond but have no leader, waits for the end
    /// of their election.
    ///
    /// # Errors
    /// If no member responds, if the cluster refuses, or if it has no leader for twice the timeout
    /// of a call.
    pub(crate) async fn open(
        connection: Arc<Connection>,
        requested_ttl: Duration,
        call_timeout: Duration,
    ) -> Result<Self> {
        let session = Self {
            connection,
            requested_ttl,
            lease: Mutex::new(None),
            lease_request: tokio::sync::Mutex::new(()),
            failures: AtomicU64::new(0),
            last_failure: Mutex::new(None),
            reaper: Reaper::new(),
            records: Mutex::default(),
            is_closed: AtomicBool::new(false),
            planned_upkeep: Mutex::new(None),
            upkeep_wake: Notify::new(),
        };
        let limit = call_timeout * CALLS_TO_OPEN;
        let (deadline, mut last_error) = (Instant::now() + limit, None);
        // Fails at once if no member responds.
        session.connection.live().await?;
        loop {
            match timeout_at(deadline, session.grant()).await {
                Ok(Err(error)) if error.is_transient() => last_error = Some(error),
                Ok(result) => return result.map(|_| session),
                Err(_) => return Err(last_error.unwrap_or_else(|| STORE.timed_out(limit))),
            }
            sleep(ELECTION_PAUSE).await;
        }
    }

    /// Returns the ttl that the cluster has granted to the lease.
    pub(crate) fn granted_ttl(&self) -> Duration {
        self.lease.lock().map_or(self.requested_ttl, |lease| lease.ttl)
    }

    /// Returns the lease. Sends a request only if a keep-alive is due. Concurrent callers share one
    /// request.
    ///
    /// # Errors
    /// If the server does not reply or refuses, or if the session is closed.
    ///
    /// # Cancel safety
    /// Safe. The next caller sends the request again.
    pub(crate) async fn lease(&self) -> Result<Lease> {
        let confirmed = || self.lease.lock().filter(|lease| !lease.next_keep_alive().has_passed());
        if let Some(lease) = confirmed() {
            return Ok(lease);
        }
        let failures = self.failures.load(Relaxed);
        let _turn = self.lease_request.lock().await;
        if self.is_closed.load(Relaxed) {
            return Err(STORE.refused("the client is closed"));
        }
        if let Some(lease) = confirmed() {
            return Ok(lease);
        }
        if let Some(last_failure) = &*self.last_failure.lock()
            && self.failures.load(Relaxed) != failures
        {
            return Err(last_failure.error());
        }
        let result = self.confirm_lease().await;
        if let Err(error) = &result {
            *self.last_failure.lock() = Some(STORE.share(error));
            self.failures.fetch_add(1, Relaxed);
        }
        result
    }

    /// Sends a keep-alive, or requests a new lease if the cluster no longer has the old one.
    async fn confirm_lease(&self) -> Result<Lease> {
        let lease = *self.lease.lock();
        if let Some(lease) = lease {
            let sent_at = Moment::now();
            // A linearizable read that begins now cannot return an earlier position.
            let earlier = self.connection.history();
            let keep_alive = self.connection.keep_alive(lease.id).await?;
            if let (Some(now), Some(earlier)) = (keep_alive.history, earlier)
                && now.contradicts(earlier)
            {
                // The cluster was restored from a snapshot. The restored lease has keys of claims
                // that were released since, so no claim of this session is reliable.
                self.connection.revoke(lease.id).await?;
                self.note_lease_end(lease.id);
                return self.grant().await;
            }
            if let Some(now) = keep_alive.history {
                self.connection.note_history(now);
            }
            if keep_alive.is_alive {
                let lease = Lease { confirmed_at: sent_at, ..lease };
                *self.lease.lock() = Some(lease);
                return Ok(lease);
            }
            self.note_lease_end(lease.id);
        }
        self.grant().await
    }

    async fn grant(&self) -> Result<Lease> {
        let confirmed_at = Moment::now();
        self.connection.forget_history();
        let id = lease_id();
        let ttl = self.connection.grant(id, self.requested_ttl).await?;
        let lease = Lease { id, ttl, confirmed_at };
        *self.lease.lock() = Some(lease);
        self.upkeep_wake.notify_one();
        Ok(lease)
    }

    /// Records that the cluster no longer has this lease, and therefore none of its keys.
    pub(crate) fn note_lease_end(&self, id: i64) {
        let mut lease = self.lease.lock();
        if lease.is_some_and(|lease| lease.id == id) {
            *lease = None;
            self.reaper.forget_all();
            self.records.lock().clear();
        }
    }

    /// Ends the session. The server deletes the keys of its lease.
    ///
    /// # Errors
    /// If the server does not reply or refuses.
    pub(crate) async fn close(&self) -> Result<()> {
        self.is_closed.store(true, Relaxed);
        // A keep-alive in flight would otherwise restore the lease that is taken here, and the
        // upkeep loop would keep it alive.
        let _turn = self.lease_request.lock().await;
        let lease = self.lease.lock().take();
        match lease {
            Some(lease) => self.connection.revoke(lease.id).await,
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("lease", &*self.lease.lock()).field("reaper", &self.reaper).finish()
    }
}
