//! The host's clock, which all processes share: it goes on while the machine is suspended and nobody can set it.

/// Nanoseconds on the host's clock. Finer than any ttl, so that no rounding makes two holds overlap.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn now() -> i64 {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// On other systems: nanoseconds on the wall clock. Setting that clock ends or prolongs claims.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn now() -> i64 {
    wall()
}

/// The least token of a file that is new or has lost its data: greater than all that the file has granted before.
pub(crate) fn floor() -> i64 {
    i64::try_from(since_1970().as_micros()).unwrap_or(i64::MAX / 2)
}

/// Nanoseconds since 1970 on the wall clock, which goes on over a boot of the host.
pub(crate) fn wall() -> i64 {
    nanos(since_1970())
}

/// A duration in nanoseconds, as the file has it.
pub(crate) fn nanos(span: std::time::Duration) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the floor of tokens and detached claims outlive the host's boot, and some hosts have no other clock that processes share"
)]
fn since_1970() -> std::time::Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}
