//! The command `dlock`, from the command line to the exit status. A library, so that another
//! program can add its own store to the command.

#[cfg(not(unix))]
compile_error!(
    "the command `dlock` needs Unix processes and signals; the library, package `dlock-rs`, does not"
);

mod args;
mod child;
mod choice;
mod completion;
mod descendants;
mod exec;
mod exit;
mod held;
mod info;
mod init;
mod json;
mod lead;
mod leader;
mod look;
mod once;
mod output;
mod run;
mod serve;
mod show;
mod signals;
mod store;
mod ticket;
mod ticket_file;
mod unlock;
mod values;
mod wait;

use std::{env, process::ExitCode};

use clap::FromArgMatches;
use dlock::Registry;

use self::{
    args::{Cli, Command},
    choice::Stores,
    exit::{Failure, Outcome, USAGE},
};

/// Executes the command line of `dlock` with the stores of a registry, and returns the exit status.
///
/// The `main` of a program that adds its own store is
/// `dlock_cli::main(dlock::registry().with(DRIVER))`; `examples/folder-store` is such a program.
///
/// The program must call this function first, on its main thread. To run a command under a lock,
/// `dlock` starts its own program again, which must call this function with the command line
/// unchanged. On Linux the kernel kills the command when the calling thread ends.
pub fn main(registry: Registry) -> ExitCode {
    let mut words = env::args_os().skip(1);
    // Handled before clap, because every `run` uses it and users never call it.
    if words.next().is_some_and(|word| word == exec::STEP) {
        let code = exec::step(words).report();
        output::flush();
        return code;
    }
    completion::complete(&registry);
    let parsed = Cli::with(&registry).try_get_matches().and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches)?;
        Ok((cli, Stores::new(&registry, &matches)))
    });
    let (cli, stores) = match parsed {
        Ok(parsed) => parsed,
        Err(message) => {
            message.print().ok();
            return if message.use_stderr() { USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    let code = match execute(&stores, cli.command) {
        Ok(status) => status.into(),
        Err(failure) => failure.of_store(&stores.describe()).report(),
    };
    output::flush();
    code
}

fn execute(stores: &Stores<'_>, command: Command) -> Outcome {
    if let Command::Completions { shell } = command {
        return completion::script(shell);
    }
    if let Command::Man { command } = &command {
        let cli = Cli::with_default(stores.registry, choice::DEFAULT_OF_ANY_USER);
        return man(cli, command.as_deref());
    }
    if let Command::Lock { .. } = command {
        return Err(Failure::usage(
            "there is no `dlock lock`; write `dlock run NAME -- CMD` to hold the lock while a command runs, or `dlock acquire NAME` for a lock that outlives dlock",
        ));
    }
    // A runtime on the main thread, because the kernel kills the command when the *thread* that has
    // spawned it ends.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::internal("cannot start", &error))?;
    let outcome = runtime.block_on(async {
        match command {
            Command::Run(args) => run::run(stores, args).await,
            Command::Try(args) => run::attempt(stores, args.hold).await,
            Command::Lead(args) => lead::lead(stores, args).await,
            Command::Leader(args) => leader::leader(stores, args).await,
            Command::Acquire(args) => ticket::acquire(stores, args).await,
            Command::Renew(args) => ticket::renew(stores, args).await,
            Command::Release(args) => ticket::release(stores, args).await,
            Command::Ls(args) => look::ls(stores, args).await,
            Command::Inspect(args) => look::inspect(stores, args).await,
            Command::Unlock(args) => unlock::unlock(stores, args).await,
            Command::Forget(args) => once::forget(stores, args).await,
            Command::Info(args) => info::info(stores, args).await,
            Command::Init(args) => init::init(stores, args).await,
            Command::Lock { .. } | Command::Completions { .. } | Command::Man { .. } => Ok(exit::OK),
        }
    });
    // A blocked thread of a store must not delay the end of dlock.
    runtime.shutdown_background();
    outcome
}

/// Prints the manual page of dlock or of one of its commands.
fn man(mut cli: clap::Command, command: Option<&str>) -> Outcome {
    cli.build();
    let page = match command {
        None => Some(cli),
        Some(name) => cli.find_subcommand(name).cloned(),
    };
    let page = page.ok_or_else(|| Failure::usage("there is no such command; `dlock --help` lists them"))?;
    let mut text = Vec::new();
    let result = clap_mangen::Man::new(page).render(&mut text);
    result.map_err(|error| Failure::internal("cannot write the page", &error))?;
    output::print(&text).map(|()| exit::OK)
}
