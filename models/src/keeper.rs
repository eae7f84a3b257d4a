//! The keeper, for two clients of one store, with a network that loses, repeats and delays messages.
//!
//! **State.** The store has at most one claim, with the time for which it keeps the claim by its
//! own clock. Each client has the phase of its keeper, the request in flight with its age, the
//! deadline of its guard, and the requests of former calls that may still be executed. The resource
//! has the greatest token that it has accepted. All times are relative, in ticks, so the model
//! needs no end of time.
//!
//! **Actions.** Time passes at any step, so every process may pause between any two of its steps.
//! A request may be executed at any time after it was sent, also repeatedly, and also after its
//! driver has given it up. Its reply may arrive at any time, or never. The caller may leave, and
//! the guard may be dropped, at any time. Depending on [`Keeper`], the store's clock gains on the
//! clients' clocks, or the store forgets its data.
//!
//! **Properties.** [`OVERLAP`], [`MARGIN`], [`TOKEN`] and [`STALE`].
//!
//! **Rules that are modelled.**
//! - The deadline counts from before the request was sent, and ends a margin before the time of the
//!   claim: `dlock-core/src/engine/limits.rs`.
//! - A grant that arrives after its deadline is a failure: `check_in_time` in
//!   `dlock-core/src/engine/keeper.rs`.
//! - A loss is final, so a late renewal revives no guard: `Hold::extend` in
//!   `dlock-core/src/engine/hold.rs`.
//! - The claim of a lost guard stays until the margin ends or the guard is dropped:
//!   `stay_within_margin` in `dlock-core/src/engine/keeper/keep.rs`.
//! - Every request names the id of one acquisition, and an attempt is not executed after its driver
//!   has given it up: `docs/backends.md`. The model [`late`](crate::late) shows how.
//!
//! **A guard is exact only when it is checked.** A process may pause between the check and the
//! write that follows. The model therefore lets a write arrive at any time after a check that
//! succeeded. No deadline prevents a stale write. The token does, if the resource compares it.
//!
//! **Not modelled.** Queues and hints, which [`waiters`](crate::waiters) models, re-entry, leases,
//! and stores with sessions. Renewals and repetitions are sent at any time, which includes the
//! times of the real keeper.

mod client;
mod properties;
mod state;

use stateright::{Model, Property};

pub use properties::{MARGIN, OVERLAP, STALE, TOKEN};
pub use state::State;

/// Time for which the store keeps a claim after a request for it.
pub(crate) const TTL: u8 = 3;

/// A change of the rules that the checker has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The rules as they are.
    None,
    /// The deadline counts from the arrival of the reply instead of the sending of the request.
    DeadlineFromReply,
    /// The guard has no margin, although the store's clock gains on that of the holder.
    NoMargin,
    /// The deadline is kept only on a clock that stops while the machine is suspended.
    StopsInSuspend,
    /// The reply to a request that the driver has given up counts as the reply to the next request.
    AcceptsEarlierReply,
    /// A release deletes the claim that it finds, whatever its id.
    ReleasesAnyClaim,
    /// The keeper releases a lost claim although its holder may still be stopping its work.
    ReleasesAtDeadline,
    /// The tokens begin again after the store has lost its data.
    TokensBeginAgain,
    /// The resource accepts every write.
    AcceptsEveryToken,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Keeper {
    /// Number of acquisitions of each client.
    pub acquisitions: [u8; 2],
    /// Time from the deadline of a guard to the end of its claim in the store.
    pub margin: u8,
    /// Whether the store's clock may gain one tick between two requests that extend the claim.
    pub gains: bool,
    /// Number of times that the store may lose its data.
    pub forgets: u8,
    /// Maximum number of grants with a token. Zero for a model without tokens and writes.
    pub tokens: u8,
    /// The change of the rules.
    pub mutation: Mutation,
}

impl Keeper {
    /// Clocks that run at the same speed, and no margin.
    pub const EXACT_CLOCKS: Self = Self {
        acquisitions: [2, 2],
        margin: 0,
        gains: false,
        forgets: 0,
        tokens: 0,
        mutation: Mutation::None,
    };
    /// A margin, in which a holder stops its work.
    pub const MARGIN: Self = Self { margin: 1, ..Self::EXACT_CLOCKS };
    /// A store whose clock gains as much as the margin.
    pub const FAST_STORE: Self = Self { gains: true, ..Self::MARGIN };
    /// A store that loses its data once, and a resource that compares tokens.
    pub const FORGETFUL_STORE: Self =
        Self { acquisitions: [1, 1], forgets: 1, tokens: 3, ..Self::EXACT_CLOCKS };

    /// Sets the mutation.
    #[must_use]
    pub fn with(mut self, mutation: Mutation) -> Self {
        self.mutation = mutation;
        self
    }

    fn mutated(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }

    fn margin(&self) -> u8 {
        if self.mutated(Mutation::NoMargin) { 0 } else { self.margin }
    }
}

/// A step. The first number is the client, the second the claim of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A tick passes.
    Tick,
    /// A tick passes while the machine of the client is suspended.
    Suspend(usize),
    /// The store's clock gains a tick.
    Gain,
    /// The store loses its data.
    Forget,
    /// The caller requests the lock.
    Lock(usize),
    /// The keeper sends the request of its phase.
    Send(usize),
    /// The store executes the request in flight.
    Execute(usize),
    /// The store executes a renewal of an earlier call, or once more.
    ExecuteLateRenewal(usize, u8),
    /// The store executes a release of an earlier call, or once more.
    ExecuteLateRelease(usize, u8),
    /// The reply to the request in flight arrives.
    Reply(usize),
    /// The driver gives the request in flight up.
    GiveUp(usize),
    /// The caller leaves, or the guard is dropped.
    Leave(usize),
    /// The keeper ends, because the store has forgotten the claim by itself.
    StopReleasing(usize),
    /// The holder finds that the guard is not lost, and sends a write with its token.
    Write(usize),
    /// The write with this token and this number of its grant arrives at the resource.
    Arrive(u8, u8),
}

impl Model for Keeper {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.actions(self, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        next.step(self, action);
        (next != *state && next.grants <= self.tokens).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::of(self)
    }
}
