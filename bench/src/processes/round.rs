//! The arithmetic of one round: rate and fairness of several processes.

use std::time::Duration;

use crate::figures::Figures;

/// The result of one round, in which each process took the same number of pairs of lock and release,
/// one directly after another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Round {
    rate: f64,
    least_share: f64,
    greatest_share: f64,
    jain: f64,
    p99: f64,
}

impl Round {
    /// Computes the result from the duration of each pair of each process. All processes start at the
    /// same time.
    pub(super) fn of(processes: &[Vec<Duration>]) -> Self {
        let ends: Vec<Duration> = processes.iter().map(|pairs| pairs.iter().sum()).collect();
        let first_end = ends.iter().min().copied().unwrap_or_default();
        let last_end = ends.iter().max().copied().unwrap_or_default().as_secs_f64();
        let pairs: usize = processes.iter().map(Vec::len).sum();
        let counts: Vec<_> = processes.iter().map(|pairs| completed(pairs, first_end)).collect();
        let equal_share = counts.iter().sum::<f64>() / counts.len() as f64;
        let squares: f64 = counts.iter().map(|count| count * count).sum();
        let all = Figures::millis(&processes.concat());
        let strict_order = last_end * 1e3 * processes.len() as f64 / pairs as f64;
        Self {
            rate: pairs as f64 / last_end,
            least_share: counts.iter().copied().fold(f64::INFINITY, f64::min) / equal_share,
            greatest_share: counts.iter().copied().fold(0.0, f64::max) / equal_share,
            jain: equal_share * equal_share * counts.len() as f64 / squares,
            p99: all.quantile(0.99) / strict_order,
        }
    }

    /// Acquisitions per second of all processes together, until the last process ends.
    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }

    /// Acquisitions of the process with the fewest, divided by an equal share. Counted until the first
    /// process ends, because until then all of them contend.
    pub(super) fn least_share(&self) -> f64 {
        self.least_share
    }

    /// Acquisitions of the process with the most, divided by an equal share. The number of processes
    /// if one process gets all.
    pub(super) fn greatest_share(&self) -> f64 {
        self.greatest_share
    }

    /// Jain's index of the same numbers of acquisitions: 1 if they are equal, and 1 divided by the
    /// number of processes if one process gets all.
    pub(super) fn jain(&self) -> f64 {
        self.jain
    }

    /// 99th percentile of the durations, divided by the duration in strict order of arrival, in which
    /// each process waits for one pair of each of the others.
    pub(crate) fn p99(&self) -> f64 {
        self.p99
    }
}

/// Returns the number of pairs that end until `end`.
fn completed(pairs: &[Duration], end: Duration) -> f64 {
    let ends = pairs.iter().scan(Duration::ZERO, |sum, pair| {
        *sum += *pair;
        Some(*sum)
    });
    ends.take_while(|pair_end| *pair_end <= end).count() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(pairs: &[u64]) -> Vec<Duration> {
        pairs.iter().copied().map(Duration::from_millis).collect()
    }

    #[track_caller]
    fn assert_close(actual: f64, expected: f64) {
        assert!((actual - expected).abs() < 1e-9, "{actual} is not {expected}");
    }

    #[test]
    fn equal_turns_are_fair() {
        let round = Round::of(&[millis(&[10, 10]), millis(&[10, 10])]);
        assert_close(round.rate(), 200.0);
        assert_close(round.least_share(), 1.0);
        assert_close(round.greatest_share(), 1.0);
        assert_close(round.jain(), 1.0);
        assert_close(round.p99(), 1.0);
    }

    #[test]
    fn a_process_that_gets_all_has_the_share_of_all() {
        // The first process ends after 2 ms. The others wait until then.
        let round = Round::of(&[millis(&[1, 1]), millis(&[3, 1]), millis(&[5, 1]), millis(&[7, 1])]);
        assert_close(round.least_share(), 0.0);
        assert_close(round.greatest_share(), 4.0);
        assert_close(round.jain(), 0.25);
        assert_close(round.rate(), 1000.0);
        // In strict order each of the two pairs of a process takes 4 of the 8 ms.
        assert_close(round.p99(), 7.0 / 4.0);
    }

    #[test]
    fn shares_count_until_the_first_process_ends() {
        // Until 4 ms the processes complete 4 and 2 pairs. The rest of the second one does not count.
        let round = Round::of(&[millis(&[1, 1, 1, 1]), millis(&[2, 2, 100, 100])]);
        assert_close(round.least_share(), 2.0 / 3.0);
        assert_close(round.greatest_share(), 4.0 / 3.0);
        assert_close(round.jain(), 36.0 / 40.0);
        assert_close(round.rate(), 8.0 / 0.204);
    }
}
