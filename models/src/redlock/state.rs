//! The state of the model, and its steps.

use super::{
    Action, MEMBERS, Mutation, Outcome, RedLock, TTL,
    client::{Client, Phase, Renewal},
    member::{Member, Part, StoredClaim},
};

pub(super) const CLIENTS: usize = 2;

/// The state of all parts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    pub(super) members: [Member; MEMBERS],
    pub(super) clients: [Client; CLIENTS],
    may_restart: bool,
    may_break: bool,
    pub(super) was_regained: bool,
}

impl State {
    pub(super) fn new(model: &RedLock) -> Self {
        let client = Client {
            phase: Phase::Contend,
            parts: [Part::default(); MEMBERS],
            round: None,
            is_disowned: false,
            reconfirmed_by: 0,
            is_interrupted: false,
        };
        Self {
            members: [Member::default(); MEMBERS],
            clients: [client.clone(), client],
            may_restart: model.forgets,
            may_break: model.breaks,
            was_regained: false,
        }
    }

    pub(super) fn is_valid(&self, client: usize) -> bool {
        matches!(self.clients[client].phase, Phase::Keep { left: 1.. })
    }

    pub(super) fn is_lost(&self, client: usize) -> bool {
        matches!(self.clients[client].phase, Phase::Keep { left: 0 })
    }

    pub(super) fn votes(&self, client: usize) -> usize {
        self.clients[client].votes()
    }

    pub(super) fn has_joined_newcomer(&self, client: usize) -> bool {
        self.is_valid(client) && self.clients[client].parts.iter().any(Part::is_joined_newcomer)
    }

    pub(super) fn is_split(&self) -> bool {
        self.clients.iter().all(|client| {
            client.phase == Phase::Contend
                && client.parts.iter().filter(|part| part.until.is_some()).count() == 1
        })
    }

    /// Returns whether no further step can break a property, because the first client does not hold
    /// any more.
    fn is_decided(&self) -> bool {
        self.is_lost(0) || self.clients[0].phase == Phase::Ended
    }

    pub(super) fn actions(&self, model: &RedLock, actions: &mut Vec<Action>) {
        if self.is_decided() {
            return;
        }
        actions.push(Action::Tick);
        if self.may_break
            && self.is_valid(0)
            && self.clients[1].round.is_none()
            && !self.clients[1].has_part()
        {
            actions.push(Action::Break);
        }
        for (at, member) in self.members.iter().enumerate() {
            let Some(claim) = member.claim else { continue };
            if self.may_restart {
                actions.push(Action::Restart(at));
            }
            if claim.may_gain {
                actions.push(Action::Gain(at));
            }
            if claim.is_ended {
                actions.push(Action::ExecuteRelease(claim.client, at));
            }
        }
        for (at, client) in self.clients.iter().enumerate() {
            for (member, part) in client.parts.iter().enumerate() {
                if part.has_late_release {
                    actions.push(Action::ExecuteRelease(at, member));
                }
            }
            if client.phase == Phase::Ended {
                continue;
            }
            let Some(round) = client.round else {
                if at == 1 && model.tries && client.phase == Phase::Contend {
                    actions.push(Action::Try);
                } else if at == 0 || client.phase == Phase::Contend {
                    actions.push(Action::BeginRound(at));
                }
                if client.has_part() || client.phase != Phase::Contend {
                    actions.push(Action::Release(at));
                }
                continue;
            };
            let loses_messages = model.loses_messages && at == 0;
            for member in (0..MEMBERS).filter(|member| round.pending & 1 << member != 0) {
                actions.push(Action::Call(at, member, Outcome::Replied));
                if loses_messages && !model.breaks {
                    actions.push(Action::Call(at, member, Outcome::ReplyLost));
                }
            }
            // A round that ends before a member has received its request has lost that request.
            let is_complete =
                (0..MEMBERS).all(|member| round.pending & 1 << member == 0 || self.members[member].down > 0);
            if loses_messages || is_complete {
                actions.push(Action::EndRound(at));
            }
        }
    }

