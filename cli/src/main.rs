//! The command `dlock`, which runs commands under a lock, and inspects the store.

fn main() -> std::process::ExitCode {
    dlock_cli::main(dlock::registry())
}
