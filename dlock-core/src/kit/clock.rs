//! Points in time and deadlines that also pass while the machine is suspended.
//!
//! A deadline is kept on two clocks, and has passed when it has passed on either. The first is
//! tokio's clock, which tests can pause. The second is `CLOCK_BOOTTIME`, which continues while the
//! machine is suspended, as the store's clock does.

use std::time::Duration;

use tokio::time::Instant;

/// A point in time on both tokio's clock and the boot clock.
///
/// A driver uses this type instead of [`Instant`] for all times on which a hold depends, such as
/// the age of a session's last heartbeat. The clock of `Instant` stops while the machine is
/// suspended.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    tokio: Instant,
    /// Nanoseconds since the boot. Half the size of a `Duration`, because a held lock stores several
    /// moments.
    boot: u64,
}

impl Moment {
    /// Returns the current time.
    pub fn now() -> Self {
        Self { tokio: Instant::now(), boot: nanoseconds(since_boot()) }
    }

    /// Returns the time `span` after this moment. A span of more than a century counts as a
    /// century, so that no clock can overflow.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        let span = span.min(CENTURY);
        Self { tokio: self.tokio + span, boot: self.boot.saturating_add(nanoseconds(span)) }
    }

    /// Returns the time `span` before this moment. A time before the start of a clock counts as
    /// passed.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self {
            tokio: self.tokio.checked_sub(span).unwrap_or_else(Instant::now),
            boot: self.boot.saturating_sub(nanoseconds(span)),
        }
    }

    /// Returns the earlier of two deadlines, separately on each clock.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self { tokio: self.tokio.min(other.tokio), boot: self.boot.min(other.boot) }
    }

    /// Returns the time until this moment, on the clock that reaches it first. Zero if it has
    /// passed.
    pub fn remaining(self) -> Duration {
        self.since(Self::now())
    }

    /// Returns the time since this moment, on the clock on which more time has passed. Zero if the
    /// moment is in the future.
    pub fn elapsed(self) -> Duration {
        self.elapsed_at(Self::now())
    }

    /// Returns the same as [`elapsed`](Self::elapsed), for a caller that has already read the clocks
    /// as `now`.
    pub fn elapsed_at(self, now: Self) -> Duration {
        now.tokio.duration_since(self.tokio).max(Duration::from_nanos(now.boot.saturating_sub(self.boot)))
    }

    /// Returns the time from `earlier` to this moment, on the clock on which it is shorter. Zero if
    /// this moment is not after `earlier`.
    pub fn since(self, earlier: Self) -> Duration {
        self.tokio
            .duration_since(earlier.tokio)
            .min(Duration::from_nanos(self.boot.saturating_sub(earlier.boot)))
    }

    /// Returns whether this moment has passed on either clock.
    pub fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }

    /// Returns this moment on tokio's clock, for timers.
    pub fn instant(self) -> Instant {
        self.tokio
    }
}

/// Maximum distance of a deadline. No process runs that long.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Returns a duration in nanoseconds, at most 584 years.
fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Simulates, in tests, a suspend of the machine for `span`. The boot clock advances, and tokio's
/// clock does not. Affects the calling thread only.
#[cfg(feature = "test-util")]
pub fn pretend_suspend(span: Duration) {
    SUSPENDED.set(SUSPENDED.get() + span);
}

/// Makes tests independent of the machine's boot clock. From this call on, the boot clock is
/// tokio's clock, which may be paused, plus every [simulated suspend](pretend_suspend). Affects the
/// calling thread only. Moments taken before this call must not be used after it.
#[cfg(feature = "test-util")]
pub fn pretend_clock() {
    PRETENDED.set(Some(Instant::now()));
}

#[cfg(feature = "test-util")]
thread_local! {
    static SUSPENDED: std::cell::Cell<Duration> = const { std::cell::Cell::new(Duration::ZERO) };
    static PRETENDED: std::cell::Cell<Option<Instant>> = const { std::cell::Cell::new(None) };
}

#[cfg(feature = "test-util")]
fn since_boot() -> Duration {
    PRETENDED.get().map_or_else(boot_clock, |start| start.elapsed()) + SUSPENDED.get()
}

#[cfg(not(feature = "test-util"))]
fn since_boot() -> Duration {
    boot_clock()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn boot_clock() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Other systems have no boot clock, so only tokio's clock counts.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn boot_clock() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_passes_on_tokios_clock() {
        let deadline = Moment::now().after(Duration::from_secs(30));
        assert!(!deadline.has_passed());
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(deadline.has_passed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_passes_on_the_boot_clock() {
        let mut deadline = Moment::now().after(Duration::from_secs(30));
        deadline.boot = Moment::now().boot;
        assert!(deadline.has_passed(), "the boot clock has reached the deadline, but it has not passed");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_boot_clock_counts_the_uptime_of_the_machine() {
        let uptime = std::fs::read_to_string("/proc/uptime").expect("every Linux reports its uptime");
        let seconds = uptime.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
        let boot = boot_clock();
        assert!(boot >= Duration::from_secs_f64(seconds), "{boot:?}, but the uptime is {seconds} s");
    }

    #[cfg(feature = "test-util")]
    #[tokio::test(start_paused = true)]
    async fn a_simulated_suspend_and_a_simulated_clock_count() {
        let deadline = Moment::now().after(Duration::from_secs(30));
        pretend_suspend(Duration::from_secs(30));
        assert!(deadline.has_passed(), "the deadline has not passed during the simulated suspend");
        pretend_clock();
        let before = Moment::now();
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(
            Moment::now().since(before) >= Duration::from_secs(30),
            "tokio's clock advanced, but no time has passed"
        );
    }

    #[test]
    fn the_longest_duration_is_a_legal_deadline() {
        assert!(!Moment::now().after(Duration::MAX).has_passed());
    }

    #[test]
    fn a_deadline_in_fifty_years_is_not_shortened() {
        let decades = Duration::from_secs(50 * 365 * 24 * 3600);
        let left = Moment::now().after(decades).remaining();
        assert!(left > decades - Duration::from_secs(3600), "{left:?} of {decades:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_elapsed_time_is_that_of_the_clock_that_advanced_further() {
        let mut past = Moment::now();
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(past.elapsed() >= Duration::from_secs(30));
        past.boot = past.boot.saturating_sub(nanoseconds(Duration::from_secs(60)));
        assert!(past.elapsed() >= Duration::from_secs(60), "the time of the suspend was not counted");
        assert_eq!(
            Moment::now().after(Duration::from_secs(1)).elapsed(),
            Duration::ZERO,
            "time has elapsed since a moment in the future"
        );
    }

    #[test]
    fn the_earlier_of_two_deadlines_counts_on_each_clock() {
        let (now, s) = (Moment::now(), Duration::from_secs);
        let tokio_first = Moment { tokio: now.tokio + s(1), boot: now.boot + nanoseconds(s(9)) };
        let boot_first = Moment { tokio: now.tokio + s(9), boot: now.boot + nanoseconds(s(2)) };
        let both = tokio_first.min(boot_first);
        assert_eq!((both.tokio, both.boot), (now.tokio + s(1), now.boot + nanoseconds(s(2))));
        assert_eq!(both.since(now), s(1));
        assert_eq!(now.since(both), Duration::ZERO);
    }
}
