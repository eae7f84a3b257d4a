//! A client, and its rounds.

use super::{
    MEMBERS, Mutation, RedLock, TTL,
    member::{Part, Reply},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Client {
    pub(super) phase: Phase,
    pub(super) parts: [Part; MEMBERS],
    pub(super) round: Option<Round>,
    /// Whether a vote has disowned the hold, and no majority has confirmed it since.
    pub(super) is_disowned: bool,
    /// Votes that have confirmed renewals that were sent after the hold was disowned. A bit set.
    pub(super) reconfirmed_by: u8,
    /// Whether another client was granted the lock during the hold.
    pub(super) is_interrupted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Phase {
    Contend,
    Keep {
        /// Time until the deadline of the guard. Zero if the guard is lost.
        left: u8,
    },
    Ended,
}

/// A round of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Round {
    /// Time since the requests were sent, at most the ttl.
    pub(super) age: u8,
    /// Members that have not received the request, that have replied, and that have renewed. Bit
    /// sets.
    pub(super) pending: u8,
    pub(super) replied: u8,
    pub(super) renewed: u8,
    /// Whether the hold had been interrupted when the requests were sent.
    pub(super) is_interrupted: bool,
    /// Whether the hold had been disowned when the requests were sent.
    pub(super) is_disowned: bool,
}

/// Result of a round of renewals.
pub(super) enum Renewal {
    /// The hold is valid for this time.
    Renewed(u8),
    Lost,
    Unknown,
}

impl Client {
    pub(super) fn tick(&mut self) {
        self.parts.iter_mut().for_each(Part::tick);
        if let Some(round) = &mut self.round {
            round.age = (round.age + 1).min(TTL);
        }
        if let Phase::Keep { left } = &mut self.phase {
            *left = left.saturating_sub(1);
        }
    }

    pub(super) fn has_part(&self) -> bool {
        self.parts.iter().any(|part| part.until.is_some())
    }

    pub(super) fn votes(&self) -> usize {
        self.parts.iter().filter(|part| part.vote_until().is_some()).count()
    }

    pub(super) fn begin_round(&mut self) {
        if self.phase == Phase::Contend {
            // A member whose time has expired gets a new claim.
            self.parts.iter_mut().filter(|part| part.until == Some(0)).for_each(Part::clear);
        }
        self.round = Some(Round {
            age: 0,
            pending: (1 << MEMBERS) - 1,
            replied: 0,
            renewed: 0,
            is_interrupted: self.is_interrupted,
            is_disowned: self.is_disowned,
        });
    }

    /// Handles the reply of a member.
    pub(super) fn receive(&mut self, model: &RedLock, member: usize, reply: Reply) {
        let Some(round) = &mut self.round else { return };
        let part = &mut self.parts[member];
        match reply {
            Reply::Granted => {
                part.until = Some(TTL - round.age);
                part.has_vote = self.phase != Phase::Contend && model.mutated(Mutation::NewcomersVoteAtOnce);
            }
            Reply::Renewed => {
                part.until = Some(TTL - round.age);
                if self.phase != Phase::Contend {
                    part.has_joined = !part.has_vote;
                    round.renewed |= 1 << member;
                }
            }
            Reply::Busy => part.clear(),
            Reply::Lost => {
                // A member whose time may have expired by its own clock was right to forget it.
                let until = if model.mutated(Mutation::NewcomersCannotDisown) {
                    part.vote_until()
                } else {
                    part.countable_until()
                };
                let is_early = until.is_some_and(|until| until > model.drift());
                part.clear();
                if is_early && self.phase != Phase::Contend {
                    (self.is_disowned, self.reconfirmed_by) = (true, 0);
                }
            }
        }
    }
}
