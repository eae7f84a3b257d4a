//! Several servers: those that belong together, and independent ones of which a majority counts.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../common/mod.rs"]
mod common;
mod redlock;
mod redlock_foreign;
mod replicas;
mod sentinel_login;
mod topologies;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([
        redlock::tests(),
        redlock_foreign::tests(),
        replicas::tests(),
        sentinel_login::tests(),
        topologies::tests(),
    ])
}
