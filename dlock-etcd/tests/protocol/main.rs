//! What is asked of the cluster, and what is left in it.

#[path = "../common/mod.rs"]
mod common;
mod cost;
mod keys;
mod load;
mod loss;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([cost::tests(), keys::tests(), load::tests(), loss::tests()])
}
