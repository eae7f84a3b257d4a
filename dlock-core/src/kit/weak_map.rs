//! Values that several users share by key, for as long as one of them needs the value.

use std::{
    collections::HashMap,
    fmt,
    hash::Hash,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

/// A map that does not keep its values alive, such as the queues in which a client's claims wait.
/// Claims that use one key at the same time share its value. The value is dropped with its last
/// user.
///
/// ```
/// use dlock_core::driver::WeakMap;
/// use std::sync::Arc;
///
/// let queues = WeakMap::new();
/// let first = queues.get_or_insert_with(&"orders", Vec::<u8>::new);
/// let second = queues.get_or_insert_with(&"orders", Vec::new);
/// assert!(Arc::ptr_eq(&first, &second));
/// ```
pub struct WeakMap<K, V>(Mutex<HashMap<K, Weak<V>>>);

impl<K: Clone + Eq + Hash, V> WeakMap<K, V> {
    /// Creates an empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the value of a key, if it is in use.
    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        self.0.lock().get(key).and_then(Weak::upgrade)
    }

    /// Returns the value of a key. If it is not in use, creates it with `new`.
    pub fn get_or_insert_with(&self, key: &K, new: impl FnOnce() -> V) -> Arc<V> {
        let mut values = self.0.lock();
        if let Some(value) = values.get(key).and_then(Weak::upgrade) {
            return value;
        }
        // Removes unused entries only when the map would grow, so that the cost for each entry
        // stays small.
        if values.len() == values.capacity() {
            values.retain(|_, value| value.strong_count() > 0);
        }
        let value = Arc::new(new());
        values.insert(key.clone(), Arc::downgrade(&value));
        value
    }
}

impl<K, V> Default for WeakMap<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K, V> fmt::Debug for WeakMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakMap").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_lives_as_long_as_its_users_and_unused_entries_do_not_add_up() {
        let map = WeakMap::new();
        let kept = map.get_or_insert_with(&0, || 0);
        for key in 1..10_000 {
            assert_eq!(*map.get_or_insert_with(&key, || key), key);
        }
        assert!(Arc::ptr_eq(&kept, &map.get_or_insert_with(&0, || 1)), "the value is in use");
        assert!(map.0.lock().capacity() < 100, "the map has kept unused entries");
        drop(kept);
        assert_eq!(map.get(&0), None, "the value is not in use any more");
        let fresh = map.get_or_insert_with(&0, || 1);
        assert_eq!((*fresh, map.get(&0)), (1, Some(Arc::clone(&fresh))));
    }
}
