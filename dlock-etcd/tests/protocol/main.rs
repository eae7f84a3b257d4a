//! Tests of the requests that a client sends, and of the keys and leases that it leaves.

#[path = "../common/mod.rs"]
mod common;
mod cost;
mod keys;
mod limits;
mod load;
mod loss;
mod observers;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([
        cost::tests(),
        keys::tests(),
        limits::tests(),
        load::tests(),
        loss::tests(),
        observers::tests(),
    ])
}
