//! What became of a mixed fleet.

use std::{fmt, time::Duration};

use dlock_conformance::history::{Counts, Violation};

/// What happened to a [`Fleet`](super::Fleet).
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// What should not have happened.
    pub violations: Vec<Violation>,
    /// What did happen.
    pub counts: Counts,
    /// From dlock's release to the peer's grant, for a lock that the peer waited for, shortest first.
    pub to_peer: Vec<Duration>,
    /// The other way round.
    pub to_dlock: Vec<Duration>,
    /// How long all of it took.
    pub took: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counts, to_peer, to_dlock, took, .. } = self;
        write!(f, "{} grants in {:.1} s", counts.grants, took.as_secs_f64())?;
        if counts.shared_reads > 0 {
            write!(f, ", {} of them reads beside others", counts.shared_reads)?;
        }
        for (whom, hand_offs) in [("the peer", to_peer), ("dlock", to_dlock)] {
            let of = |share: f64| {
                let at = (hand_offs.len() as f64 * share) as usize;
                hand_offs.get(at).or(hand_offs.last()).copied().unwrap_or_default()
            };
            let (half, most, all) = (of(0.5), of(0.99), of(1.0));
            write!(
                f,
                "; {} times to {whom}: p50 {half:.1?}, p99 {most:.1?}, max {all:.1?}",
                hand_offs.len()
            )?;
        }
        Ok(())
    }
}
