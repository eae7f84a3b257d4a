//! Waiters, as three clients in the queue of one store, with a bounded number of faults.
//!
//! **State.** The store has a queue of claims, each with the time for which it keeps the claim.
//! Each client waits, holds, releases, has finished or has crashed, and knows the time of its next
//! request.
//!
//! **Actions.** A client whose request is due sends it. The reply arrives, or the request, its
//! reply or the hint of a release is lost. A client may skip a tick, or crash. Each loss, pause and
//! crash is a fault. A tick passes only when no client has a request due, so a client without
//! faults is never late.
//!
//! **Properties.** [`GRANTED`], and [`ENDS`], which shows that no path is cut off by the horizon of
//! the model.
//!
//! Every step takes a fault, a hint, a due request or a tick, and each of these is bounded. The
//! states therefore form a graph without cycles. A waiter that was granted once has been granted in
//! every later state. Under these two conditions the `eventually` of the checker is exact.
//!
//! **Rules that are modelled.**
//! - A waiter attempts at a hint, and at the latest after a third of its ttl. A transient failure
//!   ends the pause, and not the contest: `dlock-core/src/engine/keeper/contend.rs`.
//! - The first claim in the queue holds, and an attempt keeps the place of its claim:
//!   `dlock-core/src/contract/queue.rs`.
//! - A release is repeated until the store has confirmed it or has forgotten the claim:
//!   `dlock-core/src/engine/keeper/release.rs`.
//!
//! **Not modelled.** Late requests, which the models [`keeper`](crate::keeper) and
//! [`late`](crate::late) have, and clients without an end: a store that never replies, or endless
//! faults, may keep a waiter waiting forever. A caller that leaves is not granted either.

use stateright::{Model, Property};

/// Every client that does not crash is granted the lock.
pub const GRANTED: &str = "every waiter that does not crash is granted the lock";
/// Every path of the model ends before the horizon.
pub const ENDS: &str = "all clients have finished before the horizon";

const CLIENTS: usize = 3;
/// Time for which the store keeps a claim after a request for it.
const TTL: u8 = 3;
/// Time between two attempts, and between two renewals: a third of the ttl.
const INTERVAL: u8 = TTL / 3;
/// Time for which each client holds the lock.
const WORK: u8 = 2;
/// Time at which paths of the model are cut off.
const HORIZON: u8 = 40;
/// Interval of a client that sends no further request.
const NEVER: u8 = u8::MAX;

/// A change of the rules that the checker has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The rules as they are.
    None,
    /// A waiter attempts only at hints.
    SleepsUntilHint,
    /// The store keeps a claim until it is released.
    KeepsClaims,
    /// The first failure of an attempt ends the contest.
    GivesUp,
    /// An attempt moves its claim to the end of the queue.
    LosesPlace,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Waiters {
    /// Maximum number of faults.
    pub faults: u8,
    /// The change of the rules.
    pub mutation: Mutation,
}

/// A step. The number is the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A tick passes.
    Tick,
    /// The client sends its request.
    Call(usize, Outcome),
    /// The client is paused for a tick.
    Pause(usize),
    /// The client never runs again.
    Crash(usize),
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The store has executed the request, and the reply arrives.
    Replied,
    /// The store has executed the request, and the reply is lost.
    ReplyLost,
    /// The request is lost.
    RequestLost,
    /// As [`Replied`](Self::Replied), but the hint for the next waiter is lost.
    HintLost,
}

