//! The command `dlock`, for a program of your own that adds a store to it. From the command line to an exit status.

#[cfg(not(unix))]
compile_error!(
    "the command `dlock` needs Unix processes and signals; build with `--no-default-features` for the library"
);

mod args;
mod child;
mod exec;
mod exit;
mod held;
mod init;
mod look;
mod output;
mod run;
mod show;
mod signals;
mod store;
mod unlock;
mod values;
mod wait;

use std::{env, process::ExitCode};

use clap::FromArgMatches;

use self::{
    args::{Cli, Command},
    exit::{Failure, Outcome, USAGE},
};
use crate::Registry;

/// The whole command `dlock`, over the stores of a registry: reads the command line, does what it says, and tells the exit
/// status.
///
/// The `main` of a program that adds a store of its own is `dlock::cli::main(dlock::registry().with(DRIVER))`;
/// `examples/folder-store` is such a program.
///
/// It must be the first thing that the program does, on the main thread. To run a command under a lock, `dlock` starts its own
/// program once more, and that must come here with the command line unchanged. On Linux the command is killed when the thread
/// ends that called this.
pub fn main(registry: Registry) -> ExitCode {
    let mut words = env::args_os().skip(1);
    // Handled before clap, because every `run` comes here, and because users never call it.
    if words.next().is_some_and(|word| word == exec::STEP) {
        return exec::step(words).report();
    }
    let parsed = Cli::with(&registry).try_get_matches();
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(message) => {
            message.print().ok();
            return if message.use_stderr() { USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    obey(&registry, cli.command).map_or_else(Failure::report, ExitCode::from)
}

fn obey(registry: &Registry, command: Command) -> Outcome {
    if let Command::Completions { shell } = command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::with(registry), "dlock", &mut script);
        return output::print(&script).map(|()| exit::OK);
    }
    // A runtime on the main thread only: the kernel kills the command when the *thread* that spawned it ends.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::internal("cannot start", &error))?;
    let outcome = runtime.block_on(async {
        match command {
            Command::Run(args) => run::run(registry, args.wait(), args.hold).await,
            Command::Try(args) => run::attempt(registry, args.hold).await,
            Command::Ls(args) => look::ls(registry, args).await,
            Command::Inspect(args) => look::inspect(registry, args).await,
            Command::Unlock(args) => unlock::unlock(registry, args).await,
            Command::Init(args) => init::init(registry, args).await,
            Command::Completions { .. } => Ok(exit::OK),
        }
    });
    // A thread of a store that hangs must not keep dlock from ending.
    runtime.shutdown_background();
    outcome
}
