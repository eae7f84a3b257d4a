//! A client, with its keeper and the request in flight.

use super::{Keeper, Mutation, TTL};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Client {
    /// Number of the current claim, which is its id. Zero before the first.
    pub(super) claim: u8,
    pub(super) phase: Phase,
    pub(super) request: Option<Request>,
    /// Claims with a renewal, and with a release, that may still be executed. Bit sets.
    pub(super) renewals: u8,
    pub(super) releases: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Idle,
    Contend,
    Keep {
        /// Time until the deadline of the guard. Zero if the guard is lost.
        left: u8,
        /// Time until another claim may be granted, as the keeper knows it.
        kept: u8,
        token: (u8, u8),
    },
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) operation: Operation,
    /// Time since the request was sent, at most the ttl.
    pub(super) age: u8,
    pub(super) reply: Option<Reply>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Operation {
    Attempt,
    Renew,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reply {
    Granted((u8, u8)),
    Busy,
    Renewed,
    Lost,
    Released,
}

impl Client {
    pub(super) fn send(&mut self, model: &Keeper) {
        let operation = match self.phase {
            Phase::Idle => return,
            Phase::Contend => Operation::Attempt,
            Phase::Keep { left: 0, .. } if model.mutated(Mutation::ReleasesAtDeadline) => Operation::Release,
            Phase::Keep { .. } => Operation::Renew,
            Phase::Release => Operation::Release,
        };
        match operation {
            Operation::Attempt => {}
            Operation::Renew => self.renewals |= 1 << self.claim,
            Operation::Release => self.releases |= 1 << self.claim,
        }
        self.request = Some(Request { operation, age: 0, reply: None });
    }

    /// Handles the reply to the request in flight.
    pub(super) fn receive(&mut self, model: &Keeper) {
        let Some(Request { age, reply: Some(reply), .. }) = self.request.take() else { return };
        let age = if model.mutated(Mutation::DeadlineFromReply) { 0 } else { age };
        let kept = TTL - age;
        let left = kept.saturating_sub(model.margin());
        match (self.phase, reply) {
            // A grant after its deadline is a failure, and the keeper sends another attempt.
            (Phase::Contend, Reply::Granted(token)) if left > 0 => {
                self.phase = Phase::Keep { left, kept, token };
            }
            // A loss that was reported is final.
            (Phase::Keep { left: 1.., token, .. }, Reply::Renewed) => {
                self.phase = Phase::Keep { left, kept, token };
            }
            // A loss that the store reports has no margin.
            (Phase::Keep { token, .. }, Reply::Lost) => self.phase = Phase::Keep { left: 0, kept: 0, token },
            (Phase::Release, Reply::Released) => self.phase = Phase::Idle,
            _ => {}
        }
    }

    pub(super) fn give_up(&mut self, model: &Keeper) {
        let request = self.request.take();
        if model.mutated(Mutation::AcceptsEarlierReply)
            && let Some(request) = request
        {
            // The next request of the same kind is in flight at once.
            self.request = Some(Request { age: 0, ..request });
        }
    }
}
