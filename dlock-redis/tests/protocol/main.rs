//! Which commands dlock sends to a server, and how it reads what the server answers and other programs write.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

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
