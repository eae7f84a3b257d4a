//! A member, and the part of a client's claim on it.

use super::{Outcome, RedLock, TTL};

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(super) struct Member {
    pub(super) claim: Option<StoredClaim>,
    /// Time for which the member stays away after a restart.
    pub(super) down: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct StoredClaim {
    pub(super) client: usize,
    /// Whether the client has begun to release the claim.
    pub(super) is_ended: bool,
    /// Time until the member deletes the claim, by its own clock.
    pub(super) left: u8,
    pub(super) may_gain: bool,
}

/// The part of a client's claim on one member, as the client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(super) struct Part {
    /// Time for which the member holds according to its last reply. Zero if it has expired.
    pub(super) until: Option<u8>,
    pub(super) has_vote: bool,
    /// Whether the newcomer has confirmed a renewal after its grant.
    pub(super) has_joined: bool,
    /// Members whose votes have confirmed renewals that were sent after the grant of this newcomer.
    /// A bit set.
    pub(super) confirmed_by: u8,
    /// Whether a release that the client has sent may still be executed. Only if ids are reused.
    pub(super) has_late_release: bool,
}

/// The reply of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Granted,
    Renewed,
    Busy,
    Lost,
}

impl Member {
    pub(super) fn tick(&mut self) {
        self.down = self.down.saturating_sub(1);
        self.gain();
    }

    /// Lets a tick pass on the clock of the member.
    pub(super) fn gain(&mut self) {
        self.claim = self.claim.map(|claim| StoredClaim { left: claim.left - 1, ..claim });
        self.claim = self.claim.filter(|claim| claim.left > 0);
    }

    /// Executes an attempt, or a renewal, and returns the reply.
    pub(super) fn execute(&mut self, model: &RedLock, client: usize, renews: bool) -> Reply {
        let claim = StoredClaim { client, is_ended: false, left: TTL, may_gain: model.gains };
        let is_own = self.claim.is_some_and(|claim| {
            claim.client == client && (!claim.is_ended || model.mutated(super::Mutation::ReusesIds))
        });
        match self.claim {
            Some(_) if !is_own => return if renews { Reply::Lost } else { Reply::Busy },
            None if renews => return Reply::Lost,
            _ => self.claim = Some(claim),
        }
        if renews { Reply::Renewed } else { Reply::Granted }
    }

    /// Returns whether a request with this outcome reaches the member.
    pub(super) fn receives(&self, outcome: Outcome) -> bool {
        self.down == 0 && outcome != Outcome::RequestLost
    }
}

impl Part {
    pub(super) fn tick(&mut self) {
        self.until = self.until.map(|until| until.saturating_sub(1));
    }

    /// Forgets the hold of the member, and its vote.
    pub(super) fn clear(&mut self) {
        *self = Self { has_late_release: self.has_late_release, ..Self::default() };
    }

    pub(super) fn vote_until(&self) -> Option<u8> {
        self.until.filter(|_| self.has_vote)
    }

    /// Returns the granted time if the member has a vote or has joined.
    pub(super) fn countable_until(&self) -> Option<u8> {
        self.until.filter(|_| self.has_vote || self.has_joined)
    }

    pub(super) fn is_newcomer(&self) -> bool {
        self.until.is_some() && !self.has_vote
    }

    pub(super) fn is_joined_newcomer(&self) -> bool {
        self.is_newcomer() && self.has_joined
    }
}
