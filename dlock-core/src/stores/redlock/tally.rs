//! The count of the members' replies in one round. `claim.rs` explains the terms.

use std::time::Duration;

use super::call::Reply;
use crate::{contract::Release, model::Error};

/// The replies of the members in one round.
#[derive(Default)]
pub(super) struct Tally {
    /// Members that granted, renewed, resumed or detached.
    pub(super) held: usize,
    /// Members with a vote that renewed or resumed.
    pub(super) confirmed: usize,
    /// Members that have confirmed the detachment. Counts only members with a vote, except while
    /// the claim takes over a hold, when all members count. A late reply to an earlier renewal does
    /// not count.
    pub(super) detached: usize,
    /// All members that renewed or resumed.
    pub(super) renewed: usize,
    /// Members on which another claim is first, or that have forgotten the claim.
    pub(super) refused: usize,
    pub(super) released: usize,
    /// Members whose release found no claim. Counted in `released` too.
    pub(super) without_claim: usize,
    /// Members that failed, or did not reply in time.
    pub(super) unknown: usize,
    /// Members whose error is permanent. Counted in `unknown` too.
    pub(super) permanent: usize,
    pub(super) retry_in: Option<Duration>,
    /// Shortest time for which a member would have kept the detached hold.
    pub(super) remaining: Option<Duration>,
    pub(super) transient_error: Option<Error>,
    pub(super) permanent_error: Option<Error>,
}

impl Tally {
    /// Counts a reply. The fields `confirmed` and `detached` depend on the vote of the member, so the
    /// round counts them.
    pub(super) fn count(&mut self, reply: Reply) {
        match reply {
            Reply::Granted { .. } => self.held += 1,
            Reply::Renewed { .. } => {
                self.held += 1;
                self.renewed += 1;
            }
            Reply::Resumed { remaining, .. } => {
                self.held += 1;
                self.renewed += 1;
                self.remaining = [self.remaining, remaining].into_iter().flatten().min();
            }
            Reply::Detached { .. } => self.held += 1,
            Reply::Busy(retry_in) => {
                self.refused += 1;
                self.retry_in = Some(self.retry_in.map_or(retry_in, |least| least.min(retry_in)));
            }
            Reply::Lost => self.refused += 1,
            Reply::Released(release) => {
                self.released += 1;
                self.without_claim += usize::from(release == Release::Gone);
            }
            Reply::Unknown(error) => {
                self.unknown += 1;
                if error.is_transient() {
                    self.transient_error.get_or_insert(error);
                } else {
                    self.permanent += 1;
                    self.permanent_error.get_or_insert(error);
                }
            }
        }
    }
}
