//! The keys that this client's claims hold: each is watched, so that a holder hears at once if its key is deleted. A few lines over the
//! usual length, with its tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use dlock_core::Kind;
use dlock_core::driver::{Seat, Seats};
use tokio::{sync::Notify, time::Instant};

/// The watches of held keys.
#[derive(Default)]
pub(crate) struct Held {
    all: Mutex<All>,
    /// Wakes the task that watches.
    stirred: Notify,
}

#[derive(Default)]
struct All {
    last: u64,
    open: BTreeMap<u64, One>,
    /// Those of `open` that are to be watched.
    come: BTreeSet<u64>,
    /// Those that nobody holds any more, and that may be watched.
    gone: BTreeSet<u64>,
}

struct One {
    key: String,
    /// The first revision to watch; zero for "from now".
    from: i64,
    state: State,
    since: Instant,
    /// Counts the watches.
    round: u64,
}

/// What is known of a key that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody watches it: the server must be asked.
    Unwatched,
    /// It is watched, but may have been deleted before: the server must be asked once.
    Unseen,
    /// It is watched since it was seen, and no deletion was heard of.
    Sound,
}

/// A claim's hold of a key, as long as it lives.
pub(crate) struct Hold {
    held: Arc<Held>,
    number: u64,
    seat: Seat,
}

/// What the task is to do about a key.
pub(crate) enum Order {
    Watch { number: u64, key: String, from: i64 },
    Leave { number: u64 },
}

impl Held {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Watches a key that was made at this revision, or seen.
    pub(crate) fn hold(self: &Arc<Self>, seats: &Seats, key: &str, revision: i64) -> Hold {
        let mut all = self.all();
        all.last += 1;
        let (number, is_first) = (all.last, all.come.is_empty());
        let one = One {
            key: key.to_owned(),
            from: revision + 1,
            state: State::Unwatched,
            since: Instant::now(),
            round: 0,
        };
        all.open.insert(number, one);
        all.come.insert(number);
        drop(all);
        if is_first {
            self.stirred.notify_one();
        }
        let seat = seats.join_without_subscription(event(number), None, Kind::Mutex);
        Hold { held: Arc::clone(self), number, seat }
    }

    /// Waits until there is something to [`take`](Self::take).
    ///
    /// # Cancel safety
    /// Safe: nothing is missed.
    pub(crate) async fn stirred(&self) {
        while !self.is_stirred() {
            self.stirred.notified().await;
        }
    }

    pub(crate) fn is_stirred(&self) -> bool {
        let all = self.all();
        !all.come.is_empty() || !all.gone.is_empty()
    }

    /// What to do. Keys that have not been held for so long yet stay for a later call.
    pub(crate) fn take(&self, settled: Duration) -> Vec<Order> {
        let mut all = self.all();
        let All { open, come, gone, .. } = &mut *all;
        let mut orders: Vec<_> =
            std::mem::take(gone).into_iter().map(|number| Order::Leave { number }).collect();
        let is_young = |number: &u64| open.get(number).is_some_and(|one| one.since.elapsed() < settled);
        let (young, old): (BTreeSet<_>, BTreeSet<_>) = std::mem::take(come).into_iter().partition(is_young);
        *come = young;
        orders.extend(old.into_iter().filter_map(|number| {
            let One { key, from, .. } = open.get(&number)?;
            Some(Order::Watch { number, key: key.clone(), from: *from })
        }));
        orders
    }

    /// The server, which is at this revision, watches the key from now on. If that begins in the past, a deletion since then is
    /// still to be heard of: the holder learns of it a moment later. If the server has not come so far, it is restored from a
    /// snapshot, and may not know the key.
    pub(crate) fn mark_heard(&self, number: u64, revision: i64) {
        if let Some(one) = self.all().open.get_mut(&number) {
            one.round += 1;
            let misses_nothing = one.from != 0 && one.from <= revision + 1;
            one.state = if misses_nothing { State::Sound } else { State::Unseen };
        }
    }

    /// The key was deleted.
    pub(crate) fn mark_deleted(&self, number: u64) {
        if let Some(one) = self.all().open.get_mut(&number) {
            one.state = State::Unwatched;
        }
    }

