//! The reaper: finds claims that are past their ttl in a store that would keep them for as long as the client's session
//! lives.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{ClaimId, Moment};

/// Gives claims a ttl of their own in a store that has only sessions ([`Info::session`](super::Info::session)): an ephemeral
/// node, a key under a client's lease, a lock of a connection. There a claim whose keeper fell silent, or whose release
/// was never confirmed, would stay until the whole client dies.
///
/// A driver has one for each session. Each `attempt` and `renew` calls [`touch`](Self::touch) before it asks the store, and
/// again when the claim holds or waits; `release` calls [`forget`](Self::forget) when it is confirmed. A task of the
/// session deletes the claims that are [`overdue`](Self::overdue), calls [`forget`](Self::forget) when the store has
/// confirmed that, and looks again at the time [`next`](Self::next). A forgotten claim takes no memory.
#[derive(Default)]
pub struct Reaper(Mutex<HashMap<ClaimId, Deadline>>);

#[derive(Clone, Copy)]
enum Deadline {
    At(Moment),
    /// The ttl has passed, and the claim is being deleted.
    Passed,
}

impl Reaper {
    /// A reaper that knows no claim.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes a sign of life: the claim is overdue a ttl from now. `false` if the claim is being deleted already, which
    /// cannot be stopped. The driver's `renew` then answers [`Lost`](super::Renewal::Lost), and its `attempt` a transient
    /// error until the claim is forgotten.
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

    /// Forgets a claim that is no longer in the store.
    pub fn forget(&self, id: ClaimId) {
        self.claims().remove(&id);
    }

    /// Forgets all claims, because the session is over and the store has removed them.
    pub fn forget_all(&self) {
        self.claims().clear();
    }

    /// The claims to delete now. From this call on [`touch`](Self::touch) refuses them. They are listed again until they are
    /// forgotten.
    pub fn overdue(&self) -> Vec<ClaimId> {
        let mut claims = self.claims();
        let overdue = claims.iter_mut().filter_map(|(id, deadline)| {
            if matches!(deadline, Deadline::At(at) if at.has_passed()) {
                *deadline = Deadline::Passed;
            }
            matches!(deadline, Deadline::Passed).then_some(*id)
        });
        overdue.collect()
    }

    /// When the next claim will be overdue, unless there is a sign of life before. `None` if all claims are overdue
    /// already, or there are none.
    pub fn next(&self) -> Option<Moment> {
        let claims = self.claims();
        let deadlines = claims.values().filter_map(|deadline| match deadline {
            Deadline::At(at) => Some(*at),
            Deadline::Passed => None,
        });
        deadlines.min_by_key(|at| at.remaining())
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<ClaimId, Deadline>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    async fn a_claim_that_is_heard_of_is_never_overdue() {
        let (reaper, id) = (Reaper::new(), ClaimId::random());
        for _ in 0..10 {
            assert!(reaper.touch(id, TTL));
            advance(TTL - S).await;
            assert_eq!(reaper.overdue(), []);
        }
        assert!(reaper.next().is_some_and(|at| at.remaining() <= S));
        assert_eq!(format!("{reaper:?}"), "Reaper(1 claims)");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_claim_is_overdue_until_it_is_forgotten_and_never_confirmed_meanwhile() {
        let (reaper, silent, alive) = (Reaper::new(), ClaimId::random(), ClaimId::random());
        assert!(reaper.touch(silent, TTL) && reaper.touch(alive, TTL * 2));
        advance(TTL).await;
        assert_eq!(reaper.overdue(), [silent]);
        assert!(!reaper.touch(silent, TTL), "renewed, and the deletion of the claim may be on its way");
        assert_eq!(reaper.overdue(), [silent], "not overdue any more, and nobody has confirmed the deletion");
        assert!(reaper.touch(alive, TTL));
        reaper.forget(silent);
        assert_eq!(reaper.overdue(), []);
        assert!(reaper.touch(silent, TTL), "a claim that was forgotten cannot join again");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_forgotten_is_not_overdue() {
        let (reaper, id) = (Reaper::new(), ClaimId::random());
        assert!(reaper.touch(id, TTL) && reaper.next().is_some());
        reaper.forget(id);
        assert!(reaper.next().is_none());
        advance(TTL).await;
        assert_eq!(reaper.overdue(), []);
        assert!(reaper.touch(id, TTL));
        reaper.forget_all();
        assert!(reaper.next().is_none(), "a claim is left after the end of its session");
    }
}
