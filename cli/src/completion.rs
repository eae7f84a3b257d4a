//! Completion of the command line. The script of a shell asks dlock itself, which also knows the names of the locks.

use std::{env, ffi::OsStr, io, time::Duration};

use clap_complete::{
    CompleteEnv, Shell,
    engine::{ArgValueCompleter, CompletionCandidate},
    env::Shells,
};
use dlock::Registry;
use tokio::time::timeout;

use crate::{
    args::Cli,
    choice::Stores,
    exit::{Failure, OK, Outcome},
    output,
};

/// Set by the script when it asks: to the name of the shell.
const ASKED: &str = "DLOCK_COMPLETE";

/// How long somebody who presses a key waits for names.
const PATIENCE: Duration = Duration::from_secs(1);

/// Answers the script of a shell, if that has called, and ends the process.
pub(crate) fn answer(registry: &Registry) {
    CompleteEnv::with_factory(|| with_names(registry)).var(ASKED).complete();
}

/// Prints the script of a shell.
pub(crate) fn script(shell: Shell) -> Outcome {
    let mut script = Vec::new();
    let completer = Shells::builtins();
    let written = match completer.completer(&shell.to_string()) {
        Some(completer) => completer.write_registration(ASKED, "dlock", "dlock", "dlock", &mut script),
        None => Err(io::ErrorKind::Unsupported.into()),
    };
    written.map_err(|error| Failure::internal("cannot write the script", &error))?;
    output::print(&script).map(|()| OK)
}

/// The command for clap, which completes the names of locks too.
fn with_names(registry: &Registry) -> clap::Command {
    let stores = registry.clone();
    let completer = ArgValueCompleter::new(move |begun: &OsStr| -> Vec<CompletionCandidate> {
        names(&stores, begun).unwrap_or_default().into_iter().map(CompletionCandidate::new).collect()
    });
    let mut cli = Cli::with(registry);
    for command in cli.get_subcommands_mut().filter(|command| has(command, "store")) {
        let id = if has(command, "name") { "name" } else { "prefix" };
        *command = std::mem::take(command)
            .mut_args(|arg| if arg.get_id() == id { arg.add(completer.clone()) } else { arg });
    }
    cli
}

fn has(command: &clap::Command, id: &str) -> bool {
    command.get_arguments().any(|arg| arg.get_id() == id)
}

/// The names that begin like this, of the store that the words on the command line so far and the environment choose. Nothing is
/// said of an error, since somebody is typing; and no store is made.
fn names(registry: &Registry, begun: &OsStr) -> Option<Vec<String>> {
    let words = env::args_os().skip_while(|word| word != "--").skip(1);
    let matches = Cli::with(registry).ignore_errors(true).try_get_matches_from(words).ok()?;
    let stores = Stores::new(registry, &matches);
    let chosen = stores.chosen(None).ok().filter(|chosen| !chosen.is_unmade())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let asked = async {
        let locks = chosen.connect(registry).await?;
        locks.list(begun.to_str().unwrap_or_default()).await
    };
    let states = runtime.block_on(async { timeout(PATIENCE, asked).await });
    // A store that hangs must not keep the shell waiting.
    runtime.shutdown_background();
    Some(states.ok()?.ok()?.into_iter().map(|state| state.name.to_string()).collect())
}
