//! The ttl of a claim, the interval of its renewals, the maximum duration of its hold, and its margin.

use std::time::Duration;

/// The part of the lock options that the keeper needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) renewal: Cadence,
    /// Maximum duration of the whole hold: its lease or its `max_hold`.
    pub(crate) longest: Option<Duration>,
    /// Time from the deadline of the guard until the store may delete the claim.
    pub(crate) margin: Duration,
}

/// Interval between the renewals of a held claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cadence {
    /// A third of the time that is left until the deadline.
    Third,
    Every(Duration),
    Never,
}