    /// The server does not watch this key any more. It is watched again.
    pub(crate) fn mark_missed(&self, number: u64) {
        let mut all = self.all();
        if let Some(one) = all.open.get_mut(&number) {
            // What has happened since is history, which may be compacted and long to read.
            (one.state, one.from) = (State::Unwatched, 0);
            all.come.insert(number);
        }
    }

    /// The server watches nothing any more. The next one may have another history, so no watch begins in the past.
    pub(crate) fn mark_all_missed(&self) {
        let mut all = self.all();
        all.gone.clear();
        let All { open, come, .. } = &mut *all;
        for (number, one) in open {
            (one.state, one.from) = (State::Unwatched, 0);
            come.insert(*number);
        }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The event that rings the seat of a hold. No key has it: names have no control characters.
pub(crate) fn event(number: u64) -> String {
    format!("\0{number}")
}

impl Hold {
    /// Ends when the key may be gone.
    pub(crate) async fn changed(&self) {
        self.seat.notified().await;
    }

    /// Whether the key is certainly there without asking the server.
    pub(crate) fn is_sound(&self) -> bool {
        self.held.all().open.get(&self.number).is_some_and(|one| one.state == State::Sound)
    }

    /// The watch that stands, if the key is [sound](Self::is_sound) once it is [seen](Self::note_seen).
    pub(crate) fn unseen(&self) -> Option<u64> {
        let all = self.held.all();
        all.open.get(&self.number).filter(|one| one.state == State::Unseen).map(|one| one.round)
    }

    /// The key was seen in the server after this watch stood. If another one has taken its place meanwhile, the key may have been
    /// deleted in between.
    pub(crate) fn note_seen(&self, round: u64) {
        if let Some(one) = self.held.all().open.get_mut(&self.number)
            && (one.state, one.round) == (State::Unseen, round)
        {
            one.state = State::Sound;
        }
    }

    /// Forgets earlier wake-ups: the claim asks the server now.
    pub(crate) fn clear(&self) {
        self.seat.clear();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut all = self.held.all();
        all.open.remove(&self.number);
        // One that was not taken yet was never watched.
        if !all.come.remove(&self.number) {
            let is_first = all.gone.is_empty();
            all.gone.insert(self.number);
            drop(all);
            if is_first {
                self.held.stirred.notify_one();
            }
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({} keys)", self.all().open.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_seen_before_its_watch_broke_must_be_seen_again() {
        let (held, seats) = (Arc::new(Held::new()), Seats::without_source());
        let hold = held.hold(&seats, "a/1", 7);
        let [Order::Watch { number, from: 8, .. }] = held.take(Duration::ZERO)[..] else {
            panic!("it is to be watched")
        };
        held.mark_heard(number, 9);
        assert!(hold.is_sound(), "a watch from its beginning misses nothing");
        held.mark_all_missed();
        held.mark_heard(number, 9);
        let asked = hold.unseen().expect("it may have been deleted in between");
        // The answer comes after another watch has begun.
        held.mark_missed(number);
        held.mark_heard(number, 9);
        hold.note_seen(asked);
        assert!(!hold.is_sound(), "it may have been deleted between the two watches");
        hold.note_seen(hold.unseen().expect("still to be seen"));
        assert!(hold.is_sound());
    }
    #[test]
    fn a_server_that_was_restored_must_be_asked() {
        let (held, seats) = (Arc::new(Held::new()), Seats::without_source());
        let hold = held.hold(&seats, "a/1", 7);
        // Its watch is not asked for yet when the stream breaks.
        held.mark_all_missed();
        let [Order::Watch { from: 0, .. }] = held.take(Duration::ZERO)[..] else {
            panic!("a watch from a revision that has another meaning now")
        };
        let other = held.hold(&seats, "b/1", 8);
        let [Order::Watch { number, from: 9, .. }] = held.take(Duration::ZERO)[..] else {
            panic!("it is to be watched")
        };
        held.mark_heard(number, 7);
        assert!(!other.is_sound(), "the server does not know the revision at which the key was made");
        drop((hold, other));
    }
}
