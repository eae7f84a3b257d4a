//! Environment variables that set the load of cases with faults.

use std::{env, time::Duration};

/// Returns the time during which tasks request locks and faults are injected: `DLOCK_TASKS_SECONDS`.
/// Default 5 s.
pub(crate) fn duration() -> Duration {
    Duration::from_secs(number("DLOCK_TASKS_SECONDS").unwrap_or(5))
}

/// Returns the number of tasks of one client: `DLOCK_TASKS`. `None` if it is not set.
pub(crate) fn tasks() -> Option<usize> {
    number("DLOCK_TASKS").and_then(|tasks| usize::try_from(tasks).ok())
}

fn number(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.trim().parse().unwrap_or_else(|_| panic!("{variable} is a number, not `{value}`")))
}
