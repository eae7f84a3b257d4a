//! Tests with one server, or a proxy in its place: faults, connections and access rights.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod limits;
mod moves;
mod proxies;
mod reach;
mod rights;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([
        faults::tests(),
        limits::tests(),
        moves::tests(),
        proxies::tests(),
        reach::tests(),
        rights::tests(),
    ])
}
