//! The pauses of a candidate whose work has failed.

use std::{ops::Range, time::Duration};

use crate::{
    engine::with_large_jitter,
    model::{Error, Result, duration::text},
};

/// Maximum pause, so that no clock can overflow.
const MAX_PAUSE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Counts the failures of a candidate in a row, and returns the pauses after them.
#[derive(Debug)]
pub(super) struct Cooldown {
    range: Range<Duration>,
    failures: u32,
}

impl Cooldown {
    /// # Errors
    /// [`Error::InvalidOptions`] if the range is empty or begins at zero. A candidate without a
    /// pause would be elected again all the time while its work fails.
    pub(super) fn new(range: Range<Duration>) -> Result<Self> {
        if range.start.is_zero() || range.end < range.start {
            let [start, end] = [range.start, range.end].map(text);
            let reason = format!(
                "a cooldown from {start} to {end} is not possible; it must begin above zero, and not end before it begins"
            );
            return Err(Error::InvalidOptions { reason });
        }
        let end = range.end.min(MAX_PAUSE);
        Ok(Self { range: range.start.min(end)..end, failures: 0 })
    }

    /// Returns the shortest pause.
    pub(super) fn shortest(&self) -> Duration {
        self.range.start
    }

    /// Returns the pause after another failure in a row. It doubles with each failure. Up to half of
    /// it is added at random, and it stays within the range.
    pub(super) fn after_failure(&mut self) -> Duration {
        let doubled = self.range.start.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        // The upper third is left to the jitter.
        let base = doubled.min(self.range.end * 2 / 3).max(self.range.start);
        with_large_jitter(base).min(self.range.end)
    }

    /// Forgets the failures after a term of this length, if it was long enough or has succeeded.
    pub(super) fn note_term(&mut self, length: Duration, has_succeeded: bool) {
        if has_succeeded || length >= self.range.end {
            self.failures = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_cooldown_is_a_cooldown() {
        for range in [Duration::from_secs(1)..Duration::MAX, Duration::MAX..Duration::MAX] {
            let mut cooldown = Cooldown::new(range).expect("not empty");
            let pauses: Vec<_> = (0..100).map(|_| cooldown.after_failure()).collect();
            assert!(pauses.iter().all(|pause| *pause <= MAX_PAUSE), "{pauses:?}");
        }
    }

    #[test]
    fn the_pauses_grow_from_the_beginning_of_the_range_to_its_end() {
        let s = Duration::from_secs;
        let mut cooldown = Cooldown::new(s(1)..s(30)).expect("a legal range");
        let pauses: Vec<_> = (0..8).map(|_| cooldown.after_failure()).collect();
        for (pause, least, most) in
            [(pauses[0], 1, 2), (pauses[1], 2, 3), (pauses[2], 4, 6), (pauses[7], 20, 30)]
        {
            assert!((s(least)..=s(most)).contains(&pause), "{pauses:?}");
        }
        cooldown.note_term(s(29), false);
        assert!(cooldown.after_failure() >= s(20), "a short term that failed has reset the pauses");
        cooldown.note_term(s(30), false);
        assert!(cooldown.after_failure() <= s(2), "a long term has not reset the pauses");
    }

    #[test]
    fn candidates_that_fail_together_do_not_stand_again_together() {
        let pause =
            || Cooldown::new(Duration::from_secs(1)..Duration::from_secs(30)).expect("legal").after_failure();
        let pauses: Vec<_> = (0..16).map(|_| pause()).collect();
        assert!(pauses.iter().any(|pause| *pause != pauses[0]), "no jitter: {pauses:?}");
    }

    #[test]
    fn a_range_without_a_pause_is_refused() {
        let s = Duration::from_secs;
        for range in [s(0)..s(30), s(5)..s(4)] {
            let error = Cooldown::new(range).expect_err("not a cooldown").to_string();
            assert!(error.contains("must begin above zero"), "{error}");
        }
        assert_eq!(Cooldown::new(s(2)..s(2)).expect("a constant pause").after_failure(), s(2));
    }
}
