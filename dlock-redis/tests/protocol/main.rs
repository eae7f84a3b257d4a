//! Tests of the commands that dlock sends to a server, and of its treatment of replies and of other
//! programs' data.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

#[path = "../common/mod.rs"]
mod common;
mod detach;
mod flaws;
mod golden;
mod multilock;
mod permits;
mod plain;
mod unfit;
mod waiting;
#[cfg(feature = "tracing")]
mod warnings;
mod who;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([
        detach::tests(),
        flaws::tests(),
        golden::tests(),
        multilock::tests(),
        permits::tests(),
        plain::tests(),
        unfit::tests(),
        waiting::tests(),
        #[cfg(feature = "tracing")]
        warnings::tests(),
        who::tests(),
    ])
}
