//! The bugs that `build.rs` has planted in the copy of dlock-core. At most one is active.

use std::cell::Cell;

thread_local! {
    // shuttle runs all threads of an execution on one thread of the system.
    static ACTIVE: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Activates a bug on this thread.
pub(crate) fn plant(bug: Option<&'static str>) {
    ACTIVE.set(bug);
}

/// Returns whether a bug is active.
pub(crate) fn is_planted(bug: &str) -> bool {
    ACTIVE.get() == Some(bug)
}
