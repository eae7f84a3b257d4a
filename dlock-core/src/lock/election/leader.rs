//! The leader of an election, as others see it.

use std::sync::Arc;

use tokio::time::Instant;

use crate::{contract::Contender, engine::Hold, model::Token};

/// The leader of an election at one point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Text for people that says who leads. This is the label, or the id of the leader's claim if
    /// the store has no label for it.
    pub who: String,
    /// The leader's label, if the store reports one. A program may publish its address here, with
    /// [`Candidate::label`](crate::Candidate::label). A label proves nothing, because any client
    /// that can write into the store can write any text.
    pub label: Option<String>,
    /// Number of the term. `None` if the store does not report it.
    pub term: Option<Token>,
    /// Whether the leader is a [`Term`](crate::Term) of this client that was current when this
    /// value was created. False from the deadline of the term on, even if no task of dlock has run
    /// since.
    pub mine: bool,
}

/// The state of an election as an [`Observer`](crate::Observer) reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// There is a leader.
    Leader(Leader),
    /// There is no leader.
    Vacant {
        /// Number of the last term that this observer has reported. `None` if it has reported none.
        after: Option<Token>,
    },
    /// The leader is not known, because the store has not replied for the time that
    /// [`Observer`](super::Observer) states, or because it has reported a smaller term than before.
    Unknown {
        /// Time of the last inspection to which the store has replied. If it has never replied, the
        /// time at which the observation began.
        since: Instant,
    },
}

impl Leader {
    /// Returns the leader with this claim. `term_holds` are the holds of this client's terms.
    pub(super) fn of(holder: &Contender, term_holds: &[Arc<Hold>]) -> Self {
        let mine = hold_of(holder, term_holds).is_some_and(|hold| hold.loss().is_none());
        let who = holder.who.clone().unwrap_or_else(|| holder.id.clone());
        Self { who, label: holder.who.clone(), term: holder.token, mine }
    }
}

/// Returns the hold of this client that is the claim of `holder`.
pub(super) fn hold_of<'a>(holder: &Contender, term_holds: &'a [Arc<Hold>]) -> Option<&'a Arc<Hold>> {
    term_holds.iter().find(|hold| hold.id.is_reported_as(&holder.id))
}
