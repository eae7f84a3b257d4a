//! How long a caller waits.

use std::time::Duration;

/// How long a caller will wait for a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// One try.
    Never,
    /// Until this long after the call; one deadline for everything the call does.
    For(Duration),
    /// Until it is granted.
    #[default]
    Forever,
}

impl From<Duration> for Wait {
    fn from(limit: Duration) -> Self {
        Self::For(limit)
    }
}
