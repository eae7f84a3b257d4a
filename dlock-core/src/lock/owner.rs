//! Owners, which can take a lock again while they hold it.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
};

use parking_lot::Mutex as SyncMutex;
use tokio::sync::Mutex;

use crate::{engine::Hold, model::LockName};

/// An identity that can re-enter the locks that it holds. It is to async tasks what the thread id
/// is to a re-entrant mutex, but the program passes it on explicitly. Clones are the same owner.
///
/// A second `lock()` of a name by the same owner, through any handle of the same client, succeeds
/// at once and without I/O. The lock is released when the last guard is dropped. Without an owner,
/// every `lock()` is a different contender, so a task that takes a lock twice deadlocks with
/// itself.
///
/// An owner of an exclusive hold may take the read side too, and continues to read after the
/// exclusive guard is released. An owner that reads and requests an exclusive lock gets
/// [`Error::Deadlock`](crate::Error::Deadlock).
///
/// # Limits
/// - Tasks with the same owner share its locks, and do not exclude each other.
/// - Another client of the same store does not know the owner, and neither does another process.
/// - The options of a re-entry do not change the hold. Only
///   [`at_least`](crate::LockOptions::at_least) has an effect, counted from the re-entry.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
/// let locks = dlock_core::Locks::memory();
/// let me = dlock_core::Owner::new();
/// let outer = locks.mutex("stock").owned_by(&me).lock().await?;
/// let inner = locks.mutex("stock").owned_by(&me).lock().await?;
/// assert_eq!((inner.hold_count(), inner.token()), (2, outer.token()));
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Owner(Arc<SyncMutex<Slots>>);

/// By the id of the client and the lock's name.
type Slots = HashMap<(u64, LockName), Arc<Slot>>;

/// The state of one owner for one name.
#[derive(Default)]
pub(crate) struct Slot {
    /// The owner's last hold, which may have ended.
    hold: SyncMutex<Weak<Hold>>,
    /// Locked while one of the owner's tasks acquires the lock. A second task waits for this mutex
    /// and then re-enters, because in the store it would wait behind the first task.
    pub(crate) acquisition: Mutex<()>,
}

impl Slot {
    /// Returns the owner's last hold if it still exists. It may have ended.
    pub(crate) fn hold(&self) -> Option<Arc<Hold>> {
        self.hold.lock().upgrade()
    }

    pub(crate) fn set(&self, hold: &Arc<Hold>) {
        *self.hold.lock() = Arc::downgrade(hold);
    }
}

impl Owner {
    /// Creates an owner that differs from all others.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the slot of a lock's name at a client.
    pub(crate) fn slot(&self, client: u64, name: &LockName) -> Arc<Slot> {
        let mut slots = self.0.lock();
        // Before the map grows, remove the names that are neither held nor requested.
        if slots.len() == slots.capacity() {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.hold().is_some());
        }
        Arc::clone(slots.entry((client, name.clone())).or_default())
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Owner {}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({:p})", Arc::as_ptr(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn use_names(owner: &Owner, count: usize) {
        for number in 0..count {
            owner.slot(1, &LockName::unchecked(format!("name {number}")));
        }
    }

    #[test]
    fn names_that_are_neither_held_nor_requested_are_forgotten() {
        let owner = Owner::new();
        use_names(&owner, 1000);
        let remembered = owner.0.lock().len();
        assert!(remembered < 100, "{remembered} of 1000 names are remembered");
    }

    #[test]
    fn a_name_that_is_requested_is_not_forgotten() {
        let owner = Owner::new();
        let name = LockName::unchecked("requested");
        let requested = owner.slot(1, &name);
        use_names(&owner, 1000);
        assert!(
            Arc::ptr_eq(&requested, &owner.slot(1, &name)),
            "two tasks that request one name have two slots, and would wait for each other in the store"
        );
    }

    #[test]
    fn different_owners_have_different_debug_output() {
        let (one, other) = (Owner::new(), Owner::new());
        assert_eq!(format!("{one:?}"), format!("{:?}", one.clone()));
        assert_ne!(format!("{one:?}"), format!("{other:?}"));
    }
}
