//! From the command line to an exit status.

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

use clap::{CommandFactory, Parser};

use self::{
    args::{Cli, Command},
    exit::{Failure, Outcome, USAGE},
};

pub(crate) fn main() -> ExitCode {
    let mut words = env::args_os().skip(1);
    // Not a command of clap's: it is on the way of every run, and nobody's but ours.
    if words.next().is_some_and(|word| word == exec::STEP) {
        return exec::step(words).report();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(message) => {
            message.print().ok();
            return if message.use_stderr() { USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    obey(cli.command).map_or_else(Failure::report, ExitCode::from)
}

fn obey(command: Command) -> Outcome {
    if let Command::Completions { shell } = command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "dlock", &mut script);
        return output::print(&script).map(|()| exit::OK);
    }
    // One thread, and the main one: a child dies with the *thread* that spawned it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::internal("cannot start", &error))?;
    let outcome = runtime.block_on(async {
        match command {
            Command::Run(args) => run::run(args.wait(), args.hold).await,
            Command::Try(args) => run::attempt(args.hold).await,
            Command::Ls(args) => look::ls(args).await,
            Command::Inspect(args) => look::inspect(args).await,
            Command::Unlock(args) => unlock::unlock(args).await,
            Command::Init(args) => init::init(args).await,
            Command::Completions { .. } => Ok(exit::OK),
        }
    });
    // A store's thread that hangs must not keep us.
    runtime.shutdown_background();
    outcome
}
