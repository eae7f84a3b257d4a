//! Runs the suite that every backend passes on a RedLock of five members.

mod of;

fn main() -> std::process::ExitCode {
    of::run(5)
}
