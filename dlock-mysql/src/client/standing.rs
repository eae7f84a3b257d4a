//! When each hold of a client was renewed last. So a call that renews some also renews those that are due next, and ten thousand
//! holds that began at different times do not need a call each time that one of them is due.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use dlock_core::{ClaimId, driver::Moment};
use tokio::{sync::Semaphore, time::timeout};

/// The holds that were renewed once at least: holds that nobody renews, such as leases, are none of them.
#[derive(Default)]
pub(crate) struct Standing(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    of: HashMap<ClaimId, One>,
    /// The holds of each ttl that are in no call, the one first that was renewed longest ago.
    by_age: HashMap<Duration, BTreeMap<u64, ClaimId>>,
    /// The holds that a call renews with others, until it ends. It is closed then.
    carried: HashMap<ClaimId, Arc<Semaphore>>,
    renewals: u64,
}

/// A call under way that renews some holds with others.
pub(super) struct Carrier<'a> {
    standing: &'a Standing,
    pub(super) ids: Vec<ClaimId>,
    ends: Arc<Semaphore>,
}

impl Drop for Carrier<'_> {
    fn drop(&mut self) {
        let mut inner = self.standing.inner();
        for id in &self.ids {
            if inner.carried.get(id).is_some_and(|call| Arc::ptr_eq(call, &self.ends)) {
                inner.carried.remove(id);
            }
        }
        drop(inner);
        self.ends.close();
    }
}

#[derive(Clone, Copy)]
struct One {
    ttl: Duration,
    place: u64,
    /// When the call was sent that renewed it.
    sent: Moment,
    /// When its own keeper last asked for a renewal. A hold whose keeper cannot run must expire.
    asked: Moment,
    /// Whether it was renewed with others, and its keeper has not been told yet.
    is_news: bool,
}

/// The part of its ttl for which a hold that was renewed with others need not be renewed again.
const FRESH: u32 = 4;

/// The part of its ttl for which a hold's keeper waits for a call that renews the hold with others.
const PATIENCE: u32 = 12;

impl Standing {
    /// The keeper of a hold was told that it was renewed.
    pub(crate) fn note(&self, id: ClaimId, ttl: Duration, sent: Moment) {
        self.inner().note(id, ttl, sent, Moment::now(), false);
    }

