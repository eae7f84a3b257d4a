//! The client's snapshot of the queue of one name. All claims of the client that wait there share
//! it.
//!
//! To find the claim directly ahead of another one, a server reads and sorts all keys of the name.
//! For a single waiter that is one cheap request. For five thousand waiters of one client it would
//! be five thousand sorts of five thousand keys, and as many for the hand-offs. Therefore claims
//! that read their position at the same time share a read of the whole queue, and find the claim
//! ahead in the reply. A reply contains all claims ahead of a claim if the read was sent after the
//! claim's key was created, because no key ever appears ahead of an existing one.
//!
//! Afterwards a claim only checks whether the nearest keys still exist, at a cost that does not
//! depend on the length of the queue. Keys that were deleted are removed from the snapshot.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use dlock_core::{
    Result,
    driver::{SharedError, SharedRead},
};
use etcd_client::{GetOptions, KeyValue};
use parking_lot::Mutex;

use crate::{connection::Connection, error::STORE};

/// Create revision and key of a claim, in the order of the queue. Keys of other programs need not
/// be text.
pub(crate) type Place = (i64, Vec<u8>);

/// The queue of one name, as the client last read it.
pub(crate) struct Queue {
    /// Prefix of the keys of the name's claims.
    prefix: String,
    reads: SharedRead<Result<Arc<[Place]>, SharedError>>,
    snapshot: Mutex<Snapshot>,
    /// Number of claims that are reading their position.
    readers: AtomicUsize,
}

/// A claim that is reading its position, until this is dropped.
pub(crate) struct Reader(Arc<Queue>);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Relaxed);
    }
}

#[derive(Default)]
struct Snapshot {
    /// Number of the read. Zero if there was none.
    read: u64,
    /// The keys, without those whose deletion was noticed since.
    places: BTreeSet<Place>,
}

impl Queue {
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            reads: SharedRead::new(),
            snapshot: Mutex::default(),
            readers: AtomicUsize::new(0),
        }
    }

    /// Counts a claim that is reading its position. Also returns whether others are.
    pub(crate) fn enter(self: &Arc<Self>) -> (Reader, bool) {
        let others = self.readers.fetch_add(1, Relaxed);
        (Reader(Arc::clone(self)), others > 0)
    }

    /// Returns the number of reads sent so far. A read with a greater number contains every key
    /// that exists now.
    pub(crate) fn reads_sent(&self) -> u64 {
        self.reads.sent()
    }

    /// Returns whether the snapshot comes from a read with a number greater than `reads`.
    pub(crate) fn is_read_after(&self, reads: u64) -> bool {
        self.snapshot.lock().read > reads
    }

    /// Waits until the snapshot comes from a read with a number greater than `reads`. Callers that
    /// arrive while a read is in flight share the next one.
    pub(crate) async fn ensure_read_after(&self, connection: &Arc<Connection>, reads: u64) -> Result<()> {
        while !self.is_read_after(reads) {
            let read = || {
                let (connection, prefix) = (Arc::clone(connection), self.prefix.clone());
                Box::pin(async move { read_places(&connection, &prefix).await }) as _
            };
            let (number, places) = self.reads.join(read).await;
            match places {
                Ok(places) => self.store(number, &places),
                Err(error) if number > reads => return Err(error.error()),
                // The caller needs a later read in any case.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Makes the reply to a read the snapshot, unless the snapshot is newer.
    fn store(&self, read: u64, places: &[Place]) {
        let mut snapshot = self.snapshot.lock();
        if snapshot.read < read {
            *snapshot = Snapshot { read, places: places.iter().cloned().collect() };
        }
    }

    /// Returns at most `count` places ahead of the key that was created at `revision`, the nearest
    /// first.
    pub(crate) fn nearest_ahead(&self, revision: i64, count: usize) -> Vec<Place> {
        self.snapshot.lock().places.range(..(revision, Vec::new())).rev().take(count).cloned().collect()
    }

    /// Returns whether the snapshot contains this key.
    pub(crate) fn contains(&self, place: &Place) -> bool {
        self.snapshot.lock().places.contains(place)
    }

    /// Removes a deleted key from the snapshot.
    pub(crate) fn note_deleted(&self, place: &Place) {
        self.snapshot.lock().places.remove(place);
    }

    /// Removes all keys ahead of the claim that was created at `revision` and holds the lock now.
    pub(crate) fn note_granted(&self, revision: i64) {
        let mut snapshot = self.snapshot.lock();
        let behind = snapshot.places.split_off(&(revision, Vec::new()));
        snapshot.places = behind;
    }
}

/// Reads the keys of all claims of a name.
async fn read_places(connection: &Connection, prefix: &str) -> Result<Arc<[Place]>, SharedError> {
    let keys_only = GetOptions::new().with_prefix().with_keys_only();
    let reply = connection.get(prefix.as_bytes(), keys_only).await.map_err(|error| STORE.share(&error))?;
    let place = |key: &KeyValue| (key.create_revision(), key.key().to_vec());
    Ok(reply.kvs().iter().map(place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(revision: i64) -> Place {
        (revision, format!("x/{revision}").into_bytes())
    }

    #[test]
    fn the_place_ahead_is_the_next_older_one_that_was_not_deleted() {
        let queue = Queue::new("x/");
        queue.store(1, &[place(7), place(3), place(5)]);
        assert_eq!(queue.nearest_ahead(7, 1), [place(5)]);
        assert_eq!(queue.nearest_ahead(8, 2), [place(7), place(5)]);
        queue.note_deleted(&place(5));
        assert_eq!(queue.nearest_ahead(7, 2), [place(3)]);
        assert_eq!(queue.nearest_ahead(3, 1), []);
        assert!(queue.contains(&place(3)) && !queue.contains(&place(5)));
        queue.note_granted(7);
        assert_eq!(queue.nearest_ahead(8, 2), [place(7)]);
    }

    #[test]
    fn an_older_read_that_arrives_late_is_ignored() {
        let queue = Queue::new("x/");
        queue.store(2, &[place(3)]);
        queue.store(1, &[place(1), place(3)]);
        assert_eq!(queue.nearest_ahead(3, 1), []);
        assert!(queue.is_read_after(1) && !queue.is_read_after(2));
    }
}
