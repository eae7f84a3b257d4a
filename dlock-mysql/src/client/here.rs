//! The claims of one client that are in the queue, and which session has the doorbell of each.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use dlock_core::{ClaimId, driver::Moment};

use crate::connection::Line;

/// The claims that are in the queue, or may be.
#[derive(Default)]
pub(crate) struct Here(Mutex<HashMap<ClaimId, One>>);

#[derive(Default)]
struct One {
    /// How many objects stand for the claim: two during a downgrade.
    objects: u32,
    /// The session that has its doorbell, and how many sessions had ended when that was so.
    home: Option<(Arc<Line>, u64)>,
    /// When the server was asked last who has the doorbell.
    looked: Option<Moment>,
}

impl Here {
    /// One more object stands for the claim.
    pub(super) fn enter(&self, id: ClaimId) {
        self.all().entry(id).or_default().objects += 1;
    }

    /// One object less stands for the claim.
    pub(super) fn leave(&self, id: ClaimId) {
        let mut all = self.all();
        if let Some(one) = all.get_mut(&id) {
            one.objects -= 1;
            if one.objects == 0 {
                all.remove(&id);
            }
        }
    }

    /// Whether the claim is this client's, so that its end wakes this client's claims.
    pub(crate) fn has(&self, id: ClaimId) -> bool {
        self.all().contains_key(&id)
    }

    /// The session that has the claim's doorbell, unless that session has ended.
    pub(crate) fn home(&self, id: ClaimId) -> Option<Arc<Line>> {
        self.home_and_ended(id).map(|(home, _)| home)
    }

    /// Whether to ask the server who has the claim's doorbell: no session is known to have it, or one has ended since that was known.
    /// Often several end at once, and of one that does nothing nobody hears it. Not more often than once in so long: a session
    /// that is lost may keep its doorbells for a while.
    pub(crate) fn is_to_be_looked_at(&self, id: ClaimId, sessions_ended: u64, once_in: Duration) -> bool {
        let is_known = self.home_and_ended(id).is_some_and(|(_, then)| then == sessions_ended);
        let looked = self.all().get(&id).and_then(|one| one.looked);
        !is_known && looked.is_none_or(|at| at.elapsed() >= once_in)
    }

    /// The server was asked who has the claim's doorbell.
    pub(crate) fn note_look(&self, id: ClaimId) {
        if let Some(one) = self.all().get_mut(&id) {
            one.looked = Some(Moment::now());
        }
    }

    /// The session has the claim's doorbell. `false` if the claim is not here any more.
    pub(crate) fn set_home(&self, id: ClaimId, home: &Arc<Line>, sessions_ended: u64) -> bool {
        self.set(id, Some((Arc::clone(home), sessions_ended)))
    }

    /// No session has the claim's doorbell.
    pub(crate) fn lose_home(&self, id: ClaimId) {
        self.set(id, None);
    }

    fn home_and_ended(&self, id: ClaimId) -> Option<(Arc<Line>, u64)> {
        self.all().get(&id).and_then(|one| one.home.clone()).filter(|(home, _)| !home.is_over())
    }

    fn set(&self, id: ClaimId, home: Option<(Arc<Line>, u64)>) -> bool {
        let mut all = self.all();
        let one = all.get_mut(&id);
        let is_here = one.is_some();
        if let Some(one) = one {
            one.home = home;
        }
        is_here
    }

    fn all(&self) -> MutexGuard<'_, HashMap<ClaimId, One>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
