//! The wait limit of a caller.

use std::time::Duration;

/// Maximum time that a caller waits for a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// No wait: the lock is tried once.
    Never,
    /// This time, counted from the first poll of the future. It is one deadline for all steps of
    /// the call.
    For(Duration),
    /// No limit: the caller waits until the lock is granted.
    #[default]
    Forever,
}

impl From<Duration> for Wait {
    fn from(limit: Duration) -> Self {
        Self::For(limit)
    }
}
