//! Deadlines that also run out while the machine sleeps.
//!
//! A deadline stands on two clocks and the earlier one counts: tokio's, which tests can pause, and
//! `CLOCK_BOOTTIME`, which goes on during a suspend while the store forgets us.

use std::time::Duration;

use tokio::time::Instant;

/// A point in time on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    tokio: Instant,
    boot: Duration,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self { tokio: Instant::now(), boot: since_boot() }
    }

    /// A moment that is past on tokio's clock.
    pub(crate) fn of(past: Instant) -> Self {
        Self { tokio: past, boot: since_boot().saturating_sub(past.elapsed()) }
    }

    /// This long later. Saturates a century ahead, so that no duration can overflow a clock.
    pub(crate) fn after(self, span: Duration) -> Self {
        let span = span.min(CENTURY);
        Self { tokio: self.tokio + span, boot: self.boot + span }
    }

    /// How long until then: what the clock that is nearer says.
    pub(crate) fn remaining(self) -> Duration {
        let now = Self::now();
        self.tokio.duration_since(now.tokio).min(self.boot.saturating_sub(now.boot))
    }

    pub(crate) fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }

    /// For timers.
    pub(crate) fn instant(self) -> Instant {
        self.tokio
    }
}

/// The longest deadline. Timers far beyond the life of a process are as good as none.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[cfg(any(target_os = "linux", target_os = "android"))]
fn since_boot() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Elsewhere tokio's clock alone counts.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn since_boot() -> Duration {
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
        assert!(deadline.has_passed(), "tokio's clock stood still, the machine's did not");
    }

    #[test]
    fn the_longest_duration_is_a_legal_deadline() {
        assert!(!Moment::now().after(Duration::MAX).has_passed());
    }
}
