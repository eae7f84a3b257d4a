//! Errors, grouped by what the caller can do about them.

use std::{error::Error as StdError, fmt, time::Duration};

use super::{Kind, LockName, duration};

/// Result of dlock's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A boxed error, usually of a store's client crate.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// The error of all calls. Variants are named by what the caller can do about them. The store's own
/// error is the [`source`](StdError::source).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The wait limit passed before the lock was granted, and nothing is held. Retry later, or wait
    /// longer.
    #[error("timed out after {} waiting for lock `{name}`", duration::text(*.limit))]
    Timeout {
        /// The lock.
        name: LockName,
        /// Wait limit of the caller.
        limit: Duration,
        /// Last failure to reach the store during the wait, if there was one.
        source: Option<BoxError>,
    },

    /// The lock was held, and the hold has ended before its release. Stop the work that the lock
    /// protected.
    #[error("lost lock `{name}`: {reason}")]
    Lost {
        /// The lock.
        name: LockName,
        /// How the lock was lost.
        reason: LostReason,
    },

    /// This owner holds the read side and requested an exclusive lock, which would wait for that
    /// read hold forever. Release the read side first.
    #[error(
        "lock `{name}` is held for reading by the same owner; release the read lock before requesting {kind}"
    )]
    Deadlock {
        /// The lock.
        name: LockName,
        /// The kind that was requested.
        kind: Kind,
    },

    /// The name is in use by a lock of a kind that the store cannot order with the requested kind.
    #[error("lock `{name}` cannot be taken as {kind}: {reason}")]
    WrongKind {
        /// The lock.
        name: LockName,
        /// The kind that was requested.
        kind: Kind,
        /// The conflict, and the kind to request instead.
        reason: String,
    },

    /// The store does not support the request. Choose another store or another kind.
    #[error("{store} cannot {what}")]
    Unsupported {
        /// The store.
        store: &'static str,
        /// The unsupported request.
        what: String,
    },

    /// The text is not a legal lock name.
    #[error("`{name}` is not a lock name: {reason}")]
    InvalidName {
        /// Beginning of the name, made printable.
        name: String,
        /// The rule that the name breaks.
        reason: String,
    },

    /// The options contradict each other or the store's limits.
    #[error("{reason}")]
    InvalidOptions {
        /// The options that conflict, with their values.
        reason: String,
    },

    /// The URL or configuration cannot be used.
    #[error("{reason}")]
    InvalidConfig {
        /// The mistake, and how to correct it.
        reason: String,
    },

    /// The client was closed.
    #[error("lock `{name}` cannot be taken: its client is closed")]
    Closed {
        /// The lock.
        name: LockName,
    },

    /// The store did not reply, or not in time. The request may or may not have been executed. A
    /// retry may succeed.
    #[error("{store} is not reachable")]
    Unavailable {
        /// The store.
        store: &'static str,
        /// The store's error.
        source: BoxError,
    },

    /// The store replies but cannot write for now, because its disk is full, it is read-only, or it
    /// is out of memory. A retry succeeds once that condition has ended.
    #[error("{store} cannot write at the moment")]
    Unwritable {
        /// The store.
        store: &'static str,
        /// The store's error.
        source: BoxError,
    },

    /// The store refused the request, and will refuse it again until an operator intervenes.
    /// Examples are missing rights, corruption, or an unsupported version.
    #[error("{store} refused")]
    Refused {
        /// The store.
        store: &'static str,
        /// The store's error.
        source: BoxError,
    },

    /// The call was made outside of a tokio runtime, on which the keeper and the connections of the
    /// store have to run. Call it from a task of a tokio runtime with time enabled.
    #[error(
        "lock `{name}` cannot be used outside of a tokio runtime; call it from one of its tasks, or connect with `connect_on_own_thread`"
    )]
    NoRuntime {
        /// The lock.
        name: LockName,
    },
}

impl Error {
    /// Returns whether the same call may succeed if it is made again.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Unwritable { .. } | Self::Timeout { .. })
    }
}

/// How a held lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// The lock was not renewed before its deadline, or its lease or its maximum hold ended.
    Expired,
    /// The store reports that the claim no longer exists, because it was force-released, deleted,
    /// or expired there. For a ticket, the cause may also be another use of that ticket. Whether
    /// another client holds the lock now is unknown.
    Deleted,
    /// No task renews the lock any more, because its runtime has ended or a driver panicked.
    Abandoned,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its deadline passed without a renewal",
            Self::Deleted => {
                "the store no longer keeps it for this claim: it expired, was released, or was taken over by another client"
            }
            Self::Abandoned => "the task that renewed it has ended",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_says_how_long_and_for_what() {
        let name = LockName::new("x").unwrap();
        for (limit, shown) in [(Duration::from_secs(3), "3s"), (Duration::from_secs(86_400), "1d")] {
            let error = Error::Timeout { name: name.clone(), limit, source: None };
            assert_eq!(error.to_string(), format!("timed out after {shown} waiting for lock `x`"));
        }
    }

    #[test]
    fn a_loss_says_how_the_lock_was_lost() {
        for (reason, word) in [
            (LostReason::Expired, "without a renewal"),
            (LostReason::Deleted, "no longer keeps it"),
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
