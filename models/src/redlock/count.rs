//! The count at the end of a round.

use super::{
    MEMBERS, Mutation, QUORUM, RedLock, TTL,
    client::{Client, Renewal, Round},
    member::Part,
};

impl Client {
    /// Gives every member that holds a vote. Returns the time for which a majority holds.
    pub(super) fn count_grants(&mut self, model: &RedLock, round: Round) -> Option<u8> {
        let quorum = if model.mutated(Mutation::CountsReplies) {
            round.replied.count_ones() as usize / 2 + 1
        } else {
            QUORUM
        };
        let valid_for = self.validity(model, quorum, |part| part.until)?;
        self.parts.iter_mut().for_each(|part| part.has_vote = part.until.is_some());
        Some(valid_for)
    }

    /// Returns the time for which a majority holds, or `None` if there is none.
    fn validity(&self, model: &RedLock, quorum: usize, until: fn(&Part) -> Option<u8>) -> Option<u8> {
        let mut times: Vec<_> = self.parts.iter().filter_map(until).collect();
        times.sort_unstable_by(|a, b| b.cmp(a));
        let shortest = *times.get(quorum - 1)?;
        let time = if model.mutated(Mutation::TakesLongestTime) { times[0] } else { shortest };
        Some(time.saturating_sub(model.drift())).filter(|time| *time > 0)
    }

    /// Counts the renewals of a round.
    pub(super) fn count_renewals(&mut self, model: &RedLock, round: Round) -> Renewal {
        if model.mutated(Mutation::CountsOldVotes) {
            return self.count_old_votes(round);
        }
        self.replace_expired_votes(model);
        let has_vote = |member: &usize| self.parts[*member].vote_until().is_some();
        let votes = (0..MEMBERS).filter(has_vote).fold(0, |votes, member| votes | 1 << member);
        let count = |members: u8| members.count_ones() as usize;
        if count(votes) < QUORUM {
            return Renewal::Lost;
        }
        let confirmed = round.renewed & votes;
        let valid_for = match self.is_disowned {
            true if count(confirmed) >= QUORUM => self.validity(model, QUORUM, Part::vote_until),
            false if count(round.renewed) >= QUORUM => self.validity(model, QUORUM, Part::countable_until),
            _ => None,
        };
        if round.is_disowned {
            self.reconfirmed_by |= confirmed;
            if count(self.reconfirmed_by & votes) >= QUORUM {
                (self.is_disowned, self.reconfirmed_by) = (false, 0);
            }
        }
        self.admit_newcomers(round, votes);
        valid_for.map_or(Renewal::Unknown, Renewal::Renewed)
    }

    /// Removes the votes of members whose time has expired. Gives votes to joined newcomers instead,
    /// unless the hold is disowned.
    fn replace_expired_votes(&mut self, model: &RedLock) {
        let mut has_expired = false;
        for part in &mut self.parts {
            if part.vote_until().is_some_and(|until| until <= model.drift()) {
                part.clear();
                has_expired = true;
            }
        }
        if has_expired && !self.is_disowned {
            self.parts
                .iter_mut()
                .filter(|part| part.is_joined_newcomer())
                .for_each(|part| part.has_vote = true);
        }
    }

    /// Gives votes to joined newcomers, once a majority of the votes has confirmed renewals that
    /// were sent after the newcomer's grant.
    fn admit_newcomers(&mut self, round: Round, votes: u8) {
        for (member, part) in self.parts.iter_mut().enumerate() {
            // In its first round, the renewals were sent before the grant.
            let was_granted_before = round.renewed & 1 << member != 0 || part.has_joined;
            if part.is_newcomer() && was_granted_before {
                part.confirmed_by |= round.renewed & votes;
                part.has_vote =
                    part.has_joined && (part.confirmed_by & votes).count_ones() as usize >= QUORUM;
            }
        }
    }

    /// Counts the votes of all earlier rounds, and takes the time from the last renewal.
    fn count_old_votes(&self, round: Round) -> Renewal {
        let time = TTL - round.age;
        if round.renewed != 0 && self.votes() >= QUORUM && time > 0 {
            Renewal::Renewed(time)
        } else {
            Renewal::Unknown
        }
    }
}
