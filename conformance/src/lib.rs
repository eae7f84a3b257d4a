//! The behaviour suite that every dlock backend passes. It tests your backend too.
//!
//! A backend's `tests/conformance.rs` (with `harness = false` in its manifest) is all that is needed:
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
//! One table of [cases](cases::all), each a sentence that can be false, becomes `libtest-mimic` trials, chosen by what the
//! store's [`Info`](dlock_core::driver::Info) says it can do. The whole table runs five times: on the store as it is, and
//! through four [wrappers](wrap::Habit) that misbehave as real stores do: hints that never come, hints without end, slow
//! answers, and answers that are lost after the store acted. A composite store runs it four times more, each time with [one
//! member](Fixture::connect_with_member) that misbehaves in one of these ways. If the [fixture](Fixture::network) allows
//! it, some cases put a [`Proxy`] between a network driver and its server. After each case the store must be empty.
//!
//! For runs without a script there are a [history], which records what happens and checks rules, and a [simulation] of all
//! troubles at once. The crate `dlock-planted` tests the suite itself, with stores that have one bug each.

mod arena;
mod case;
pub mod cases;
mod crash;
mod fixture;
pub mod history;
mod ignore;
mod in_process;
mod network;
mod proxy;
mod row;
mod runner;
pub mod simulation;
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

/// The examples of the guide, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/backends.md")]
struct Guide;
