//! The suite, on one ZooKeeper server, on an ensemble of three, and through TLS. `cargo test -p dlock-zookeeper --test conformance ensemble`
//! runs the cases with that word in their names. `zookeeper::` selects those of the single server.

#[path = "../common/mod.rs"]
mod common;
mod servers;

use std::{alloc::System, process::ExitCode};

use cap::Cap;
use dlock_conformance::{
    Row, Suite, run_suites,
    stores::zookeeper::Flavour::{Ensemble, Standalone, Tls},
    wrap::Habit::Flaky,
};

/// Counts bytes for the case that looks for leaks.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

fn main() -> ExitCode {
    let mut suites = vec![
        Suite::new("zookeeper", servers::ZooKeeper::start(Standalone)),
        // The claims are the same. What several servers add are answers that another server gives, and an answer that was lost is
        // looked for on another server. Every case that runs there without a wrapper runs with lost answers too.
        Suite::new("ensemble", servers::ZooKeeper::start(Ensemble)).in_rows([Row::Habit(Flaky)]),
    ];
    if cfg!(feature = "tls") {
        suites.push(Suite::new("tls", servers::ZooKeeper::start(Tls)).in_rows([Row::Plain]));
    }
    run_suites(suites)
}
