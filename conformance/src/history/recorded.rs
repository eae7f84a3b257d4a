//! A history of events whose times are known, for checks after the run.

use std::time::Duration;

use dlock_core::{Kind, LostReason, Token};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Acquisition, AcquisitionId, History, Log};

/// One acquisition as its contender recorded it. Times before an operation are taken before it, and
/// times of a result after it, as [`History`] describes.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Number of permits. 1 for the other kinds.
    pub(crate) limit: u32,
    pub(crate) ttl: Duration,
    pub(crate) invoked: Instant,
    pub(crate) granted: Option<Instant>,
    pub(crate) token: Option<Token>,
    /// Latest deadline that the guard promised. No meaning before the grant.
    pub(crate) valid_until: Instant,
    /// Start of the release, or the end of the contender's process.
    pub(crate) ends: Option<Instant>,
    /// Confirmation of the release.
    pub(crate) released: Option<Instant>,
    pub(crate) lost: Option<(Instant, LostReason)>,
    /// Time at which the guard claimed the lock after it was lost.
    pub(crate) claimed_after_loss: Option<Instant>,
}

impl FromIterator<Recorded> for History {
    /// Creates a history of these acquisitions. Their [ids](AcquisitionId::index) are their positions.
    fn from_iter<I: IntoIterator<Item = Recorded>>(recorded: I) -> Self {
        // Events of different processes have no order but their times, so their numbers are equal.
        let stamp = |at: Instant| (at, 0);
        let acquisitions = recorded.into_iter().enumerate().map(|(index, recorded)| Acquisition {
            id: AcquisitionId(index),
            name: recorded.name,
            kind: recorded.kind,
            limit: recorded.limit,
            ttl: recorded.ttl,
            invoked: stamp(recorded.invoked),
            granted: recorded.granted.map(stamp),
            token: recorded.token,
            valid_until: recorded.valid_until,
            downgrades: None,
            detached: false,
            releases: recorded.ends.map(stamp),
            released: recorded.released.map(stamp),
            lost: recorded.lost.map(|(at, reason)| (stamp(at), reason)),
            claimed_after_loss: recorded.claimed_after_loss.map(stamp),
        });
        Self(Mutex::new(Log { acquisitions: acquisitions.collect(), ..Log::default() }))
    }
}
