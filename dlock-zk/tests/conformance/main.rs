//! The suite, on one ZooKeeper server, on an ensemble of three, and through TLS.
//!
//! `cargo test -p dlock-zk --test conformance ensemble` runs the cases with that word in their
//! names. `zookeeper::` selects the cases of the single server.

#[path = "../common/mod.rs"]
mod common;
mod servers;

use std::{alloc::System, process::ExitCode};

use cap::Cap;
use dlock_conformance::{Row, Suite, run_suites, wrap::Habit::Flaky};
use dlock_testbed::servers::zookeeper::Flavour::{Ensemble, Standalone, Tls};

/// Counts allocated bytes for the case that searches for leaks.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

fn main() -> ExitCode {
    let mut suites = vec![
        Suite::new("zookeeper", servers::ZooKeeper::start(Standalone)),
        // The claims are the same as on one server. With several servers, the state after a lost
        // reply is read from another server. The row with lost replies contains every case that
        // would run without a wrapper.
        Suite::new("ensemble", servers::ZooKeeper::start(Ensemble)).in_rows([Row::Habit(Flaky)]),
    ];
    if cfg!(feature = "tls") {
        suites.push(Suite::new("tls", servers::ZooKeeper::start(Tls)).in_rows([Row::Plain]));
    }
    run_suites(suites)
}
