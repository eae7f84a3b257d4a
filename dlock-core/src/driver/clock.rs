//! Deadlines that also run out while the machine sleeps.
//!
//! A deadline is kept on two clocks, and counts as passed when it has passed on either. One is tokio's, which tests can
//! pause. The other is `CLOCK_BOOTTIME`, which goes on while the machine is suspended, as the store's clock does.

use std::time::Duration;

use tokio::time::Instant;

/// A point in time on both clocks: what a deadline is made of.
///
/// A driver that measures time itself, such as the age of a session's last heartbeat, uses this type and not [`Instant`],
/// which stands still while the machine is suspended.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    tokio: Instant,
    boot: Duration,
}

impl Moment {
    /// This moment.
    pub fn now() -> Self {
        Self { tokio: Instant::now(), boot: since_boot() }
    }

    /// This moment plus a duration. Longer durations count as a century, so that none can overflow a clock.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        let span = span.min(CENTURY);
        Self { tokio: self.tokio + span, boot: self.boot + span }
    }

    /// The earlier of two deadlines, on each clock.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self { tokio: self.tokio.min(other.tokio), boot: self.boot.min(other.boot) }
    }

    /// How long until this moment, on the clock that reaches it first. Zero if it has passed.
    pub fn remaining(self) -> Duration {
        self.since(Self::now())
    }

    /// How long ago this moment was, on the clock that shows the longer time. Zero if it is yet to come.
    pub fn elapsed(self) -> Duration {
        let now = Self::now();
        now.tokio.duration_since(self.tokio).max(now.boot.saturating_sub(self.boot))
    }

    /// How long after `earlier` this moment is, on the clock that shows the shorter time. Zero if it is not after
    /// `earlier`.
    pub fn since(self, earlier: Self) -> Duration {
        self.tokio.duration_since(earlier.tokio).min(self.boot.saturating_sub(earlier.boot))
    }

    /// Whether this moment is past on either clock.
    pub fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }

    /// On tokio's clock, for timers.
    pub fn instant(self) -> Instant {
        self.tokio
    }
}

/// The longest deadline. A timer that ends after the process does is as good as none.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Lets tests pretend that the machine was suspended for `span`: only tokio's clock and the monotonic one stood still. For
/// the calling thread only.
#[cfg(feature = "test-util")]
pub fn pretend_suspend(span: Duration) {
    SUSPENDED.set(SUSPENDED.get() + span);
}

/// Makes tests independent of the machine's own clock: from now on, the clock that goes on during a suspend is tokio's, which
/// may be paused, plus every [pretended suspend](pretend_suspend). For the calling thread only. Moments taken before this
/// call must not be used after it.
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

/// On other systems only tokio's clock counts.
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
    async fn a_deadline_passes_on_the_clock_that_goes_on_during_suspend() {
        let mut deadline = Moment::now().after(Duration::from_secs(30));
        deadline.boot = Moment::now().boot;
        assert!(
            deadline.has_passed(),
            "the machine's clock went on while tokio's stood still, and the deadline has not passed"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_other_clock_is_the_one_that_goes_on_during_suspend() {
        let uptime = std::fs::read_to_string("/proc/uptime").expect("every Linux tells how long it is up");
        let seconds = uptime.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
        let boot = boot_clock();
        assert!(boot >= Duration::from_secs_f64(seconds), "{boot:?} since a boot {seconds} s ago");
    }

    #[cfg(feature = "test-util")]
    #[tokio::test(start_paused = true)]
    async fn a_pretended_suspend_and_a_pretended_clock_count() {
        let deadline = Moment::now().after(Duration::from_secs(30));
        pretend_suspend(Duration::from_secs(30));
        assert!(deadline.has_passed(), "the deadline has not passed during the pretended suspend");
        pretend_clock();
        let before = Moment::now();
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(
            Moment::now().since(before) >= Duration::from_secs(30),
            "tokio's clock went on, and no time has passed"
        );
    }

    #[test]
    fn the_longest_duration_is_a_legal_deadline() {
        assert!(!Moment::now().after(Duration::MAX).has_passed());
    }

    #[test]
    fn a_deadline_that_is_decades_ahead_is_as_far_as_it_was_set() {
        let decades = Duration::from_secs(50 * 365 * 24 * 3600);
        let left = Moment::now().after(decades).remaining();
        assert!(left > decades - Duration::from_secs(3600), "{left:?} of {decades:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_that_went_further_says_how_much_time_has_elapsed() {
        let mut past = Moment::now();
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(past.elapsed() >= Duration::from_secs(30));
        past.boot = past.boot.saturating_sub(Duration::from_secs(60));
        assert!(past.elapsed() >= Duration::from_secs(60), "the time of a suspend was not counted");
        assert_eq!(
            Moment::now().after(Duration::from_secs(1)).elapsed(),
            Duration::ZERO,
            "time has elapsed since a moment that is yet to come"
        );
    }

    #[test]
    fn of_two_deadlines_the_earlier_counts_on_each_clock() {
        let (now, s) = (Moment::now(), Duration::from_secs);
        let tokio_first = Moment { tokio: now.tokio + s(1), boot: now.boot + s(9) };
        let boot_first = Moment { tokio: now.tokio + s(9), boot: now.boot + s(2) };
        let both = tokio_first.min(boot_first);
        assert_eq!((both.tokio, both.boot), (now.tokio + s(1), now.boot + s(2)));
        assert_eq!(both.since(now), s(1));
        assert_eq!(now.since(both), Duration::ZERO);
    }
}
