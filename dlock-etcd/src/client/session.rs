//! A client's session: one lease, kept alive for all claims, and the ttls of the claims under it. Over the usual length, because the
//! claims' ttls end with the lease.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{
    ClaimId, Error, Result,
    driver::{Moment, Reaper, SharedError},
};
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use tokio::sync::Notify;

use crate::{
    connection::{Connection, History, lease_id},
    error::STORE,
};

/// How many signs of life a client sends in the time of its lease. Between two of them the rest of the lease is what claims may
/// rely on, so it is the longest ttl.
pub(crate) const BEATS: u32 = 5;

/// How long a request that was given up is expected to arrive, counted from the first deletion of its key. TCP gives up
/// retransmitting after about 15 minutes with the settings of Linux; other systems and proxies stay well below an hour.
const EXPECTED: Duration = Duration::from_secs(3600);

/// How many overdue claims are deleted in one request. A server allows 128.
const MOST: usize = 100;

/// The lease of a client, and how long it may be relied on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    ttl: Duration,
    /// Before the last request was sent that the server has answered.
    beaten: Moment,
}

impl Lease {
    /// How long the server will keep the keys of the lease at least.
    pub(crate) fn left(&self) -> Duration {
        self.ttl.saturating_sub(self.beaten.elapsed())
    }

    /// When it is to be kept alive again.
    fn due(&self) -> Moment {
        self.beaten.after(self.ttl / BEATS)
    }
}

/// The session of a client. A lease that the server has forgotten is replaced by another one when a claim needs it.
pub(crate) struct Session {
    connection: Arc<Connection>,
    /// How long a lease is asked for.
    lasting: Duration,
    lease: Mutex<Option<Lease>>,
    /// What the last keep-alive has seen.
    history: Mutex<Option<History>>,
    /// Held by the one who asks the server.
    gate: tokio::sync::Mutex<()>,
    /// How many requests to the server have failed, and the last failure.
    failed: AtomicU64,
    last: Mutex<Option<SharedError>>,
    reaper: Reaper,
    /// The claims that may have to be deleted.
    known: Mutex<HashMap<ClaimId, Known>>,
    /// Whether the client has ended the session. There is then no other one.
    is_closed: AtomicBool,
    /// When the task looks next whether a claim is overdue.
    planned: Mutex<Option<Moment>>,
    /// Wakes the task earlier.
    knock: Notify,
}

/// A claim that may be under the session's lease.
struct Known {
    key: String,
    /// How long after the last sign of life, or the last deletion, the key is deleted.
    pause: Duration,
    /// Whether a request may still be under way that makes the key, or puts it under the session's lease. It may come at any
    /// time while the session lives, so the key is then deleted more than once.
    is_unsure: bool,
    /// Time after which such a request is no longer expected.
    expected_until: Option<Moment>,
}

