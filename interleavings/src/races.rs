//! The races that `build.rs` has planted in the copy of dlock-core. At most one is active.

use std::cell::Cell;

thread_local! {
    // shuttle runs all threads of an execution on one thread of the system.
    static ACTIVE: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Activates a race on this thread.
pub(crate) fn plant(race: Option<&'static str>) {
    ACTIVE.set(race);
}

/// Returns whether a race is active.
pub(crate) fn is_planted(race: &str) -> bool {
    ACTIVE.get() == Some(race)
}
