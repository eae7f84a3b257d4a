//! The state of the model, and its steps.

use super::{
    Action, Keeper, Mutation, TTL,
    client::{Client, Operation, Phase, Reply, Request},
};

/// The state of all parts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    claim: Option<StoredClaim>,
    forgets_left: u8,
    /// The last token that the store has drawn.
    last_token: u8,
    /// Number of grants with a token.
    pub(super) grants: u8,
    clients: [Client; 2],
    /// Writes that may arrive at any time, each with the token and the number of its grant.
    writes: Vec<(u8, u8)>,
    /// The greatest token and the greatest number of a grant that the resource has accepted.
    accepted: (u8, u8),
    pub(super) token_fell: bool,
    pub(super) stale_write_accepted: bool,
}

/// The claim that the store keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StoredClaim {
    id: (usize, u8),
    /// Time until the store deletes the claim, by its own clock.
    left: u8,
    may_gain: bool,
    token: (u8, u8),
}

impl State {
    pub(super) fn new(model: &Keeper) -> Self {
        let idle = Client { claim: 0, phase: Phase::Idle, request: None, renewals: 0, releases: 0 };
        Self {
            claim: None,
            forgets_left: model.forgets,
            last_token: 0,
            grants: 0,
            clients: [idle.clone(), idle],
            writes: Vec::new(),
            accepted: (0, 0),
            token_fell: false,
            stale_write_accepted: false,
        }
    }

    pub(super) fn is_valid(&self, client: usize) -> bool {
        matches!(self.clients[client].phase, Phase::Keep { left: 1.., .. })
    }

    pub(super) fn is_lost(&self, client: usize) -> bool {
        matches!(self.clients[client].phase, Phase::Keep { left: 0, .. })
    }

    /// Returns whether the guard exists, and no other client should have been granted the lock.
    pub(super) fn is_in_margin(&self, client: usize) -> bool {
        matches!(self.clients[client].phase, Phase::Keep { kept: 1.., .. })
    }

    pub(super) fn has_late_grant(&self, model: &Keeper) -> bool {
        self.clients.iter().filter_map(|client| client.request).any(|request| {
            matches!(request.reply, Some(Reply::Granted(_))) && request.age + model.margin >= TTL
        })
    }

    pub(super) fn has_late_request(&self) -> bool {
        self.clients.iter().any(|client| client.renewals | client.releases != 0 && client.request.is_none())
    }

    pub(super) fn has_refused_write(&self) -> bool {
        self.writes.iter().any(|(token, _)| *token < self.accepted.0)
    }

    pub(super) fn actions(&self, model: &Keeper, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        if model.gains && self.claim.is_some_and(|claim| claim.may_gain) {
            actions.push(Action::Gain);
        }
        if self.forgets_left > 0 && self.claim.is_some() {
            actions.push(Action::Forget);
        }
        for (at, client) in self.clients.iter().enumerate() {
            actions.push(Action::Suspend(at));
            match client.request {
                Some(request) => {
                    actions.extend([Action::Execute(at), Action::GiveUp(at)]);
                    actions.extend(request.reply.map(|_| Action::Reply(at)));
                }
                None if client.phase == Phase::Release => {
                    actions.extend([Action::Send(at), Action::StopReleasing(at)]);
                }
                None if client.phase != Phase::Idle => actions.push(Action::Send(at)),
                None if client.claim < model.acquisitions[at] => actions.push(Action::Lock(at)),
                None => {}
            }
            if matches!(client.phase, Phase::Contend | Phase::Keep { .. }) {
                actions.push(Action::Leave(at));
            }
            if model.tokens > 0 && self.is_valid(at) {
                actions.push(Action::Write(at));
            }
            for claim in 1..=client.claim {
                if client.renewals & 1 << claim != 0 {
                    actions.push(Action::ExecuteLateRenewal(at, claim));
                }
                if client.releases & 1 << claim != 0 {
                    actions.push(Action::ExecuteLateRelease(at, claim));
                }
            }
        }
        actions.extend(self.writes.iter().map(|(token, grant)| Action::Arrive(*token, *grant)));
    }

