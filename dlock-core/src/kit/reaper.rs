//! The reaper finds claims that are past their ttl, in a store that would keep them until the
//! client's session ends.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};

use super::Moment;
use crate::model::ClaimId;

/// Gives claims a ttl of their own in a store that has only sessions
/// ([`Info::session`](crate::contract::Info::session)).
///
/// Such a store keeps a claim as an ephemeral node, a key under a client's lease, or a lock of a
/// connection. A claim whose keeper has ended, or whose release was never confirmed, would stay
/// until the whole client dies.
///
/// A driver has one reaper for each session:
///
/// - Each `attempt` and `renew` calls [`touch`](Self::touch) before it sends its request, and again
///   when the reply says that the claim holds or waits.
/// - `release` calls [`forget`](Self::forget) when the store has confirmed it.
/// - A task of the session deletes the claims that are returned by
///   [`begin_deletions`](Self::begin_deletions), and calls [`forget`](Self::forget) when the store
///   has confirmed the deletion. The task runs again at [`next_deadline`](Self::next_deadline).
///
/// A forgotten claim takes no memory.
#[derive(Default)]
pub struct Reaper(Mutex<HashMap<ClaimId, Deadline>>);

#[derive(Clone, Copy)]
enum Deadline {
    At(Moment),
    /// The deadline has passed, and the claim is being deleted.
    Passed,
}

impl Reaper {
    /// Creates a reaper without claims.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the deadline of a claim to one `ttl` from now. Returns `false` if the claim is being
    /// deleted already, which cannot be stopped. The driver's `renew` must then return
    /// [`Lost`](crate::contract::Renewal::Lost), and its `attempt` a transient error, until the
    /// claim is forgotten.
    #[must_use = "a claim that is being deleted must not be confirmed"]
    pub fn touch(&self, id: ClaimId, ttl: Duration) -> bool {
        let deadline = Deadline::At(Moment::now().after(ttl));
        match self.claims().entry(id) {
            Entry::Vacant(entry) => {
                entry.insert(deadline);
                true
            }
            Entry::Occupied(mut entry) => match entry.get_mut() {
                Deadline::Passed => false,
                known @ Deadline::At(_) => {
                    *known = deadline;
                    true
                }
            },
        }
    }

    /// Removes a claim that is no longer in the store.
    pub fn forget(&self, id: ClaimId) {
        self.claims().remove(&id);
    }

    /// Removes all claims, after the session has ended and the store has deleted them.
    pub fn forget_all(&self) {
        self.claims().clear();
    }

    /// Returns the claims to delete now. [`touch`](Self::touch) refuses these claims from this call
    /// on. Each further call returns them again until they are [forgotten](Self::forget).
    pub fn begin_deletions(&self) -> Vec<ClaimId> {
        let mut claims = self.claims();
        let overdue = claims.iter_mut().filter_map(|(id, deadline)| {
            if matches!(deadline, Deadline::At(at) if at.has_passed()) {
                *deadline = Deadline::Passed;
            }
            matches!(deadline, Deadline::Passed).then_some(*id)
        });
        overdue.collect()
    }

    /// Returns the earliest deadline of a claim. `None` if there are no claims, or if all claims
    /// are being deleted.
    pub fn next_deadline(&self) -> Option<Moment> {
        let claims = self.claims();
        let deadlines = claims.values().filter_map(|deadline| match deadline {
            Deadline::At(at) => Some(*at),
            Deadline::Passed => None,
        });
        deadlines.min_by_key(|at| at.remaining())
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<ClaimId, Deadline>> {
        self.0.lock()
    }
}

impl fmt::Debug for Reaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reaper({} claims)", self.claims().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const TTL: Duration = Duration::from_secs(10);
    const S: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_is_touched_in_time_is_never_overdue() {
        let (reaper, id) = (Reaper::new(), ClaimId::random());
        for _ in 0..10 {
            assert!(reaper.touch(id, TTL));
            advance(TTL - S).await;
            assert_eq!(reaper.begin_deletions(), []);
        }
        assert!(reaper.next_deadline().is_some_and(|at| at.remaining() <= S));
        assert_eq!(format!("{reaper:?}"), "Reaper(1 claims)");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_claim_stays_overdue_and_cannot_be_renewed_until_it_is_forgotten() {
        let (reaper, silent, alive) = (Reaper::new(), ClaimId::random(), ClaimId::random());
        assert!(reaper.touch(silent, TTL) && reaper.touch(alive, TTL * 2));
        advance(TTL).await;
        assert_eq!(reaper.begin_deletions(), [silent]);
        assert!(!reaper.touch(silent, TTL), "renewed, although the claim may be deleted at any time");
        assert_eq!(
            reaper.begin_deletions(),
            [silent],
            "not overdue any more, although the deletion was not confirmed"
        );
        assert!(reaper.touch(alive, TTL));
        reaper.forget(silent);
        assert_eq!(reaper.begin_deletions(), []);
        assert!(reaper.touch(silent, TTL), "a claim that was forgotten cannot be added again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_forgotten_claim_is_not_overdue() {
        let (reaper, id) = (Reaper::new(), ClaimId::random());
        assert!(reaper.touch(id, TTL) && reaper.next_deadline().is_some());
        reaper.forget(id);
        assert!(reaper.next_deadline().is_none());
        advance(TTL).await;
        assert_eq!(reaper.begin_deletions(), []);
        assert!(reaper.touch(id, TTL));
        reaper.forget_all();
        assert!(reaper.next_deadline().is_none(), "a claim is left after the end of its session");
    }
}
