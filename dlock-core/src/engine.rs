//! The engine: one task for each claim, from its first attempt to its release. The engine works on
//! claims and holds; `lock` builds the guards on top of it.

mod client;
mod detached;
mod hold;
mod hold_ref;
mod joint;
mod keeper;
mod limits;
mod lookout;
mod observe;
mod terms;
mod thread;

pub(crate) use client::Client;
pub(crate) use hold::{Hold, Reentry};
pub(crate) use hold_ref::HoldRef;
pub(crate) use joint::JointOutcome;
pub(crate) use keeper::{
    Keeper, LastFailure, MAX_FAILURES, Outcome, release_until_forgotten, retry_pause, run_to_end,
    with_large_jitter,
};
pub(crate) use lookout::{Lookout, Sighting};
pub(crate) use observe::candidate_failed;
pub(crate) use terms::{Cadence, Class, Terms};
pub(crate) use thread::Thread;
