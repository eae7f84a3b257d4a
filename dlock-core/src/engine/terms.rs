//! The ttl of a claim, the interval of its renewals, the maximum duration of its hold, its margin, and
//! its class.

use std::{sync::Arc, time::Duration};

/// The part of the lock options that the keeper needs.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) renewal: Cadence,
    /// Maximum duration of the whole hold: its lease or its `max_hold`.
    pub(crate) longest: Option<Duration>,
    /// Time from the deadline of the guard until the store may delete the claim.
    pub(crate) margin: Duration,
    #[cfg_attr(
        not(any(feature = "tracing", feature = "metrics")),
        expect(dead_code, reason = "nothing reports it")
    )]
    pub(crate) class: Class,
}

/// Class of a lock in metrics and events. Takes no memory unless one of these features is enabled.
#[derive(Clone, Debug)]
pub(crate) struct Class(#[cfg(any(feature = "tracing", feature = "metrics"))] Option<Arc<str>>);

impl Class {
    /// Creates the class of a lock. An empty text is none.
    #[cfg_attr(
        not(any(feature = "tracing", feature = "metrics")),
        expect(unused_variables, reason = "nothing reports it")
    )]
    pub(crate) fn new(text: Option<&Arc<str>>) -> Self {
        Self(
            #[cfg(any(feature = "tracing", feature = "metrics"))]
            text.filter(|text| !text.is_empty()).cloned(),
        )
    }

    /// Returns the text, or `None` if the lock has no class.
    #[cfg(any(feature = "tracing", feature = "metrics"))]
    pub(super) fn text(&self) -> Option<&Arc<str>> {
        self.0.as_ref()
    }
}

/// Interval between the renewals of a held claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cadence {
    /// A third of the time that is left until the deadline.
    Third,
    Every(Duration),
    Never,
}
