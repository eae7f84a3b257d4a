//! Owners: who may take a lock again that they hold already.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex as SyncMutex, PoisonError, Weak},
};

use tokio::sync::Mutex;

use crate::{engine::Hold, model::LockName};

/// Who may re-enter: the analogue of a thread id, as a value you pass on.
///
/// A second `lock()` of a name by the same owner, through any handle of the same client, succeeds at once and without
/// I/O; the lock is released with the last guard. Without an owner every `lock()` is a stranger. Clones are the
/// same owner.
///
/// An owner of an exclusive hold may take the read side too, and goes on reading when the exclusive guard is
/// released. One that reads and asks for an exclusive hold gets [`Error::Deadlock`](crate::Error::Deadlock).
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

/// By client and name.
type Slots = HashMap<(u64, LockName), Arc<Slot>>;

/// The state of one owner for one name.
#[derive(Default)]
pub(crate) struct Slot {
    /// The hold that it has, or had last.
    hold: SyncMutex<Weak<Hold>>,
    /// Taken while one of the owner's tasks acquires the lock, so that a second one waits
    /// here and then enters, instead of waiting in the store behind the first.
    pub(crate) turn: Mutex<()>,
}

impl Slot {
    /// What it holds, if it has not let go of it.
    pub(crate) fn hold(&self) -> Option<Arc<Hold>> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    pub(crate) fn set(&self, hold: &Arc<Hold>) {
        *self.hold.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(hold);
    }
}

impl Owner {
    /// A new owner, equal to no other.
    pub fn new() -> Self {
        Self::default()
    }

    /// The slot for a name of a client.
    pub(crate) fn slot(&self, client: u64, name: &LockName) -> Arc<Slot> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the map grows, forget the names that nobody holds or asks for.
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
    fn names_that_nobody_holds_or_asks_for_are_forgotten() {
        let owner = Owner::new();
        use_names(&owner, 1000);
        let known = owner.0.lock().expect("nobody panics").len();
        assert!(known < 100, "{known} of 1000 names are known");
    }

    #[test]
    fn a_name_that_is_asked_for_is_not_forgotten() {
        let owner = Owner::new();
        let name = LockName::unchecked("asked for");
        let asked = owner.slot(1, &name);
        use_names(&owner, 1000);
        assert!(
            Arc::ptr_eq(&asked, &owner.slot(1, &name)),
            "two tasks that ask for one name have two slots, and would wait for each other in the store"
        );
    }

    #[test]
    fn owners_are_told_apart_when_they_are_shown() {
        let (one, other) = (Owner::new(), Owner::new());
        assert_eq!(format!("{one:?}"), format!("{:?}", one.clone()));
        assert_ne!(format!("{one:?}"), format!("{other:?}"));
    }
}