    /// Holds were renewed with others. Those that have ended meanwhile stay forgotten.
    pub(super) fn note_others<'a>(&self, ids: impl IntoIterator<Item = &'a ClaimId>, sent: Moment) {
        let mut inner = self.inner();
        for id in ids {
            if let Some(One { ttl, asked, .. }) = inner.of.get(id).copied() {
                inner.note(*id, ttl, sent, asked, true);
            }
        }
    }

    /// The hold has ended, or its keeper has.
    pub(crate) fn forget(&self, id: ClaimId) {
        self.inner().forget(id);
    }

    /// As [`take_news`](Self::take_news). If a call is under way that renews the hold with others, waits a part of its ttl for that:
    /// the server would leave the hold out of a second call.
    pub(crate) async fn news(&self, id: ClaimId, ttl: Duration) -> Option<Duration> {
        let carried = self.inner().carried.get(&id).cloned();
        if let Some(call) = carried {
            // It is closed, or slow: neither is an answer yet.
            timeout(ttl / PATIENCE, call.acquire()).await.ok();
        }
        self.take_news(id)
    }

    /// How long ago the hold was renewed with others, if that was a moment ago. Says so once: a keeper that asks again may have
    /// been told that its hold is gone.
    fn take_news(&self, id: ClaimId) -> Option<Duration> {
        let mut inner = self.inner();
        let one = inner.of.get_mut(&id)?;
        one.asked = Moment::now();
        let age = one.sent.elapsed();
        (std::mem::take(&mut one.is_news) && age < one.ttl / FRESH).then_some(age)
    }

    /// A call is sent that renews these holds. Up to so many others with this ttl that will be due next and are in no call yet: it
    /// renews them too.
    pub(super) fn due_with(&self, ids: &[ClaimId], ttl: Duration, count: usize) -> Carrier<'_> {
        let ends = Arc::new(Semaphore::new(0));
        let ids = self.due(ids, ttl, count, &ends);
        Carrier { standing: self, ids, ends }
    }

    fn due(&self, ids: &[ClaimId], ttl: Duration, count: usize, call: &Arc<Semaphore>) -> Vec<ClaimId> {
        let mut inner = self.inner();
        ids.iter().for_each(|id| inner.set_aside(*id));
        let Some(by_age) = inner.by_age.get(&ttl) else { return Vec::new() };
        let is_fresh = |id: &ClaimId| inner.of.get(id).is_none_or(|one| one.sent.elapsed() < ttl / FRESH);
        let has_keeper = |id: &ClaimId| inner.of.get(id).is_some_and(|one| one.asked.elapsed() < ttl);
        let stale = by_age.values().copied().take_while(|id| !is_fresh(id));
        let due: Vec<_> = stale.filter(has_keeper).take(count).collect();
        for id in &due {
            inner.set_aside(*id);
            inner.carried.insert(*id, Arc::clone(call));
        }
        due
    }

    /// The call that was to renew these holds has failed.
    pub(super) fn unanswered(&self, ids: &[ClaimId]) {
        let mut inner = self.inner();
        for id in ids {
            if let Some(One { ttl, place, .. }) = inner.of.get(id).copied() {
                inner.by_age.entry(ttl).or_default().insert(place, *id);
            }
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn note(&mut self, id: ClaimId, ttl: Duration, sent: Moment, asked: Moment, is_news: bool) {
        self.forget(id);
        self.renewals += 1;
        let place = self.renewals;
        self.of.insert(id, One { ttl, place, sent, asked, is_news });
        self.by_age.entry(ttl).or_default().insert(place, id);
    }

    fn forget(&mut self, id: ClaimId) {
        self.set_aside(id);
        self.of.remove(&id);
    }

    /// Takes a hold out of those that are in no call.
    fn set_aside(&mut self, id: ClaimId) {
        let Some(one) = self.of.get(&id) else { return };
        if let Some(by_age) = self.by_age.get_mut(&one.ttl) {
            by_age.remove(&one.place);
            if by_age.is_empty() {
                self.by_age.remove(&one.ttl);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(6);

    #[tokio::test(start_paused = true)]
    async fn those_that_were_renewed_longest_ago_are_due_next_and_fresh_ones_are_not() {
        let (standing, ids) = (Standing::default(), [0; 4].map(|_| ClaimId::random()));
        for id in ids {
            standing.note(id, TTL, Moment::now());
            tokio::time::advance(Duration::from_millis(800)).await;
        }
        standing.forget(ids[1]);
        assert_eq!(
            standing.due_with(&ids[..1], TTL, 9).ids,
            [ids[2]],
            "the first asks itself, the last is fresh"
        );
        assert!(standing.due_with(&[], TTL, 9).ids.is_empty(), "both are in a call");
        standing.unanswered(&ids[..1]);
        assert_eq!(standing.due_with(&[], TTL, 9).ids, [ids[0]], "its call has failed");
        standing.note_others(&[ids[1], ids[2]], Moment::now());
        assert!(standing.take_news(ids[1]).is_none(), "it has ended");
        assert!(standing.take_news(ids[2]).is_some(), "it was renewed with another");
        assert!(standing.take_news(ids[2]).is_none(), "its keeper knows, and asks for something newer");
        assert!(standing.take_news(ids[3]).is_none(), "its keeper renewed it itself");
        assert!(standing.due_with(&[], TTL * 2, 9).ids.is_empty(), "another ttl");
        ids.iter().for_each(|id| standing.forget(*id));
        assert!(standing.inner().by_age.is_empty(), "something is left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_whose_keeper_does_not_ask_is_not_carried() {
        let (standing, id) = (Standing::default(), ClaimId::random());
        standing.note(id, TTL, Moment::now());
        tokio::time::advance(TTL / 2).await;
        assert_eq!(standing.due_with(&[], TTL, 9).ids, [id], "its keeper asked within its ttl");
        standing.note_others(&[id], Moment::now());
        tokio::time::advance(TTL / 2).await;
        assert!(standing.due_with(&[], TTL, 9).ids.is_empty(), "it would never expire");
        standing.take_news(id);
        assert_eq!(standing.due_with(&[], TTL, 9).ids, [id], "its keeper has asked again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_keeper_waits_for_the_call_that_renews_its_hold_with_others() {
        let (standing, id) = (Standing::default(), ClaimId::random());
        standing.note(id, TTL, Moment::now());
        tokio::time::advance(TTL / 3).await;
        let (call, sent) = (standing.due_with(&[], TTL, 9), Moment::now());
        assert_eq!(call.ids, [id]);
        let answers = async {
            tokio::time::sleep(TTL / 20).await;
            standing.note_others(&call.ids, sent);
            drop(call);
        };
        let (news, ()) = tokio::join!(standing.news(id, TTL), answers);
        assert_eq!(news, Some(TTL / 20), "it was renewed when the call was sent");
        tokio::time::advance(TTL / 3).await;
        let call = standing.due_with(&[], TTL, 9);
        assert_eq!(standing.news(id, TTL).await, None, "the call takes too long");
        drop(call);
        assert!(standing.inner().carried.is_empty(), "something is left");
    }
}
