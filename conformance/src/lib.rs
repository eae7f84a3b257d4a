//! The conformance suite of dlock: tests that every backend must pass, including your own.
//!
//! To run the suite against a backend, implement [`Fixture`] and call [`run`] in the backend's
//! `tests/conformance.rs`. In the manifest, that test has `harness = false`.
//!
//! ```no_run
//! use async_trait::async_trait;
//! use dlock_conformance::{Clock, Fixture};
//! use dlock_core::{Result, memory::MemoryBackend, driver::Store};
//!
//! struct Memory(MemoryBackend);
//!
//! #[async_trait]
//! impl Fixture for Memory {
//!     fn name(&self) -> &str {
//!         "memory"
//!     }
//!     async fn connect(&self) -> Result<Store> {
//!         Ok(self.0.clone().into_store())
//!     }
//!     fn clock(&self) -> Clock {
//!         Clock::Paused
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     dlock_conformance::run(Ok(Memory(MemoryBackend::new())))
//! }
//! ```
//!
//! The suite is one table of [cases](cases::all), each named by a sentence that can be false. A case
//! becomes a `libtest-mimic` trial if the store has the capabilities that the case needs, according
//! to its [`Info`](dlock_core::driver::Info). Other cases are ignored, with the reason in their names.
//!
//! - The table runs on the plain store, and through four [wrappers](wrap::Habit) that misbehave as
//!   real stores do. Hints are lost, hints arrive without end, replies are slow, or replies are lost
//!   after the store has executed the request.
//! - For a composite store the table runs four more times, each time with one
//!   [member](Fixture::connect_with_member) that misbehaves in one of these ways.
//! - Some cases put a [`Proxy`] between a network driver and its server, if the
//!   [fixture](Fixture::network) allows it.
//! - After each case the store must be empty.
//!
//! A case gets its clients, names and bounded waits from an [`Arena`].
//!
//! For runs without a script, a [history] records events and checks them against rules, and a
//! [simulation] injects all faults at random. The crate `dlock-planted` tests the suite itself, with
//! stores that have one bug each.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod arena;
mod case;
pub mod cases;
mod crash;
mod fixture;
pub mod history;
mod ignore;
mod in_process;
mod load;
mod network;
mod proxy;
mod row;
mod runner;
pub mod simulation;
#[cfg(feature = "soak")]
pub mod soak;
mod steps;
mod suite;
pub mod wrap;

pub use arena::Arena;
pub use crash::killable;
pub use fixture::{Clock, Fixture, REQUIRABLE, Unreachable};
pub use ignore::{hidden, ignore, or_ignore, run_tests};
pub use in_process::InProcess;
pub use network::{Data, Network, Restart};
pub use proxy::Proxy;
pub use row::Row;
pub use runner::{judge, table};
pub use suite::{Suite, run, run_suites};
pub use wrap::Kill;

/// Compiles and runs the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../docs/backends.md")]
struct Guide;