    pub(super) fn step(&mut self, model: &RedLock, action: Action) {
        match action {
            Action::Tick => {
                self.members.iter_mut().for_each(Member::tick);
                self.clients.iter_mut().for_each(Client::tick);
            }
            Action::Gain(member) => {
                let member = &mut self.members[member];
                member.claim = member.claim.map(|claim| StoredClaim { may_gain: false, ..claim });
                member.gain();
            }
            Action::Restart(member) => {
                self.may_restart = false;
                let down = if model.mutated(Mutation::ReturnsAtOnce) { 0 } else { TTL };
                self.members[member] = Member { claim: None, down };
            }
            Action::Break => {
                self.may_break = false;
                self.members.iter_mut().for_each(|member| member.claim = None);
            }
            Action::BeginRound(at) => self.clients[at].begin_round(),
            Action::Call(at, member, outcome) => self.call(model, at, member, outcome),
            Action::EndRound(at) => self.end_round(model, at),
            Action::Try => {
                self.clients[1].begin_round();
                (0..MEMBERS).for_each(|member| self.call(model, 1, member, Outcome::Replied));
                self.end_round(model, 1);
            }
            Action::Release(at) => self.release(model, at),
            Action::ExecuteRelease(at, member) => {
                let claim = &mut self.members[member].claim;
                *claim = claim.filter(|claim| claim.client != at);
                self.clients[at].parts[member].has_late_release = false;
            }
        }
    }

    /// Executes the request of the round on a member. If the reply arrives, the client handles it.
    fn call(&mut self, model: &RedLock, at: usize, member: usize, outcome: Outcome) {
        let client = &mut self.clients[at];
        let Some(round) = &mut client.round else { return };
        round.pending &= !(1 << member);
        if !self.members[member].receives(outcome) {
            return;
        }
        let renews = client.parts[member].until.is_some();
        let reply = self.members[member].execute(model, at, renews);
        if outcome == Outcome::Replied {
            if model.mutated(Mutation::CountsReplies) {
                round.replied |= 1 << member;
            }
            client.receive(model, member, reply);
        }
    }

    /// Ends a round, and counts.
    fn end_round(&mut self, model: &RedLock, at: usize) {
        let client = &mut self.clients[at];
        let Some(round) = client.round.take() else { return };
        match client.phase {
            Phase::Contend => {
                if let Some(left) = client.count_grants(model, round) {
                    client.phase = Phase::Keep { left };
                    if at == 1 {
                        // The second client does not renew, so it needs no parts.
                        client.parts.iter_mut().for_each(Part::clear);
                    }
                    let other = &mut self.clients[1 - at];
                    other.is_interrupted |= matches!(other.phase, Phase::Keep { .. });
                } else if at == 1 && model.tries {
                    self.release(model, at);
                }
            }
            Phase::Keep { left } => match client.count_renewals(model, round) {
                Renewal::Renewed(until) if left > 0 => {
                    self.was_regained |= round.is_interrupted;
                    client.phase = Phase::Keep { left: until };
                }
                Renewal::Lost => client.phase = Phase::Keep { left: 0 },
                Renewal::Renewed(_) | Renewal::Unknown => {}
            },
            Phase::Ended => {}
        }
    }

    /// Releases the claims of a client on all members. A member that misses the release keeps its
    /// claim until its ttl ends.
    fn release(&mut self, model: &RedLock, at: usize) {
        for (member, part) in self.members.iter_mut().zip(&mut self.clients[at].parts) {
            if let Some(claim) = member.claim.as_mut().filter(|claim| claim.client == at) {
                claim.is_ended = true;
                part.has_late_release |= model.mutated(Mutation::ReusesIds);
            }
            part.clear();
        }
        if self.clients[at].phase != Phase::Contend {
            self.clients[at].phase = Phase::Ended;
        }
    }
}
