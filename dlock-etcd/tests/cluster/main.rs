//! Tests of clusters of several members, and of servers that lose their data.

mod apart;
#[path = "../common/mod.rs"]
mod common;
mod crowd;
mod data;
mod members;
mod minority;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([
        apart::tests(),
        crowd::tests(),
        data::tests(),
        members::tests(),
        minority::tests(),
    ])
}
