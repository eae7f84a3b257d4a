//! The state of the model, and its steps.

use super::{Action, Effect, Late, Mutation, Operation, store::StoredHold};

/// Time after which a driver gives a request up.
const TIME_LIMIT: u8 = 2;
/// Maximum error of a driver's reading of the store's clock.
const CLOCK_ERROR: u8 = 1;

const CLIENTS: usize = 4;
/// The first holder, who may detach its hold.
pub(super) const HOLDER: usize = 0;
/// The clients that may take the hold over by ticket.
const TAKERS: [usize; 2] = [1, 2];
/// Another contender for the lock.
pub(super) const CONTENDER: usize = 3;

/// The state of all parts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) hold: Option<StoredHold>,
    clients: [Client; CLIENTS],
    /// Requests whose reply never arrives. They may be executed at any time, and repeatedly.
    slow: Vec<SlowRequest>,
    slow_left: u8,
    /// Number of ticks for which the store's clock may still stand.
    stands_left: u8,
    /// Whether the first holder has a ticket.
    has_ticket: bool,
    /// The effect of a late request that breaks a property.
    pub(super) effect: Option<Effect>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct SlowRequest {
    client: usize,
    operation: Operation,
    /// Time until the deadline on the store's clock. `None` if the request has no deadline.
    until: Option<u8>,
    is_given_up: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Client {
    phase: Phase,
    /// Time since the slow request in flight was sent.
    waits: Option<u8>,
    /// Whether the claim object has sent a detachment.
    has_detached: bool,
    /// Whether the client has taken the hold over.
    has_resumed: bool,
    /// Time after which the store refuses the attempts and resumptions that were given up early.
    late_for: u8,
    /// Whether one of them is a resumption, so that the hold returns to the ticket.
    resumes_late: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// A taker that has not used the ticket.
    Idle,
    Contend,
    Keep,
    /// The outcome of a detachment is unknown. The next request repeats or undoes it.
    Detaching,
    /// The outcome of a resumption is unknown.
    Resuming,
    /// The hold was taken over, and the caller has not received it.
    Offered,
    HandBack,
    Release,
    /// The claim has ended, and late requests of it may still be executed. `to_ticket` says whether
    /// a hold of the claim returns to the ticket before the release.
    Settle {
        to_ticket: bool,
    },
    Ended,
}

impl State {
    pub(super) fn new(model: &Late) -> Self {
        let phase = Phase::Contend;
        let client = Client {
            phase,
            waits: None,
            has_detached: false,
            has_resumed: false,
            late_for: 0,
            resumes_late: false,
        };
        let mut clients = [client; CLIENTS];
        TAKERS.iter().for_each(|at| clients[*at].phase = Phase::Idle);
        Self {
            hold: None,
            clients,
            slow: Vec::new(),
            slow_left: model.slow_requests,
            stands_left: CLOCK_ERROR,
            has_ticket: false,
            effect: None,
        }
    }

    pub(super) fn is_free(&self) -> bool {
        self.hold.is_none()
    }

    pub(super) fn is_detached(&self) -> bool {
        self.hold.is_some_and(|hold| hold.is_detached)
    }

    pub(super) fn is_held_by(&self, client: usize) -> bool {
        self.hold.is_some_and(|hold| hold.id == Some(client))
    }

    pub(super) fn has_ended_client_with_hold(&self) -> bool {
        let holder = self.hold.and_then(|hold| hold.id).map(|holder| &self.clients[holder]);
        let is_detached = self.is_detached();
        holder.is_some_and(|client| client.phase == Phase::Ended && !is_detached)
    }

    pub(super) fn was_taken_over_twice(&self) -> bool {
        TAKERS.iter().all(|at| self.clients[*at].has_resumed)
    }

    pub(super) fn has_late(&self, operation: Operation) -> bool {
        self.slow.iter().any(|request| request.is_given_up && request.operation == operation)
    }

    pub(super) fn actions(&self, model: &Late, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        if self.stands_left > 0 {
            actions.push(Action::StoreStands);
        }
        for (at, client) in self.clients.iter().enumerate() {
            if let Some(age) = client.waits {
                let mut awaited =
                    self.slow.iter().filter(|request| request.client == at && !request.is_given_up);
                if age >= TIME_LIMIT || awaited.any(|request| gives_up_early(request.operation)) {
                    actions.push(Action::GiveUp(at));
                }
                continue;
            }
            for operation in self.operations(model, at) {
                actions.push(Action::Call(at, *operation));
                if self.slow_left > 0 {
                    actions.push(Action::CallSlowly(at, *operation));
                }
            }
            if matches!(
                client.phase,
                Phase::Contend | Phase::Keep | Phase::Detaching | Phase::Resuming | Phase::Offered
            ) {
                actions.push(Action::Leave(at));
            }
            if client.phase == Phase::Offered {
                actions.push(Action::Accept(at));
            }
        }
        let slow = self.slow.iter().enumerate();
        actions.extend(slow.map(|(at, request)| Action::Execute(at, request.client, request.operation)));
    }

    /// Returns the requests that a client may send in its phase.
    fn operations(&self, model: &Late, at: usize) -> &'static [Operation] {
        let client = &self.clients[at];
        match client.phase {
            Phase::Idle if self.has_ticket => &[Operation::Resume],
            Phase::Idle | Phase::Offered | Phase::Ended => &[],
            Phase::Settle { .. } if client.late_for > 0 => &[],
            Phase::Settle { to_ticket: true } => &[Operation::Detach],
            Phase::Settle { to_ticket: false } => &[Operation::Release],
            Phase::Contend => &[Operation::Attempt],
            Phase::Keep if at == HOLDER => &[Operation::Renew, Operation::Detach],
            Phase::Keep => &[Operation::Renew],
            Phase::Detaching => &[Operation::Detach, Operation::Resume],
            Phase::Resuming => &[Operation::Resume],
            Phase::HandBack => &[Operation::Detach],
            Phase::Release if !client.has_detached => &[Operation::Release],
            Phase::Release if at == HOLDER || model.mutated(Mutation::FreesTicketAfterHandBack) => {
                &[Operation::ReleaseOrTicket]
            }
            Phase::Release => &[Operation::Release],
        }
    }

    pub(super) fn step(&mut self, model: &Late, action: Action) {
        match action {
            Action::Tick => {
                self.store_tick();
                self.clients_tick();
            }
            Action::StoreStands => {
                self.stands_left -= 1;
                self.clients_tick();
            }
            Action::Call(at, operation) => {
                self.clients[at].has_detached |= operation == Operation::Detach;
                let before = self.hold;
                let has_hold = self.execute(model, at, operation);
                // Not late, but the ticket belongs to the first holder.
                if self.hold.is_none() && before.is_some_and(|hold| self.relies_on_ticket(hold)) {
                    self.effect = Some(Effect::Freed);
                }
                self.receive(model, at, operation, has_hold);
            }
            Action::CallSlowly(at, operation) => self.send_slowly(model, at, operation),
            Action::Execute(request, ..) => self.execute_slow(model, request),
            Action::GiveUp(at) => self.give_up(at),
            Action::Leave(at) => {
                self.clients[at].phase = match self.clients[at].phase {
                    Phase::Resuming | Phase::Offered => Phase::HandBack,
                    _ => Phase::Release,
                };
            }
            Action::Accept(at) => self.clients[at].phase = Phase::Keep,
        }
    }

    fn store_tick(&mut self) {
        self.hold = self.hold.map(|hold| StoredHold { left: hold.left - 1, ..hold });
        self.hold = self.hold.filter(|hold| hold.left > 0);
        for request in &mut self.slow {
            request.until = request.until.map(|until| until.saturating_sub(1));
        }
    }

    fn clients_tick(&mut self) {
        for client in &mut self.clients {
            client.waits = client.waits.map(|age| (age + 1).min(TIME_LIMIT));
            client.late_for = client.late_for.saturating_sub(1);
        }
    }

    fn send_slowly(&mut self, model: &Late, client: usize, operation: Operation) {
        self.slow_left -= 1;
        self.clients[client].waits = Some(0);
        self.clients[client].has_detached |= operation == Operation::Detach;
        let deadline =
            if model.mutated(Mutation::IgnoresClockError) { TIME_LIMIT } else { TIME_LIMIT - CLOCK_ERROR };
        let has_deadline = match operation {
            Operation::Attempt => !model.mutated(Mutation::AttemptsWithoutDeadline),
            Operation::Detach => !model.mutated(Mutation::DetachesWithoutDeadline),
            Operation::Resume => !model.mutated(Mutation::ResumesWithoutDeadline),
            Operation::Renew | Operation::Release | Operation::ReleaseOrTicket => false,
        };
        let until = has_deadline.then_some(deadline);
        self.slow.push(SlowRequest { client, operation, until, is_given_up: false });
        self.slow.sort_unstable();
    }

    /// Executes a slow request, and records an effect that a late request must not have.
    fn execute_slow(&mut self, model: &Late, request: usize) {
        let SlowRequest { client, operation, until, is_given_up } = self.slow[request];
        if until == Some(0) {
            // The store refuses the request.
            return;
        }
        let before = self.hold;
        self.execute(model, client, operation);
        let is_own = |hold: StoredHold| hold.id == Some(client) && !hold.is_detached;
        let effect = match (before, self.hold) {
            (None, Some(_)) => Some(Effect::Created),
            // The ticket of the first holder counts only once the holder has received it.
            (Some(before), None) if before.id.is_none() => {
                self.relies_on_ticket(before).then_some(Effect::Freed)
            }
            (Some(before), None) => (!is_own(before)).then_some(Effect::Freed),
            (Some(before), Some(after)) if before.id != after.id => Some(Effect::Renamed),
            (Some(before), Some(after)) if after.left < before.left => Some(Effect::Shortened),
            (Some(before), Some(after)) if after.left > before.left => {
                (!is_own(before)).then_some(Effect::Extended)
            }
            _ => None,
        };
        let is_late = is_given_up && !self.is_settled_later(client, operation);
        self.effect = self.effect.or(effect.filter(|_| is_late));
    }

    /// Returns whether a later request of the client removes the effect of this one.
    fn is_settled_later(&self, client: usize, operation: Operation) -> bool {
        let phase = self.clients[client].phase;
        match operation {
            Operation::Attempt => {
                matches!(phase, Phase::Contend | Phase::Release | Phase::Settle { .. })
            }
            // The first holder undoes its own detachment.
            Operation::Resume if client == HOLDER => {
                matches!(phase, Phase::Detaching | Phase::Release | Phase::Settle { to_ticket: true })
            }
            Operation::Resume => {
                matches!(phase, Phase::Resuming | Phase::HandBack | Phase::Settle { to_ticket: true })
            }
            _ => false,
        }
    }

    fn relies_on_ticket(&self, hold: StoredHold) -> bool {
        hold.id.is_none() && self.has_ticket
    }

    /// Handles the reply to a request.
    fn receive(&mut self, model: &Late, at: usize, operation: Operation, has_hold: bool) {
        let client = &mut self.clients[at];
        let is_late = client.late_for > 0 && !model.mutated(Mutation::NeverSettles);
        let to_ticket = client.resumes_late && !model.mutated(Mutation::SettlesWithoutTicket);
        let end = if is_late { Phase::Settle { to_ticket } } else { Phase::Ended };
        client.phase = match (operation, client.phase) {
            (Operation::Release | Operation::ReleaseOrTicket, Phase::Settle { .. }) => Phase::Ended,
            (Operation::Release | Operation::ReleaseOrTicket, _) => end,
            (Operation::Detach, Phase::Settle { .. }) => Phase::Settle { to_ticket: false },
            (Operation::Attempt, _) if has_hold => Phase::Keep,
            (Operation::Attempt, phase) => phase,
            (Operation::Detach, _) if has_hold => {
                self.has_ticket |= at == HOLDER;
                end
            }
            // A release could free the hold that a late resumption has taken from the ticket.
            (Operation::Detach | Operation::Resume, Phase::HandBack | Phase::Resuming)
                if is_late && !has_hold && !model.mutated(Mutation::ReleasesBeforeItSettles) =>
            {
                end
            }
            (Operation::Resume, Phase::Detaching) if has_hold => Phase::Keep,
            (Operation::Resume, _) if has_hold => {
                client.has_resumed = true;
                Phase::Offered
            }
            (Operation::Renew, phase) if has_hold => phase,
            // The hold is lost. The release removes what is left of it.
            (Operation::Renew | Operation::Detach | Operation::Resume, _) => Phase::Release,
        };
    }

    /// Gives the request in flight of a client up. Its outcome is unknown.
    fn give_up(&mut self, at: usize) {
        let age = self.clients[at].waits.take().unwrap_or_default();
        for request in self.slow.iter_mut().filter(|request| request.client == at && !request.is_given_up) {
            request.is_given_up = true;
            if gives_up_early(request.operation) {
                let late_for = &mut self.clients[at].late_for;
                *late_for = (TIME_LIMIT - age).max(*late_for);
                self.clients[at].resumes_late |= request.operation == Operation::Resume;
            }
        }
        self.slow.sort_unstable();
        let client = &mut self.clients[at];
        client.phase = match client.phase {
            Phase::Keep if client.has_detached => Phase::Detaching,
            Phase::Idle => Phase::Resuming,
            phase => phase,
        };
    }
}

/// Returns whether a driver gives up a request of this type when its connection breaks, before its
/// deadline.
fn gives_up_early(operation: Operation) -> bool {
    matches!(operation, Operation::Attempt | Operation::Resume)
}
