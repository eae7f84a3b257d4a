//! Late requests, which the store executes after their callers have given them up, in the life of a
//! claim with a detachment and its resumption.
//!
//! **State.** The store has at most one hold, under the id of a claim or under that of the ticket,
//! with the time for which it keeps the hold. Four clients use it: the first holder, who may detach
//! the hold, two clients that may take it over by ticket, and another contender. The network has
//! the requests whose reply never arrives.
//!
//! **Actions.** A client calls the store, and the reply arrives. Or the request is slow. The store
//! then executes it at any later time, also repeatedly, and the driver gives it up at its time limit.
//! The caller may leave at any time. The store's clock may stand still for a tick, which is the
//! error of the driver's reading of that clock.
//!
//! **Properties.** A request that was given up must not create, free, shorten, extend or rename a
//! hold: [`CREATED`], [`FREED`], [`SHORTENED`], [`EXTENDED`] and [`RENAMED`]. [`FREED`] also applies
//! to a release that is not late. [`LEFT`] applies to clients that have ended. A client may still
//! extend or free its own hold late, because it has not finished with it.
//!
//! **Rules that are modelled**, from `docs/backends.md`:
//! - A renewal finds the claim's own id only, and never shortens the time.
//! - A release finds only the claim's own id and the ticket of its own detachment.
//! - A detachment renames the hold. It also extends a hold that has the ticket's id.
//! - An attempt, a detachment and a resumption carry a deadline on the store's clock. It is earlier
//!   than the time limit of the driver, by the error of the clock.
//! - The engine hands a hold back to its ticket if the caller of a resumption leaves:
//!   `dlock-core/src/engine/detached.rs`.
//!
//! - A driver may give an attempt or a resumption up before its deadline, because its connection has
//!   broken. After the end of the claim the engine waits for the time limit of the request. Then it
//!   returns the hold to its ticket, or releases the claim once more:
//!   `dlock-core/src/engine/keeper/settle.rs`. Until then the request may create a hold or hand it
//!   over.
//!
//! **Not modelled.** The other two conditions, a revision and the order of the connection, waiters, a
//! detachment that is given up before its deadline, and a store that forgets.

mod state;
mod store;

use stateright::{Model, Property};

pub use state::State;

/// No late request creates a hold.
pub const CREATED: &str = "no late request creates a hold";
/// No late request frees a hold, and no release frees a hold that has the id of a delivered ticket.
pub const FREED: &str = "no request frees a hold that another client relies on";
/// No late request shortens a hold.
pub const SHORTENED: &str = "no late request shortens a hold";
/// No late request extends a hold of another client or of a ticket.
pub const EXTENDED: &str = "no late request extends a hold that its client does not have";
/// No hold is left under the id of a client that has ended.
pub const LEFT: &str = "no client that has ended leaves a hold";
/// No late request gives a hold another id.
pub const RENAMED: &str = "no late request hands a hold over";

/// A change of the rules that the checker has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The rules as they are.
    None,
    /// An attempt has no deadline.
    AttemptsWithoutDeadline,
    /// A detachment has no deadline.
    DetachesWithoutDeadline,
    /// A resumption has no deadline.
    ResumesWithoutDeadline,
    /// The deadlines are as late as the time limit of the driver.
    IgnoresClockError,
    /// A renewal extends the hold that it finds, whatever its id.
    RenewsAnyHold,
    /// A renewal of a claim that was deleted creates it.
    RenewsDeletedClaim,
    /// A release frees the hold that it finds, whatever its id.
    ReleasesAnyHold,
    /// A detached hold keeps the id of its claim.
    DetachKeepsId,
    /// A detached hold keeps the id of its claim, and a renewal sets the time unconditionally.
    RenewalShortens,
    /// The release after a hand-back that found no hold names the ticket too, which another client
    /// may have handed back in between.
    FreesTicketAfterHandBack,
    /// A claim is not released once more after the time limit of a request that was given up early.
    NeverSettles,
    /// A claim is released once more, and its hold is not returned to the ticket before.
    SettlesWithoutTicket,
    /// A claim that found no hold to take over or to hand back is released while a resumption that
    /// was given up early may still be executed.
    ReleasesBeforeItSettles,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Late {
    /// Maximum number of slow requests.
    pub slow_requests: u8,
    /// The change of the rules.
    pub mutation: Mutation,
}

impl Late {
    /// The rules of the model, with up to two slow requests.
    pub const RULES: Self = Self { slow_requests: 2, mutation: Mutation::None };

    /// Sets the mutation.
    #[must_use]
    pub fn with(mut self, mutation: Mutation) -> Self {
        self.mutation = mutation;
        self
    }

    fn mutated(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }

    fn keeps_id(&self) -> bool {
        self.mutated(Mutation::DetachKeepsId) || self.mutated(Mutation::RenewalShortens)
    }
}

/// A request to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// Requests the lock.
    Attempt,
    /// Extends the client's hold.
    Renew,
    /// Leaves the hold under the ticket's id.
    Detach,
    /// Takes the hold over from the ticket.
    Resume,
    /// Frees the client's hold.
    Release,
    /// Frees the client's hold, whether or not it was detached.
    ReleaseOrTicket,
}

/// A step. The number is the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A tick passes on all clocks.
    Tick,
    /// A tick passes on all clocks except the store's.
    StoreStands,
    /// The client sends a request, the store executes it, and the reply arrives.
    Call(usize, Operation),
    /// The client sends a request that is slow.
    CallSlowly(usize, Operation),
    /// The store executes a slow request: its position in the list, its client and its operation.
    Execute(usize, usize, Operation),
    /// The driver of the client gives its request up.
    GiveUp(usize),
    /// The caller leaves, or the guard is dropped.
    Leave(usize),
    /// The caller of a resumption receives its guard.
    Accept(usize),
}

/// The effect of a late request on a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Effect {
    Created,
    Freed,
    Shortened,
    Extended,
    Renamed,
}

impl Model for Late {
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
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(CREATED, |_, state: &State| state.effect != Some(Effect::Created)),
            Property::always(FREED, |_, state: &State| state.effect != Some(Effect::Freed)),
            Property::always(SHORTENED, |_, state: &State| state.effect != Some(Effect::Shortened)),
            Property::always(EXTENDED, |_, state: &State| state.effect != Some(Effect::Extended)),
            Property::always(RENAMED, |_, state: &State| state.effect != Some(Effect::Renamed)),
            Property::always(LEFT, |_, state: &State| !state.has_ended_client_with_hold()),
            Property::sometimes("two clients have taken the hold over", |_, state: &State| {
                state.was_taken_over_twice()
            }),
            Property::sometimes("a late attempt meets a free lock", |_, state: &State| {
                state.has_late(Operation::Attempt) && state.is_free()
            }),
            Property::sometimes("a late renewal meets a detached hold", |_, state: &State| {
                state.has_late(Operation::Renew) && state.is_detached()
            }),
            Property::sometimes("a late detachment meets a hold of its client", |_, state: &State| {
                state.has_late(Operation::Detach) && state.is_held_by(state::HOLDER)
            }),
            Property::sometimes("a late resumption meets a detached hold", |_, state: &State| {
                state.has_late(Operation::Resume) && state.is_detached()
            }),
            Property::sometimes("a late release meets the hold of the next client", |_, state: &State| {
                state.has_late(Operation::Release) && state.is_held_by(state::CONTENDER)
            }),
        ]
    }
}
