//! RedLock is a backend, so it passes the suite that every backend passes.

mod of;

fn main() -> std::process::ExitCode {
    of::run(5)
}
