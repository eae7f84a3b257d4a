//! The keys that a client's claims hold. Each is watched, so that its holder is notified at once if
//! the key is deleted.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use dlock_core::Kind;
use dlock_core::driver::{Seat, Seats};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

/// The keys that a client's claims hold, and the state of their watches.
#[derive(Default)]
pub(crate) struct HeldKeys {
    entries: Mutex<Entries>,
    /// Wakes the pump if there are watches to start or to stop.
    change: Notify,
}

#[derive(Default)]
struct Entries {
    last_number: u64,
    /// Held keys, by number.
    held: BTreeMap<u64, Entry>,
    /// Numbers among `held` whose watch has to be started.
    to_watch: BTreeSet<u64>,
    /// Numbers of keys that are no longer held and may still be watched.
    to_unwatch: BTreeSet<u64>,
}

struct Entry {
    key: String,
    /// First revision to watch. Zero means from now on.
    first_revision: i64,
    state: State,
    held_since: Instant,
    /// Number of watches that the server has started for the key.
    watches: u64,
}

/// Knowledge of whether a held key exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No watch is active. Only a request can tell whether the key exists.
    Unwatched,
    /// A watch is active, but the key may have been deleted before it started. One read is
    /// necessary.
    Unverified,
    /// A watch has been active since the key was last known to exist, and has reported no deletion.
    Exists,
}

/// A claim's registration of its held key. Dropping it ends the watch.
pub(crate) struct HeldKey {
    held_keys: Arc<HeldKeys>,
    number: u64,
    seat: Seat,
}

/// A change of the watches, for the pump.
pub(super) enum Change {
    Watch { number: u64, key: String, first_revision: i64 },
    Unwatch { number: u64 },
}

impl HeldKeys {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Registers a key that was created at `revision`, or that existed at it.
    pub(crate) fn add(self: &Arc<Self>, seats: &Seats, key: &str, revision: i64) -> HeldKey {
        let mut entries = self.entries.lock();
        entries.last_number += 1;
        let (number, is_first) = (entries.last_number, entries.to_watch.is_empty());
        let entry = Entry {
            key: key.to_owned(),
            first_revision: revision + 1,
            state: State::Unwatched,
            held_since: Instant::now(),
            watches: 0,
        };
        entries.held.insert(number, entry);
        entries.to_watch.insert(number);
        drop(entries);
        if is_first {
            self.change.notify_one();
        }
        let seat = seats.join_without_subscription(event(number), None, Kind::Mutex);
        HeldKey { held_keys: Arc::clone(self), number, seat }
    }

    /// Waits until there are changes to [take](Self::take_changes).
    ///
    /// # Cancel safety
    /// Safe. No change is missed.
    pub(super) async fn changed(&self) {
        while !self.has_changes() {
            self.change.notified().await;
        }
    }

    /// Returns whether there are changes to [take](Self::take_changes).
    pub(super) fn has_changes(&self) -> bool {
        let entries = self.entries.lock();
        !entries.to_watch.is_empty() || !entries.to_unwatch.is_empty()
    }

    /// Returns the changes to make. A key that has been held for less than `min_age` stays for a
    /// later call.
    pub(super) fn take_changes(&self, min_age: Duration) -> Vec<Change> {
        let mut entries = self.entries.lock();
        let Entries { held, to_watch, to_unwatch, .. } = &mut *entries;
        let mut changes: Vec<_> =
            std::mem::take(to_unwatch).into_iter().map(|number| Change::Unwatch { number }).collect();
        let is_young =
            |number: &u64| held.get(number).is_some_and(|entry| entry.held_since.elapsed() < min_age);
        let (young, old): (BTreeSet<_>, BTreeSet<_>) =
            std::mem::take(to_watch).into_iter().partition(is_young);
        *to_watch = young;
        changes.extend(old.into_iter().filter_map(|number| {
            let Entry { key, first_revision, .. } = held.get(&number)?;
            Some(Change::Watch { number, key: key.clone(), first_revision: *first_revision })
        }));
        changes
    }

    /// Records that the server, which is at `revision`, has started the watch of a key.
    ///
    /// If the watch begins in the past, a message about an earlier deletion follows, and the holder
    /// is notified then. If the server has not reached the first revision, it was restored from a
    /// snapshot that may lack the key.
    pub(super) fn mark_watched(&self, number: u64, revision: i64) {
        if let Some(entry) = self.entries.lock().held.get_mut(&number) {
            entry.watches += 1;
            let misses_nothing = entry.first_revision != 0 && entry.first_revision <= revision + 1;
            entry.state = if misses_nothing { State::Exists } else { State::Unverified };
        }
    }

    /// Records that the key was deleted.
    pub(super) fn mark_deleted(&self, number: u64) {
        if let Some(entry) = self.entries.lock().held.get_mut(&number) {
            entry.state = State::Unwatched;
        }
    }

