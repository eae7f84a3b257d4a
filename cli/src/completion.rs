//! Completion of the command line. The shell's script calls dlock, which also completes the names
//! of locks.

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

/// Variable that the script sets to the name of the shell when it calls dlock.
const VARIABLE: &str = "DLOCK_COMPLETE";

/// Maximum time to list the names of locks after a key press.
const LIST_TIMEOUT: Duration = Duration::from_secs(1);

/// If a shell's script has called dlock, prints the completions and ends the process.
pub(crate) fn complete(registry: &Registry) {
    CompleteEnv::with_factory(|| with_names(registry)).var(VARIABLE).complete();
}

/// Prints the completion script of a shell.
pub(crate) fn script(shell: Shell) -> Outcome {
    let mut script = Vec::new();
    let completer = Shells::builtins();
    let result = match completer.completer(&shell.to_string()) {
        Some(completer) => completer.write_registration(VARIABLE, "dlock", "dlock", "dlock", &mut script),
        None => Err(io::ErrorKind::Unsupported.into()),
    };
    result.map_err(|error| Failure::internal("cannot write the script", &error))?;
    if shell == Shell::Bash {
        // Without it bash completes no names of files, which most commands under a lock have.
        let text = String::from_utf8_lossy(&script).replace("-o bashdefault", "-o bashdefault -o default");
        script = text.into_bytes();
    }
    if shell == Shell::Zsh {
        // A file `_dlock` in a folder of `fpath` is called as a function at the first completion.
        // Without this it would only register the function that completes.
        script.extend_from_slice(
            b"\nif [[ ${funcstack[1]} == _dlock ]]; then\n    _clap_dynamic_completer_dlock \"$@\"\nfi\n",
        );
    }
    output::print(&script).map(|()| OK)
}

/// Returns the command for clap, with completion of lock names.
fn with_names(registry: &Registry) -> clap::Command {
    let stores = registry.clone();
    let completer = ArgValueCompleter::new(move |prefix: &OsStr| -> Vec<CompletionCandidate> {
        names(&stores, prefix).unwrap_or_default().into_iter().map(CompletionCandidate::new).collect()
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

/// Returns the names with this prefix in the store that the unfinished command line and the
/// environment choose. `None` after any error, because a message would disturb the user's input.
/// Creates no store.
fn names(registry: &Registry, prefix: &OsStr) -> Option<Vec<String>> {
    let words = env::args_os().skip_while(|word| word != "--").skip(1);
    let matches = Cli::with(registry).ignore_errors(true).try_get_matches_from(words).ok()?;
    let stores = Stores::new(registry, &matches);
    let chosen = stores.chosen(None).ok().filter(|chosen| !chosen.is_missing())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let listing = async {
        let locks = chosen.connect(registry).await?;
        locks.list(prefix.to_str().unwrap_or_default()).await
    };
    let states = runtime.block_on(async { timeout(LIST_TIMEOUT, listing).await });
    // A store that hangs must not block the shell.
    runtime.shutdown_background();
    Some(states.ok()?.ok()?.into_iter().map(|state| state.name.to_string()).collect())
}
