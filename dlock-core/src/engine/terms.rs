//! How long a claim is kept, and how often it is renewed.

use std::time::Duration;

/// What the keeper needs to know of the options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) renewal: Cadence,
    /// How long the whole hold may last: its lease or its `max_hold`.
    pub(crate) longest: Option<Duration>,
}

/// How often a held claim is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cadence {
    /// When a third of what is left has passed.
    Third,
    Every(Duration),
    Never,
}
