//! Tests with several servers, which form one store or are independent members of a RedLock.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

#[path = "../common/mod.rs"]
mod common;
mod connections;
mod minority;
mod redlock;
mod redlock_foreign;
mod replicas;
mod sentinel_login;
mod topologies;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([
        connections::tests(),
        minority::tests(),
        redlock::tests(),
        redlock_foreign::tests(),
        replicas::tests(),
        sentinel_login::tests(),
        topologies::tests(),
    ])
}