    pub(super) fn step(&mut self, model: &Keeper, action: Action) {
        match action {
            Action::Tick => self.tick(None),
            Action::Suspend(at) => self.tick(Some(at).filter(|_| model.mutated(Mutation::StopsInSuspend))),
            Action::Gain => {
                self.claim = self.claim.map(|claim| StoredClaim { may_gain: false, ..claim });
                self.store_tick();
            }
            Action::Forget => {
                self.forgets_left -= 1;
                self.claim = None;
                // A store whose counter is lost continues from its clock, which is ahead of it.
                if model.mutated(Mutation::TokensBeginAgain) {
                    self.last_token = 0;
                }
            }
            Action::Lock(at) => {
                self.clients[at].claim += 1;
                self.clients[at].phase = Phase::Contend;
            }
            Action::Send(at) => self.clients[at].send(model),
            Action::Execute(at) => {
                let Some(request) = self.clients[at].request else { return };
                let id = (at, self.clients[at].claim);
                let reply = self.execute(model, id, request.operation);
                self.clients[at].request = Some(Request { reply: Some(reply), ..request });
            }
            // The driver ignores these replies.
            Action::ExecuteLateRenewal(at, claim) => {
                self.execute(model, (at, claim), Operation::Renew);
            }
            Action::ExecuteLateRelease(at, claim) => {
                self.execute(model, (at, claim), Operation::Release);
            }
            Action::Reply(at) => self.clients[at].receive(model),
            Action::GiveUp(at) => self.clients[at].give_up(model),
            Action::Leave(at) => self.clients[at].phase = Phase::Release,
            Action::StopReleasing(at) => self.clients[at].phase = Phase::Idle,
            Action::Write(at) => {
                if let Phase::Keep { token, .. } = self.clients[at].phase
                    && !self.writes.contains(&token)
                {
                    self.writes.push(token);
                    self.writes.sort_unstable();
                }
            }
            Action::Arrive(token, grant) => {
                if token >= self.accepted.0 || model.mutated(Mutation::AcceptsEveryToken) {
                    self.stale_write_accepted |= grant < self.accepted.1;
                    self.accepted = (token.max(self.accepted.0), grant.max(self.accepted.1));
                }
            }
        }
        self.forget_ineffective_requests(model);
    }

    /// Lets a tick pass on all clocks, except for the clock of a client whose machine is suspended
    /// if that clock stops then.
    fn tick(&mut self, stopped: Option<usize>) {
        self.store_tick();
        for (at, client) in self.clients.iter_mut().enumerate() {
            if stopped == Some(at) {
                continue;
            }
            if let Some(request) = &mut client.request {
                request.age = (request.age + 1).min(TTL);
            }
            if let Phase::Keep { left, kept, .. } = &mut client.phase {
                (*left, *kept) = (left.saturating_sub(1), kept.saturating_sub(1));
            }
        }
    }

    /// Lets a tick pass on the store's clock. The store removes an expired claim before it looks at
    /// any other.
    fn store_tick(&mut self) {
        self.claim = self.claim.map(|claim| StoredClaim { left: claim.left - 1, ..claim });
        self.claim = self.claim.filter(|claim| claim.left > 0);
    }

    /// Executes a request of a claim in the store.
    fn execute(&mut self, model: &Keeper, id: (usize, u8), operation: Operation) -> Reply {
        let is_own = self.claim.is_some_and(|claim| claim.id == id);
        match operation {
            Operation::Attempt if is_own => {
                self.extend(model);
                Reply::Granted(self.claim.map(|claim| claim.token).unwrap_or_default())
            }
            Operation::Attempt if self.claim.is_some() => Reply::Busy,
            Operation::Attempt => {
                let token = self.draw(model);
                self.claim = Some(StoredClaim { id, left: TTL, may_gain: model.gains, token });
                Reply::Granted(token)
            }
            Operation::Renew if is_own => {
                self.extend(model);
                Reply::Renewed
            }
            Operation::Renew => Reply::Lost,
            Operation::Release => {
                if is_own || model.mutated(Mutation::ReleasesAnyClaim) {
                    self.claim = None;
                }
                Reply::Released
            }
        }
    }

    fn extend(&mut self, model: &Keeper) {
        self.claim = self.claim.map(|claim| StoredClaim { left: TTL, may_gain: model.gains, ..claim });
    }

    /// Draws the token and the number of a grant.
    fn draw(&mut self, model: &Keeper) -> (u8, u8) {
        if model.tokens == 0 {
            return (0, 0);
        }
        self.grants += 1;
        self.last_token += 1;
        self.token_fell |= self.last_token < self.grants;
        (self.last_token, self.grants)
    }

    /// Removes late requests that can have no effect, which makes the number of states smaller. A
    /// claim that is not in the store, and is not to be attempted, is never there again.
    fn forget_ineffective_requests(&mut self, model: &Keeper) {
        if model.mutated(Mutation::ReleasesAnyClaim) {
            return;
        }
        for (at, client) in self.clients.iter_mut().enumerate() {
            let mut effective = 0;
            if let Some(claim) = self.claim.filter(|claim| claim.id.0 == at) {
                effective |= 1 << claim.id.1;
            }
            let attempts = client.request.is_some_and(|request| request.operation == Operation::Attempt);
            if client.phase == Phase::Contend || attempts {
                effective |= 1 << client.claim;
            }
            client.renewals &= effective;
            client.releases &= effective;
        }
    }
}
