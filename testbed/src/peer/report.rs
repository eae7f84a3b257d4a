//! The result of a mixed fleet.

use std::{fmt, time::Duration};

use dlock_conformance::history::{Counts, Violation};

/// The result of a [`Fleet`](super::Fleet).
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// Violations of the history's rules.
    pub violations: Vec<Violation>,
    /// Number of events.
    pub counts: Counts,
    /// Times from a release by dlock to the grant of a contender of the peer that waited for it, in
    /// ascending order.
    pub to_peer: Vec<Duration>,
    /// Times from a release by the peer to the grant of a waiting contender of dlock, in ascending
    /// order.
    pub to_dlock: Vec<Duration>,
    /// Duration of the run.
    pub took: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counts, to_peer, to_dlock, took, .. } = self;
        write!(f, "{} grants in {:.1} s", counts.grants, took.as_secs_f64())?;
        if counts.shared_reads > 0 {
            write!(f, ", {} of them reads beside others", counts.shared_reads)?;
        }
        for (side, hand_offs) in [("the peer", to_peer), ("dlock", to_dlock)] {
            let percentile = |share: f64| {
                let index = (hand_offs.len() as f64 * share) as usize;
                hand_offs.get(index).or(hand_offs.last()).copied().unwrap_or_default()
            };
            let (p50, p99, max) = (percentile(0.5), percentile(0.99), percentile(1.0));
            write!(f, "; {} times to {side}: p50 {p50:.1?}, p99 {p99:.1?}, max {max:.1?}", hand_offs.len())?;
        }
        Ok(())
    }
}
