//! The command `dlock`: runs commands under a lock, and looks into the store.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