impl Session {
    /// Opens the session.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub(crate) async fn open(connection: Arc<Connection>, lasting: Duration) -> Result<Self> {
        let session = Self {
            connection,
            lasting,
            lease: Mutex::new(None),
            history: Mutex::new(None),
            gate: tokio::sync::Mutex::new(()),
            failed: AtomicU64::new(0),
            last: Mutex::new(None),
            reaper: Reaper::new(),
            known: Mutex::default(),
            is_closed: AtomicBool::new(false),
            planned: Mutex::new(None),
            knock: Notify::new(),
        };
        session.grant().await?;
        Ok(session)
    }

    /// How long the cluster keeps the lease without a sign of life.
    pub(crate) fn granted(&self) -> Duration {
        lock(&self.lease).map_or(self.lasting, |lease| lease.ttl)
    }

    /// The lease. Asks the server only if the next sign of life is due. All who need the same answer share one request.
    ///
    /// # Errors
    /// When the server cannot be asked.
    ///
    /// # Cancel safety
    /// Safe: whoever comes next asks again.
    pub(crate) async fn lease(&self) -> Result<Lease> {
        let fresh = || lock(&self.lease).filter(|lease| !lease.due().has_passed());
        if let Some(lease) = fresh() {
            return Ok(lease);
        }
        let failed = self.failed.load(Relaxed);
        let _gate = self.gate.lock().await;
        if self.is_closed.load(Relaxed) {
            return Err(STORE.refused("the client is closed"));
        }
        if let Some(lease) = fresh() {
            return Ok(lease);
        }
        if let Some(last) = &*lock(&self.last)
            && self.failed.load(Relaxed) != failed
        {
            return Err(last.error());
        }
        let asked = self.ask().await;
        if let Err(error) = &asked {
            *lock(&self.last) = Some(STORE.share(error));
            self.failed.fetch_add(1, Relaxed);
        }
        asked
    }

    async fn ask(&self) -> Result<Lease> {
        let lease = *lock(&self.lease);
        if let Some(lease) = lease {
            let beaten = Moment::now();
            let beat = self.connection.beat(lease.id).await?;
            let before = *lock(&self.history);
            if let (Some(now), Some(before)) = (beat.history, before)
                && now.breaks_with(before)
            {
                // The cluster was restored from a snapshot, and so was this lease, with claims that were released since. No
                // claim of this session can be relied on.
                self.connection.revoke(lease.id).await?;
                self.note_end(lease.id);
                *lock(&self.history) = Some(now);
                return self.grant().await;
            }
            if beat.history.is_some() {
                *lock(&self.history) = beat.history;
            }
            if beat.is_alive {
                let lease = Lease { beaten, ..lease };
                *lock(&self.lease) = Some(lease);
                return Ok(lease);
            }
            self.note_end(lease.id);
        }
        self.grant().await
    }

    async fn grant(&self) -> Result<Lease> {
        let beaten = Moment::now();
        let id = lease_id();
        let ttl = self.connection.grant(id, self.lasting).await?;
        let lease = Lease { id, ttl, beaten };
        *lock(&self.lease) = Some(lease);
        self.knock.notify_one();
        Ok(lease)
    }

    /// The server does not know this lease: all claims under it are gone.
    pub(crate) fn note_end(&self, lease: i64) {
        let mut now = lock(&self.lease);
        if now.is_some_and(|now| now.id == lease) {
            *now = None;
            self.reaper.forget_all();
            lock(&self.known).clear();
        }
    }

    /// Ends the session: the server deletes what is under its lease.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub(crate) async fn close(&self) -> Result<()> {
        self.is_closed.store(true, Relaxed);
        // A sign of life that is under way would otherwise put back what is taken here, and the task would keep it alive.
        let _gate = self.gate.lock().await;
        let lease = lock(&self.lease).take();
        match lease {
            Some(lease) => self.connection.revoke(lease.id).await,
            None => Ok(()),
        }
    }

    /// Notes a sign of life of a claim. `false` if the claim is being deleted.
    #[must_use]
    pub(crate) fn touch(&self, id: ClaimId, key: &str, ttl: Duration) -> bool {
        if !self.reaper.touch(id, ttl) {
            return false;
        }
        {
            let mut known = lock(&self.known);
            let new = || Known { key: key.to_owned(), pause: ttl, is_unsure: false, expected_until: None };
            known.entry(id).or_insert_with(new).pause = ttl;
        }
        let end = Moment::now().after(ttl);
        let is_sooner = lock(&self.planned).is_none_or(|planned| end.since(planned).is_zero());
        if is_sooner {
            self.knock.notify_one();
        }
        true
    }

    /// Notes that a request is sent that makes the key of this claim, or puts it under the session's lease. Until it is
    /// [sure](Self::note_sure) what became of the request, it may come late. `false` if an earlier one may, too.
    pub(crate) fn note_unsure(&self, id: ClaimId) -> bool {
        let mut known = lock(&self.known);
        known.get_mut(&id).is_none_or(|known| !std::mem::replace(&mut known.is_unsure, true))
    }

    /// Whether this session has asked for the claim, and not left it since.
    pub(crate) fn knows(&self, id: ClaimId) -> bool {
        lock(&self.known).contains_key(&id)
    }

    /// No request of this claim is under way any more.
    pub(crate) fn note_sure(&self, id: ClaimId) {
        if let Some(known) = lock(&self.known).get_mut(&id) {
            known.is_unsure = false;
        }
    }

    /// Forgets a claim that is no longer in the store, or that is there without this session. If a request may come late, the
    /// key is deleted when the claim's ttl is over, and again after twice that time, and so on, and then once in the session's time for as long as the request
    /// is [expected](EXPECTED).
    pub(crate) fn leave(&self, id: ClaimId) {
        let unsure = lock(&self.known).get(&id).filter(|known| known.is_unsure).map(|known| known.pause);
        if let Some(pause) = unsure {
            // If it is being deleted, its next deletion is planned after that.
            let _ = self.reaper.touch(id, pause);
            self.knock.notify_one();
        } else {
            self.forget(id);
        }
    }

    /// Notes that a claim was deleted because its ttl was over.
    fn note_deleted(&self, id: ClaimId) {
        let session = self.granted();
        let next = lock(&self.known).get_mut(&id).and_then(|known| {
            let until = *known.expected_until.get_or_insert_with(|| Moment::now().after(EXPECTED));
            let is_last = !known.is_unsure || until.has_passed();
            known.pause = (known.pause * 2).min(session);
            (!is_last).then_some(known.pause)
        });
        match next {
            None => self.forget(id),
            Some(pause) => {
                self.reaper.forget(id);
                let _ = self.reaper.touch(id, pause);
            }
        }
    }

    fn forget(&self, id: ClaimId) {
        self.reaper.forget(id);
        lock(&self.known).remove(&id);
    }

    /// When to do the [duties](Self::do_duties) next; never, if there is nothing to do. A [knock](Self::knocked) says that this may
    /// have changed. `is_late` if the last time failed: the reaper names no time for a claim that is overdue already.
    pub(crate) fn plan(&self, is_late: bool) -> Option<Moment> {
        let due = lock(&self.lease).filter(|_| !self.is_closed.load(Relaxed)).map(|lease| lease.due());
        let next = match (due, self.reaper.next_deadline()) {
            (Some(due), Some(overdue)) => Some(due.min(overdue)),
            (due, overdue) => due.or(overdue),
        };
        let next = if is_late { Some(Moment::now()) } else { next };
        *lock(&self.planned) = next;
        next
    }

    /// Waits until the [plan](Self::plan) may have changed.
    ///
    /// # Cancel safety
    /// Safe: no knock is missed.
    pub(crate) async fn knocked(&self) {
        self.knock.notified().await;
    }

    /// Sends a sign of life if one is due, and deletes the claims that are overdue.
    ///
    /// # Errors
    /// When the server cannot be asked, or refuses.
    pub(crate) async fn do_duties(&self) -> Result<()> {
        if lock(&self.lease).is_some_and(|lease| lease.due().has_passed()) {
            self.lease().await?;
        }
        self.reap().await
    }

    /// Deletes the claims that are overdue, many in one request. If the cluster refuses that, each by itself: one refusal must
    /// not keep the others.
    async fn reap(&self) -> Result<()> {
        let overdue = self.reaper.overdue();
        let mut told = Ok(());
        for some in overdue.chunks(MOST) {
            match self.delete(some).await {
                Err(Error::Refused { .. }) => {
                    for one in some.chunks(1) {
                        told = told.and(self.delete(one).await);
                    }
                }
                outcome => outcome?,
            }
        }
        told
    }

    async fn delete(&self, claims: &[ClaimId]) -> Result<()> {
        // Without a lease there is nothing to delete.
        let lease = lock(&self.lease).map_or(0, |lease| lease.id);
        let deletions: Vec<_> = {
            let known = lock(&self.known);
            let keys = claims.iter().filter_map(|id| known.get(id).map(|known| known.key.clone()));
            // Under another lease it is a detached hold, or that of another client by now.
            let one = |key: String| {
                let is_ours = Compare::lease(key.as_str(), CompareOp::Equal, lease);
                TxnOp::txn(Txn::new().when([is_ours]).and_then([TxnOp::delete(key, None)]))
            };
            keys.map(one).collect()
        };
        if lease != 0 && !deletions.is_empty() {
            self.connection.txn(Txn::new().and_then(deletions)).await?;
        }
        claims.iter().for_each(|id| self.note_deleted(*id));
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("lease", &*lock(&self.lease)).field("reaper", &self.reaper).finish()
    }
}
