//! Servers and programs for the tests of dlock's stores.
//!
//! [`servers`] starts the servers of a store, and kills, pauses and restarts them. [`peer`] runs
//! the locks of other programs beside dlock's. [`minority`] injects faults between the clients and
//! a minority of a store's servers. The suite itself is `dlock-conformance`, which needs none of
//! them.

pub mod minority;
pub mod peer;
pub mod servers;

/// Called by [`border_trials!`] in the crate that uses it.
#[doc(hidden)]
pub use dlock_conformance::hidden;