/// The state of all parts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    now: u8,
    faults: u8,
    /// Client of each claim, in order of arrival, and time until the store deletes the claim.
    queue: Vec<(usize, u8)>,
    clients: [Client; CLIENTS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Client {
    phase: Phase,
    was_granted: bool,
    /// Time until the next request.
    next: u8,
    is_hinted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Wait,
    Hold {
        work: u8,
    },
    Release {
        /// Time until the store has forgotten the claim by itself.
        forgotten_in: u8,
    },
    Done,
    Crashed,
}

impl Waiters {
    /// The rules as they are, with up to three faults.
    pub const FAULTY: Self = Self { faults: 3, mutation: Mutation::None };

    /// Sets the mutation.
    #[must_use]
    pub fn with(mut self, mutation: Mutation) -> Self {
        self.mutation = mutation;
        self
    }
}

impl Model for Waiters {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = Client { phase: Phase::Wait, was_granted: false, next: 0, is_hinted: false };
        vec![State { now: 0, faults: self.faults, queue: Vec::new(), clients: [client; CLIENTS] }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now == HORIZON || state.clients.iter().all(Client::has_ended) {
            return;
        }
        if state.clients.iter().all(|client| !client.is_due()) {
            actions.push(Action::Tick);
        }
        for (at, client) in state.clients.iter().enumerate() {
            if client.is_due() {
                actions.push(Action::Call(at, Outcome::Replied));
            }
            if state.faults > 0 && client.is_due() {
                let outcomes = [Outcome::ReplyLost, Outcome::RequestLost];
                actions.extend(outcomes.map(|outcome| Action::Call(at, outcome)));
                if matches!(client.phase, Phase::Hold { work: 0 } | Phase::Release { .. }) {
                    actions.push(Action::Call(at, Outcome::HintLost));
                }
                actions.push(Action::Pause(at));
            }
            if state.faults > 0 && !client.has_ended() {
                actions.push(Action::Crash(at));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Tick => next.tick(self.mutation),
            Action::Call(at, outcome) => next.call(self.mutation, at, outcome),
            Action::Pause(at) => {
                next.faults -= 1;
                (next.clients[at].next, next.clients[at].is_hinted) = (1, false);
            }
            Action::Crash(at) => {
                next.faults -= 1;
                (next.clients[at].phase, next.clients[at].is_hinted) = (Phase::Crashed, false);
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::eventually(GRANTED, |_, state: &State| state.clients.iter().all(Client::is_served)),
            Property::always(ENDS, |model, state: &State| {
                state.now < HORIZON || model.mutation != Mutation::None
            }),
            Property::sometimes("a waiter is granted after a crash of the holder", |_, state: &State| {
                let crashed = |client: &Client| client.phase == Phase::Crashed && client.was_granted;
                state.clients.iter().any(crashed) && state.clients.iter().any(Client::holds)
            }),
            Property::sometimes("a holder has lost its claim in the store", |_, state: &State| {
                let is_stored = |at: usize| state.queue.iter().any(|(client, _)| *client == at);
                (0..CLIENTS).any(|at| state.clients[at].holds() && !is_stored(at))
            }),
            Property::sometimes("a waiter is hinted", |_, state: &State| {
                state.clients.iter().any(|client| client.is_hinted)
            }),
        ]
    }
}

impl Client {
    fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Done | Phase::Crashed)
    }

    fn is_due(&self) -> bool {
        !self.has_ended() && (self.next == 0 || self.is_hinted)
    }

    fn is_served(&self) -> bool {
        self.was_granted || self.phase == Phase::Crashed
    }

    fn holds(&self) -> bool {
        matches!(self.phase, Phase::Hold { .. })
    }
}

impl State {
    fn tick(&mut self, mutation: Mutation) {
        self.now += 1;
        if mutation != Mutation::KeepsClaims {
            self.queue.iter_mut().for_each(|(_, left)| *left -= 1);
            self.queue.retain(|(_, left)| *left > 0);
        }
        for client in &mut self.clients {
            if client.next != NEVER {
                client.next = client.next.saturating_sub(1);
            }
            match &mut client.phase {
                Phase::Hold { work } => *work = work.saturating_sub(1),
                Phase::Release { forgotten_in } => *forgotten_in = forgotten_in.saturating_sub(1),
                Phase::Wait | Phase::Done | Phase::Crashed => {}
            }
        }
    }

    fn call(&mut self, mutation: Mutation, at: usize, outcome: Outcome) {
        if outcome != Outcome::Replied {
            self.faults -= 1;
        }
        self.clients[at].is_hinted = false;
        self.clients[at].next = INTERVAL;
        let is_executed = outcome != Outcome::RequestLost;
        let is_replied = matches!(outcome, Outcome::Replied | Outcome::HintLost);
        match self.clients[at].phase {
            Phase::Wait => {
                if is_executed {
                    self.attempt(mutation, at);
                }
                if !is_replied {
                    if mutation == Mutation::GivesUp {
                        self.clients[at].phase = Phase::Release { forgotten_in: TTL };
                    }
                } else if self.queue.first().is_some_and(|(first, _)| *first == at) {
                    self.clients[at].was_granted = true;
                    self.clients[at].phase = Phase::Hold { work: WORK };
                } else if mutation == Mutation::SleepsUntilHint {
                    self.clients[at].next = NEVER;
                }
            }
            Phase::Hold { work: 1.. } => {
                let claim = self.queue.iter_mut().find(|(client, _)| *client == at && is_executed);
                let is_lost = claim.map(|(_, left)| *left = TTL).is_none();
                if is_lost && is_replied {
                    self.clients[at].phase = Phase::Release { forgotten_in: TTL };
                }
            }
            Phase::Hold { work: 0 } | Phase::Release { .. } => {
                if is_executed {
                    self.release(at, outcome);
                }
                self.clients[at].phase = match self.clients[at].phase {
                    _ if is_replied => Phase::Done,
                    Phase::Release { forgotten_in: 0 } => Phase::Done,
                    Phase::Release { forgotten_in } => Phase::Release { forgotten_in },
                    _ => Phase::Release { forgotten_in: TTL },
                };
            }
            Phase::Done | Phase::Crashed => {}
        }
    }

    /// Keeps the claim of a waiter alive in its place, or puts it at the end of the queue.
    fn attempt(&mut self, mutation: Mutation, at: usize) {
        if mutation == Mutation::LosesPlace {
            self.queue.retain(|(client, _)| *client != at);
        }
        match self.queue.iter_mut().find(|(client, _)| *client == at) {
            Some((_, left)) => *left = TTL,
            None => self.queue.push((at, TTL)),
        }
    }

    /// Deletes a claim, and sends a hint to the waiter behind it.
    fn release(&mut self, at: usize, outcome: Outcome) {
        let was_first = self.queue.first().is_some_and(|(first, _)| *first == at);
        self.queue.retain(|(client, _)| *client != at);
        let next = self.queue.first().filter(|_| was_first && outcome != Outcome::HintLost);
        if let Some((next, _)) = next {
            let next = &mut self.clients[*next];
            next.is_hinted = next.phase == Phase::Wait;
        }
    }
}
