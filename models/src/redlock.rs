//! RedLock, with two clients and three members, one of which may lose its data.
//!
//! **State.** Each member has at most one claim, with the time for which it keeps the claim by its
//! own clock. Each client has the phase of its claim, the deadline of its guard, and for each member
//! the granted time, whether the hold is based on the member, and whether the member has joined.
//! Times are relative, in ticks, so the model needs no end of time.
//!
//! **Actions.** A client begins a round, which sends each member one request. A member executes it
//! and replies, executes it without a reply, or does not receive it. The client may end the round
//! before all members have replied. Time passes at any step. Depending on [`RedLock`], one member
//! restarts without its data, the clock of a member gains on those of the clients, or an operator
//! breaks the hold on all members.
//!
//! **Properties.** [`OVERLAP`] and [`REGAINED`].
//!
//! **Rules that are modelled**, from `dlock-core/src/stores/redlock/claim.rs` and `hold.rs`:
//! - A hold is valid for the shortest time that a member of the majority grants, less the drift.
//! - A member that grants during a hold is a newcomer. It counts once it has confirmed a renewal,
//!   and gets a vote once a majority of the votes has confirmed renewals that were sent later.
//! - A member that counts, and denies the claim during the granted time, disowns the hold. From then
//!   on only votes count, until a majority of the votes has confirmed renewals that were sent later.
//! - A vote ends with the granted time. Joined newcomers replace it, unless the hold is disowned.
//! - Every claim on a member has a new id, so a late release removes no later claim.
//!
//! **The limit of RedLock.** A member that restarts without its data and replies at once can give a
//! second client a majority. [`RedLock::FORGETFUL`] follows the rule of `docs/semantics.md` that
//! such a member stays away for the longest ttl. [`Mutation::ReturnsAtOnce`] breaks this rule, and
//! the checker finds two valid guards. dlock cannot prevent this and does not detect it.
//!
//! **Less than the real freedom.** The second client does not renew its hold. Two guards overlap
//! first at the grant of the younger, so the model needs only one client that renews. With
//! [`RedLock::tries`] it requests all members in one step. The messages of the second client are not
//! lost, because a loss only takes grants from it. The model ends when the first client has lost its
//! hold.
//!
//! **Not modelled.** Replies that arrive after their round, late executions, detached holds, and the
//! pauses of contenders, which only affect progress.

mod client;
mod count;
mod member;
mod order;
mod properties;
mod state;

use stateright::{Model, Property};

pub use properties::{OVERLAP, REGAINED};
pub use state::State;

pub(crate) const MEMBERS: usize = 3;
pub(crate) const QUORUM: usize = MEMBERS / 2 + 1;
/// Time for which a member keeps a claim after a request for it. A longer time
/// multiplies the number of states.
pub(crate) const TTL: u8 = 2;

/// A change of the rules that the checker has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The rules as they are.
    None,
    /// The hold is valid for the longest time that a member grants.
    TakesLongestTime,
    /// A majority of the members that have replied in the round is enough.
    CountsReplies,
    /// A vote of an earlier round counts towards the majority of a renewal.
    CountsOldVotes,
    /// A newcomer gets a vote at once.
    NewcomersVoteAtOnce,
    /// Only a member with a vote disowns a hold, and not a joined newcomer. A hold that was broken on
    /// all members is then regained after another client has held the lock, if its client reaches
    /// only the newcomer in between.
    NewcomersCannotDisown,
    /// The drift is not subtracted, although the clock of a member gains.
    IgnoresDrift,
    /// A new claim on a member has the id of the former, which a late release removes.
    ReusesIds,
    /// The member that has lost its data replies at once.
    ReturnsAtOnce,
}

/// The model.
#[derive(Clone, Debug)]
pub struct RedLock {
    /// Whether requests of the first client, and their replies, are lost.
    pub loses_messages: bool,
    /// Whether the second client tries once, and does not wait with the members that it has.
    pub tries: bool,
    /// Whether the hold of the first client may be broken on all members, once. Replies are not lost
    /// then, to keep the number of states small.
    pub breaks: bool,
    /// Whether a member may restart once without its data.
    pub forgets: bool,
    /// Whether the clock of a member may gain one tick between two requests that extend a claim.
    pub gains: bool,
    /// The change of the rules.
    pub mutation: Mutation,
}

impl RedLock {
    /// Members that keep their data, and a network that loses messages.
    pub const LOSSY: Self = Self {
        loses_messages: true,
        tries: true,
        breaks: false,
        forgets: false,
        gains: false,
        mutation: Mutation::None,
    };
    /// Members whose clocks gain as much as the drift that the clients allow for.
    pub const DRIFTING: Self = Self { loses_messages: false, tries: false, gains: true, ..Self::LOSSY };
    /// A member that restarts without its data, and stays away for a ttl.
    pub const FORGETFUL: Self = Self { loses_messages: false, tries: false, forgets: true, ..Self::LOSSY };
    /// A forced release.
    pub const BROKEN: Self = Self { breaks: true, ..Self::LOSSY };

    /// Sets the mutation.
    #[must_use]
    pub fn with(mut self, mutation: Mutation) -> Self {
        self.mutation = mutation;
        self
    }

    fn mutated(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }

    /// Time that is subtracted for clocks of different speed.
    fn drift(&self) -> u8 {
        u8::from(self.gains && !self.mutated(Mutation::IgnoresDrift))
    }
}

/// A step. The first number is the client, the second the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A tick passes.
    Tick,
    /// The clock of the member gains a tick.
    Gain(usize),
    /// The member restarts without its data.
    Restart(usize),
    /// The hold of the first client is broken on all members.
    Break,
    /// The client sends a request to each member.
    BeginRound(usize),
    /// A member receives the request of the round.
    Call(usize, usize, Outcome),
    /// The client ends the round, and counts.
    EndRound(usize),
    /// The second client requests all members at once, and releases what is no majority.
    Try,
    /// A contender without a majority, or a holder, releases its claims on all members.
    Release(usize),
    /// The release of an earlier claim reaches the member.
    ExecuteRelease(usize, usize),
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The member has executed the request, and the reply arrives.
    Replied,
    /// The member has executed the request, and the reply is lost.
    ReplyLost,
    /// The request is lost.
    RequestLost,
}

impl Model for RedLock {
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
        if next == *state {
            return None;
        }
        // The paths of counterexamples are easier to read with constant numbers.
        Some(if self.mutation == Mutation::None { next.renumbered() } else { next })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::of(self)
    }
}