    /// Records that the server has stopped the watch of a key. The key will be watched again.
    pub(super) fn mark_unwatched(&self, number: u64) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.held.get_mut(&number) {
            // The new watch begins at the present, because the history may be compacted, and long
            // to read.
            (entry.state, entry.first_revision) = (State::Unwatched, 0);
            entries.to_watch.insert(number);
        }
    }

    /// Records that all watches have ended. The next server may have another history, so no new
    /// watch begins in the past.
    pub(super) fn mark_all_unwatched(&self) {
        let mut entries = self.entries.lock();
        entries.to_unwatch.clear();
        let Entries { held, to_watch, .. } = &mut *entries;
        for (number, entry) in held {
            (entry.state, entry.first_revision) = (State::Unwatched, 0);
            to_watch.insert(*number);
        }
    }
}

/// Returns the event that wakes the holder of a key. No key equals it, because names contain no
/// control characters.
pub(super) fn event(number: u64) -> String {
    format!("\0{number}")
}

impl HeldKey {
    /// Waits until the key may have been deleted.
    pub(crate) async fn changed(&self) {
        self.seat.notified().await;
    }

    /// Returns whether the key is known to exist without a request.
    pub(crate) fn exists(&self) -> bool {
        self.held_keys.entries.lock().held.get(&self.number).is_some_and(|entry| entry.state == State::Exists)
    }

    /// Returns the number of the active watch, if a read must still verify that the key
    /// [exists](Self::exists). Pass the number to [`note_read`](Self::note_read) after that read.
    pub(crate) fn unverified_watch(&self) -> Option<u64> {
        let entries = self.held_keys.entries.lock();
        entries
            .held
            .get(&self.number)
            .filter(|entry| entry.state == State::Unverified)
            .map(|entry| entry.watches)
    }

    /// Records that a read has found the key after this watch had started. If another watch has
    /// replaced it, the key may have been deleted between the two, and the read proves nothing.
    pub(crate) fn note_read(&self, watch: u64) {
        if let Some(entry) = self.held_keys.entries.lock().held.get_mut(&self.number)
            && (entry.state, entry.watches) == (State::Unverified, watch)
        {
            entry.state = State::Exists;
        }
    }

    /// Forgets earlier notifications. Call it before the claim sends a request.
    pub(crate) fn clear(&self) {
        self.seat.clear();
    }
}

impl Drop for HeldKey {
    fn drop(&mut self) {
        let mut entries = self.held_keys.entries.lock();
        entries.held.remove(&self.number);
        // A key that the pump has not taken yet was never watched.
        if !entries.to_watch.remove(&self.number) {
            let is_first = entries.to_unwatch.is_empty();
            entries.to_unwatch.insert(self.number);
            drop(entries);
            if is_first {
                self.held_keys.change.notify_one();
            }
        }
    }
}

impl fmt::Debug for HeldKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeldKeys({} keys)", self.entries.lock().held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_read_before_its_watch_broke_must_be_read_again() {
        let (held_keys, seats) = (Arc::new(HeldKeys::new()), Seats::without_source());
        let held = held_keys.add(&seats, "a/1", 7);
        let [Change::Watch { number, first_revision: 8, .. }] = held_keys.take_changes(Duration::ZERO)[..]
        else {
            panic!("the key is not watched from its creation on")
        };
        held_keys.mark_watched(number, 9);
        assert!(held.exists(), "a watch from the key's creation on misses nothing");
        held_keys.mark_all_unwatched();
        held_keys.mark_watched(number, 9);
        let first_watch = held.unverified_watch().expect("a deletion between the watches is possible");
        // The reply arrives after another watch has started.
        held_keys.mark_unwatched(number);
        held_keys.mark_watched(number, 9);
        held.note_read(first_watch);
        assert!(!held.exists(), "the key may have been deleted between the two watches");
        held.note_read(held.unverified_watch().expect("a read is still necessary"));
        assert!(held.exists());
    }

    #[test]
    fn a_key_on_a_restored_server_must_be_read() {
        let (held_keys, seats) = (Arc::new(HeldKeys::new()), Seats::without_source());
        let held = held_keys.add(&seats, "a/1", 7);
        // The stream breaks before the watch is requested.
        held_keys.mark_all_unwatched();
        let [Change::Watch { first_revision: 0, .. }] = held_keys.take_changes(Duration::ZERO)[..] else {
            panic!("the watch begins at a revision of another history")
        };
        let other = held_keys.add(&seats, "b/1", 8);
        let [Change::Watch { number, first_revision: 9, .. }] = held_keys.take_changes(Duration::ZERO)[..]
        else {
            panic!("the key is not watched from its creation on")
        };
        held_keys.mark_watched(number, 7);
        assert!(!other.exists(), "the server has not reached the revision that created the key");
        drop((held, other));
    }
}
