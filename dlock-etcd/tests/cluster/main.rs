//! What a cluster does that is more than one server, and what a server does whose data are lost.

mod apart;
#[path = "../common/mod.rs"]
mod common;
mod crowd;
mod data;
mod members;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([apart::tests(), crowd::tests(), data::tests(), members::tests()])
}
