//! Limits on the bytes of paths that a session has at the servers.
//!
//! Two limits apply. First, the end of a session is one transaction with the paths of all its
//! ephemeral nodes. A server does not start if its log has a transaction of more than twice
//! `jute.maxbuffer` (1 MiB by default). Second, the crate `zookeeper-client` sends the watched
//! paths again after a reconnect. It splits more than 128 KiB of them into several requests with
//! the same number, and treats the second reply as a broken connection. The constants below keep
//! the claims and watches of a session within these limits.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use dlock_core::ClaimId;
use parking_lot::Mutex;

/// Maximum bytes of the paths of ephemeral nodes in a session.
const MAX_EPHEMERAL_BYTES: usize = 100 * 1024;

/// Maximum bytes of the paths that a session watches. Greater than
/// [`MAX_EPHEMERAL_BYTES`], because a claim usually watches one node, either the one ahead of it or
/// its own. Only permits watch more.
const MAX_WATCHED_BYTES: usize = 116 * 1024;

/// Bytes of paths that one session has in use.
#[derive(Default)]
pub(crate) struct Paths(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    claims: HashMap<ClaimId, usize>,
    ephemeral_bytes: usize,
    /// Number of watches on each path. The server and `zookeeper-client` count each path once.
    watched_paths: HashMap<Arc<str>, usize>,
    watched_bytes: usize,
}

impl Paths {
    /// Reserves room for a claim's node, whose path has at most `bytes` bytes. Returns `false` if
    /// the session has no room. A claim that already has room keeps it.
    pub(crate) fn reserve(&self, id: ClaimId, bytes: usize) -> bool {
        let mut counts = self.0.lock();
        let ephemeral_bytes = counts.ephemeral_bytes + bytes;
        let is_alone = counts.claims.is_empty();
        match counts.claims.entry(id) {
            Entry::Occupied(_) => true,
            Entry::Vacant(_) if ephemeral_bytes > MAX_EPHEMERAL_BYTES && !is_alone => false,
            Entry::Vacant(entry) => {
                entry.insert(bytes);
                counts.ephemeral_bytes = ephemeral_bytes;
                true
            }
        }
    }

    /// Frees the room of a claim whose node was deleted.
    pub(super) fn free(&self, id: ClaimId) {
        let mut counts = self.0.lock();
        if let Some(bytes) = counts.claims.remove(&id) {
            counts.ephemeral_bytes -= bytes;
        }
    }

    /// Reserves room for a watch on `path`. Returns `None` if the session has no room.
    pub(crate) fn watch(self: &Arc<Self>, path: &str) -> Option<WatchedPath> {
        let mut counts = self.0.lock();
        let path = match counts.watched_paths.get_key_value(path) {
            Some((path, _)) => Arc::clone(path),
            None if counts.watched_bytes + path.len() > MAX_WATCHED_BYTES => return None,
            None => {
                counts.watched_bytes += path.len();
                path.into()
            }
        };
        *counts.watched_paths.entry(Arc::clone(&path)).or_default() += 1;
        drop(counts);
        Some(WatchedPath { paths: Arc::clone(self), path })
    }
}

/// Room that a session has reserved for a watch. Dropping it frees the room.
pub(crate) struct WatchedPath {
    paths: Arc<Paths>,
    path: Arc<str>,
}

impl Drop for WatchedPath {
    fn drop(&mut self) {
        let mut counts = self.paths.0.lock();
        let Some(count) = counts.watched_paths.get_mut(&self.path) else { return };
        *count -= 1;
        if *count == 0 {
            counts.watched_paths.remove(&self.path);
            counts.watched_bytes -= self.path.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_room_for_a_hundred_kibibytes_of_nodes() {
        let (paths, first) = (Paths::default(), ClaimId::random());
        assert!(paths.reserve(first, 1024) && paths.reserve(first, 1024), "a claim reserves its room once");
        for _ in 1..100 {
            assert!(paths.reserve(ClaimId::random(), 1024));
        }
        assert!(!paths.reserve(ClaimId::random(), 1));
        paths.free(first);
        assert!(paths.reserve(ClaimId::random(), 1024) && !paths.reserve(first, 1));
        assert!(Paths::default().reserve(first, 1 << 20), "a single claim always fits");
    }

    #[test]
    fn a_path_that_is_watched_twice_counts_once() {
        let (paths, long) = (Arc::new(Paths::default()), "x".repeat(MAX_WATCHED_BYTES));
        let watches = [paths.watch(&long), paths.watch(&long)];
        assert!(watches.iter().all(Option::is_some) && paths.watch("y").is_none());
        drop(watches);
        assert!(paths.watch("y").is_some());
    }
}
