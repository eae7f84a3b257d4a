//! The host's clock, which all its processes share. It continues while the machine is suspended,
//! and cannot be set.

use std::time::Duration;

/// Returns the time of the host's clock in nanoseconds. The unit is finer than any ttl, so that
/// rounding never makes two holds overlap.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn now() -> i64 {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Returns the time of the wall clock in nanoseconds, which replaces the host's clock on other
/// systems. Setting that clock ends or prolongs claims.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn now() -> i64 {
    wall_now()
}

/// Returns the least token for a file that is new or has lost its data. It is greater than all
/// tokens that the file has granted before.
pub(crate) fn min_token() -> i64 {
    i64::try_from(since_1970().as_micros()).unwrap_or(i64::MAX / 2)
}

/// Returns the time of the wall clock in nanoseconds since 1970. Unlike [`now`], it continues
/// across a boot of the host.
pub(crate) fn wall_now() -> i64 {
    nanos(since_1970())
}

/// Converts a duration to nanoseconds, the unit of the file.
pub(crate) fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

#[expect(
    clippy::disallowed_methods,
    reason = "users of the store's clock expect the time of day, the least token and detached claims outlive the host's boot, and some hosts have no other clock that processes share"
)]
pub(crate) fn since_1970() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}
