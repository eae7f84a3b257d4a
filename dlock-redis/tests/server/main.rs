//! One server, or a proxy in its place: what it can do wrong, how clients find it, and which users it lets in.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod moves;
mod proxies;
mod reach;
mod rights;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([
        faults::tests(),
        moves::tests(),
        proxies::tests(),
        reach::tests(),
        rights::tests(),
    ])
}
