//! The engine: for each claim one task, from the first attempt to the release. It knows claims and holds; guards are built
//! on top of it.

mod client;
mod detached;
mod hold;
mod keeper;
mod observe;
mod stake;
mod terms;
mod thread;
mod together;

pub(crate) use client::Client;
pub(crate) use hold::{Hold, Reentry};
pub(crate) use keeper::{Keeper, LastFailure, Outcome, release_until_forgotten, run_to_end};
pub(crate) use stake::Stake;
pub(crate) use terms::{Cadence, Terms};
pub(crate) use thread::Thread;
pub(crate) use together::Joint;
