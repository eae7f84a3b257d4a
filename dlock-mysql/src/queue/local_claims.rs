//! The client's own claims in the queue, and the session that owns the doorbell of each.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use dlock_core::{ClaimId, driver::Moment};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;

use super::renewal_clock::LastRenewal;
use crate::session::Session;

/// The claims of this client that are in the queue, or may be.
#[derive(Default)]
pub(super) struct LocalClaims(Mutex<Records>);

#[derive(Default)]
pub(super) struct Records {
    pub(super) claims: HashMap<ClaimId, LocalClaim>,
    /// Claims that were renewed and that no call in flight renews, for each ttl. The claim that
    /// was renewed longest ago is first.
    pub(super) by_age: HashMap<Duration, BTreeMap<u64, ClaimId>>,
    /// Number of renewals recorded so far.
    pub(super) renewals: u64,
}

/// The record of one claim.
#[derive(Default)]
pub(super) struct LocalClaim {
    /// Number of `QueueClaim` values with this id. Two during a downgrade, otherwise one.
    handles: u32,
    /// The session that owns the doorbell, if it is known.
    bell_owner: Option<BellOwner>,
    /// Time of the last query for the doorbell's owner.
    checked_at: Option<Moment>,
    /// The last renewal. `None` if the claim was never renewed, as with a lease.
    pub(super) last_renewal: Option<LastRenewal>,
    /// A call in flight that renews the claim together with others. Closed when the call ends.
    pub(super) carrier: Option<Arc<Semaphore>>,
}

struct BellOwner {
    session: Arc<Session>,
    /// Value of [`Connection::session_epoch`](crate::connection::Connection::session_epoch) from
    /// before the call that confirmed the ownership.
    confirmed_at_epoch: u64,
}

impl LocalClaims {
    /// Adds a handle of a claim.
    pub(super) fn add_handle(&self, id: ClaimId) {
        self.lock().claims.entry(id).or_default().handles += 1;
    }

    /// Removes a handle of a claim, and forgets when the claim was renewed. Removes the claim with
    /// its last handle.
    pub(super) fn remove_handle(&self, id: ClaimId) {
        let mut records = self.lock();
        records.forget_renewal(id);
        if let Some(claim) = records.claims.get_mut(&id) {
            claim.handles -= 1;
            if claim.handles == 0 {
                records.claims.remove(&id);
            }
        }
    }

    /// Returns whether the claim belongs to this client, so that its end wakes waiters of this
    /// client.
    pub(super) fn contains(&self, id: ClaimId) -> bool {
        self.lock().claims.contains_key(&id)
    }

    /// Returns the session that owns the claim's doorbell, unless that session has ended.
    pub(super) fn bell_owner(&self, id: ClaimId) -> Option<Arc<Session>> {
        let records = self.lock();
        let owner = records.claims.get(&id)?.bell_owner.as_ref()?;
        (!owner.session.is_ending()).then(|| Arc::clone(&owner.session))
    }

    /// Returns whether the next renewal should query which session owns the claim's doorbell.
    ///
    /// This is the case if the owner is unknown, or if any session of the client has ended since
    /// the owner was confirmed. Sessions often end together, and the end of an idle session is not
    /// reported, so one ended session makes all owners doubtful. The check is repeated at most
    /// once per `interval`, because the server may keep the doorbell of a lost session for some
    /// time.
    pub(super) fn needs_owner_check(&self, id: ClaimId, session_epoch: u64, interval: Duration) -> bool {
        let records = self.lock();
        let Some(claim) = records.claims.get(&id) else { return true };
        let is_confirmed = claim
            .bell_owner
            .as_ref()
            .is_some_and(|owner| owner.confirmed_at_epoch == session_epoch && !owner.session.is_ending());
        !is_confirmed && claim.checked_at.is_none_or(|at| at.elapsed() >= interval)
    }

    /// Records the time of a query for the session that owns the claim's doorbell.
    pub(super) fn record_owner_check(&self, id: ClaimId) {
        if let Some(claim) = self.lock().claims.get_mut(&id) {
            claim.checked_at = Some(Moment::now());
        }
    }

    /// Records that `session` owns the claim's doorbell. Returns `false` if the claim is no
    /// longer registered.
    pub(super) fn set_bell_owner(&self, id: ClaimId, session: &Arc<Session>, session_epoch: u64) -> bool {
        let mut records = self.lock();
        let Some(claim) = records.claims.get_mut(&id) else { return false };
        let owner = BellOwner { session: Arc::clone(session), confirmed_at_epoch: session_epoch };
        claim.bell_owner = Some(owner);
        true
    }

    /// Records that no session owns the claim's doorbell.
    pub(super) fn clear_bell_owner(&self, id: ClaimId) {
        if let Some(claim) = self.lock().claims.get_mut(&id) {
            claim.bell_owner = None;
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Records> {
        self.0.lock()
    }
}
