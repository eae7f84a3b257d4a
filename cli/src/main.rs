//! The command `dlock`: runs commands under a lock, and looks into the store.

fn main() -> std::process::ExitCode {
    dlock_cli::main(dlock::registry())
}
