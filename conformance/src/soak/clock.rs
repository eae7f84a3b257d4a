//! The clock of all records: nanoseconds since the machine was started. All processes of the machine
//! read the same clock, it continues while a process is stopped, and no wall clock changes it.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A time, in nanoseconds since the machine was started.
pub(super) type Nanos = u64;

/// Returns the current time. Calls the kernel directly, so a library that fakes the wall clock of the
/// process has no effect on it.
pub(super) fn now() -> Nanos {
    #[cfg(target_os = "linux")]
    let clock = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::Monotonic;
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec).unwrap_or_default() * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or_default()
}

/// Returns a duration in nanoseconds. More than five centuries count as that.
pub(super) fn nanos(span: Duration) -> Nanos {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Formats the time since `start` in seconds.
pub(super) fn seconds(at: Nanos, start: Nanos) -> String {
    format!("{:.6}", at.saturating_sub(start) as f64 / 1e9)
}
