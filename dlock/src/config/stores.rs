//! The connected stores of a configuration, and the choice of the store of a lock.

use std::collections::BTreeMap;

use dlock_core::{Election, FairMutex, Locks, Mutex, RwPair, Semaphore};
use wildmatch::WildMatch;

/// The connected stores of a configuration. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stores {
    pub(super) default: String,
    pub(super) stores: BTreeMap<String, Locks>,
    pub(super) rules: Vec<(WildMatch, Locks)>,
}

/// Each method with the name of a lock chooses the store by the first rule that matches the name,
/// and applies the options of that rule. A lock without a rule is in the default store.
impl Stores {
    /// Returns an exclusive lock. The store chooses the next holder. This is the cheapest kind.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        self.of(name.as_ref()).mutex(name)
    }

    /// Returns an exclusive lock that is granted in order of arrival.
    pub fn fair(&self, name: impl AsRef<str>) -> FairMutex {
        self.of(name.as_ref()).fair(name)
    }

    /// Returns a read/write lock.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwPair {
        self.of(name.as_ref()).rwlock(name)
    }

    /// Returns a semaphore with at most `limit` holders at one time, in order of arrival.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore {
        self.of(name.as_ref()).semaphore(name, limit)
    }

    /// Returns the election of a leader.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        self.of(name.as_ref()).election(name)
    }

    /// Returns the client for the lock `name`, with the options of its rule. Use it for this lock
    /// only, because another name may have another rule.
    pub fn of(&self, name: &str) -> &Locks {
        let by_rule = self.rules.iter().find(|(glob, _)| glob.matches(name)).map(|(_, locks)| locks);
        by_rule.unwrap_or_else(|| &self.stores[&self.default])
    }

    /// Returns the client of the store with this name in the configuration.
    pub fn store(&self, name: &str) -> Option<&Locks> {
        self.stores.get(name)
    }

    /// Closes every client; see [`Locks::close`].
    ///
    /// # Cancel safety
    /// Safe: the clients stay closed. Another call continues to wait.
    pub async fn close(&self) {
        for locks in self.stores.values() {
            locks.close().await;
        }
    }
}
