//! Errors, named by what the caller can do about them.

use std::{error::Error as StdError, fmt, time::Duration};

use super::{Kind, LockName};

/// What dlock's calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A store's own error, boxed.
pub type Source = Box<dyn StdError + Send + Sync>;

/// What went wrong, by what you can do about it. The store's own error is the [`source`](StdError::source).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The wait ran out; nothing is held. Try later, or wait longer.
    #[error("timed out after {} waiting for lock `{name}`", Shown(*.waited))]
    Timeout {
        /// The lock.
        name: LockName,
        /// How long the caller was willing to wait.
        waited: Duration,
        /// The last failure to reach the store while waiting, if there was one.
        source: Option<Source>,
    },

    /// The lock was held and no longer is. Stop what it protected.
    #[error("lost lock `{name}`: {reason}")]
    Lost {
        /// The lock.
        name: LockName,
        /// How it was lost.
        reason: LostReason,
    },

    /// This owner holds the read side and asked for an exclusive lock, which would wait for that read hold for ever.
    /// Release the read side first.
    #[error("lock `{name}` is held for reading by the same owner; release that before asking for {kind}")]
    Deadlock {
        /// The lock.
        name: LockName,
        /// What was asked for.
        kind: Kind,
    },

    /// The name is in use by a lock of a kind that cannot be ordered with the one asked for.
    #[error("lock `{name}` cannot be taken as {kind}: {reason}")]
    WrongKind {
        /// The lock.
        name: LockName,
        /// What was asked for.
        kind: Kind,
        /// What stands in the way, and what to ask for instead.
        reason: String,
    },

    /// The store cannot do this at all. Choose another store or another kind.
    #[error("{store} cannot {what}")]
    Unsupported {
        /// The store.
        store: &'static str,
        /// What it cannot do.
        what: String,
    },

    /// Not a legal lock name.
    #[error("`{name}` is not a lock name: {reason}")]
    InvalidName {
        /// The beginning of the name, made printable.
        name: String,
        /// What is wrong with it.
        reason: String,
    },

    /// Options that contradict each other or the store.
    #[error("{reason}")]
    InvalidOptions {
        /// Which options clash, with their values.
        reason: String,
    },

    /// A URL or configuration that cannot be used as it is.
    #[error("{reason}")]
    InvalidConfig {
        /// What is wrong, and what would be right.
        reason: String,
    },

    /// The client was closed.
    #[error("lock `{name}` cannot be taken: its client is closed")]
    Closed {
        /// The lock.
        name: LockName,
    },

    /// The store did not answer, or not in time. What was asked may or may not have happened; asking again may help.
    #[error("{store} is not reachable")]
    Unavailable {
        /// The store.
        store: &'static str,
        /// Its error.
        source: Source,
    },

    /// The store answers, but cannot write for now: its disk is full, it is read-only, or it is out of memory. Asking again
    /// helps once that is over.
    #[error("{store} cannot write at the moment")]
    Unwritable {
        /// The store.
        store: &'static str,
        /// Its error.
        source: Source,
    },

    /// The store refused, and will refuse again until somebody changes something: rights, corruption, a version.
    #[error("{store} refused")]
    Refused {
        /// The store.
        store: &'static str,
        /// Its error.
        source: Source,
    },

    /// There is no tokio runtime here to keep the lock. Call it from a task of a tokio runtime with time enabled.
    #[error(
        "lock `{name}` cannot be taken outside of a tokio runtime; call it from one of its tasks, or connect with `connect_on_own_thread`"
    )]
    NoRuntime {
        /// The lock.
        name: LockName,
    },
}

impl Error {
    /// Whether the same call may succeed if it is made again.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Unwritable { .. } | Self::Timeout { .. })
    }
}

/// How a held lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// It could not be renewed before its deadline, or its lease or its longest hold ended.
    Expired,
    /// The store says that it is not ours: taken over, force-released, or deleted.
    Taken,
    /// Nobody renews the lock any more: its runtime has ended, or a driver panicked.
    Abandoned,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its time ran out without a renewal",
            Self::Taken => {
                "the store no longer knows it as ours: its time is over, it was released, or somebody else has taken it over"
            }
            Self::Abandoned => "the task that renewed it has ended",
        })
    }
}

/// A duration as people write it: `3s`, `250ms`, `1.5s`.
struct Shown(Duration);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_says_how_long_and_for_what() {
        let name = LockName::new("x").unwrap();
        let error = Error::Timeout { name, waited: Duration::from_secs(3), source: None };
        assert_eq!(error.to_string(), "timed out after 3s waiting for lock `x`");
    }

    #[test]
    fn a_loss_says_how_the_lock_was_lost() {
        for (reason, word) in [
            (LostReason::Expired, "without a renewal"),
            (LostReason::Taken, "no longer knows it"),
            (LostReason::Abandoned, "task that renewed it"),
        ] {
            let error = Error::Lost { name: LockName::new("x").unwrap(), reason }.to_string();
            assert!(error.starts_with("lost lock `x`: ") && error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_stores_error_is_the_source_and_not_in_the_message() {
        let error = Error::Unavailable { store: "redis", source: "connection refused".into() };
        assert_eq!(error.to_string(), "redis is not reachable");
        assert_eq!(error.source().expect("kept").to_string(), "connection refused");
    }
}
