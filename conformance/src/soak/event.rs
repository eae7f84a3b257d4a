//! The lines that a client process writes on its stdout, one event each, as JSON.

use dlock_core::{Kind, LostReason, Token};
use serde::{Deserialize, Serialize};

use super::clock::Nanos;

/// One event of a client process. `of` is the number of the acquisition in its process. The time
/// before an operation is taken before it, and the time of a result after it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Event {
    /// The client has connected. `excluded` says whether the lock that the coordinator holds was
    /// busy, if the plan names one.
    Ready { excluded: Option<bool> },
    /// The client cannot work, and its process ends.
    Failed { error: String },
    /// A lock is about to be requested. `wait` is the caller's limit, or `null` to wait forever.
    Attempt { of: u64, at: Nanos, name: usize, kind: Kind, wait: Option<Nanos> },
    /// A guard was received. It promises to hold for at least `left` after `at`.
    Grant { of: u64, at: Nanos, token: Option<Token>, left: Nanos, queued: Option<Queued> },
    /// The guard was queried, between `at` and `until`. It promises to hold for at least `left`
    /// after `at`, unless it is not `held`.
    Check { of: u64, at: Nanos, until: Nanos, held: bool, left: Nanos },
    /// The guard is about to be released, or dropped.
    Release { of: u64, at: Nanos, dropped: bool },
    /// The store has confirmed the release.
    Released { of: u64, at: Nanos },
    /// The guard or its release reports that the lock was lost.
    Lost { of: u64, at: Nanos, reason: Loss },
    /// The acquisition or the release has ended in another way.
    Ended { of: u64, at: Nanos, how: End, queued: Option<Queued> },
    /// All tasks have ended and the client is closed.
    Closed { at: Nanos },
}

/// The time at which a claim was known to be in the queue of its store.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Queued {
    /// Time before the first request of the claim.
    pub(super) sent: Nanos,
    /// Time after the first reply that the claim has to wait. `null` if there was none.
    pub(super) waits: Option<Nanos>,
    /// Longest time from before one answered request of the claim until after the next one. The
    /// claim has kept its place if this is shorter than its ttl.
    pub(super) gap: Nanos,
}

/// The end of an acquisition without a hold, or of a release without a confirmation.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum End {
    /// The try found the lock busy.
    Busy,
    /// The wait limit has passed.
    TimedOut,
    /// The future was dropped.
    Dropped,
    /// A transient error. The outcome is unknown.
    Failed(String),
    /// An error that no retry can overcome.
    Refused(String),
}

/// How a lock was lost, as [`LostReason`].
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Loss {
    Expired,
    Deleted,
    Abandoned,
}

impl From<LostReason> for Loss {
    fn from(reason: LostReason) -> Self {
        match reason {
            LostReason::Expired => Self::Expired,
            LostReason::Deleted => Self::Deleted,
            _ => Self::Abandoned,
        }
    }
}

impl From<Loss> for LostReason {
    fn from(loss: Loss) -> Self {
        match loss {
            Loss::Expired => Self::Expired,
            Loss::Deleted => Self::Deleted,
            Loss::Abandoned => Self::Abandoned,
        }
    }
}
