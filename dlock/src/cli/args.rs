//! The command line: what clap is told, and what its help says.

use std::{ffi::OsString, path::PathBuf, sync::Arc, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand, value_parser};
use clap_complete::Shell;

use super::{exit, values};
use crate::{DistributedLock, Kind, LockName, Locks, Registry, Wait};

const COMMANDS: &str = "\
The command finds the lock in DLOCK_NAME and its fencing token in DLOCK_TOKEN. \
A `run` of the same name from inside it enters at once. \
Only a --read lets no --fair, --write or plain lock in, and --slots only --slots: the others would wait for themselves, which is an error (64).

HUP, INT, QUIT, TERM, USR1, USR2 and WINCH are passed on, and dlock waits for the command's end, however often they come. \
Away from a terminal they go to all that the command has started, as its process group. \
After a Ctrl-C that ended the waiting or the command, dlock dies of INT too, so that a shell script around it ends. \
If dlock itself is killed, the kernel kills the command (on Linux; not what the command has started, nor a set-user-id program).";

/// Runs commands one at a time, under locks that processes share through a store.
#[derive(Parser)]
#[command(name = "dlock", version, max_term_width = 110)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

impl Cli {
    /// The command for clap. Adds what attributes cannot express: the exit statuses, and the available stores.
    pub(super) fn with(registry: &Registry) -> clap::Command {
        let help = format!("{}\n{COMMANDS}", exit::help());
        let schemes = registry.schemes().join(":, ");
        let mut cli = Self::command().after_help(&help);
        for command in cli.get_subcommands_mut() {
            let is_store = |arg: &clap::Arg| arg.get_id() == "store";
            let mut told = std::mem::take(command);
            if told.get_arguments().any(is_store) {
                told = told.mut_arg("store", |arg| {
                    let about = arg.get_help().map(ToString::to_string).unwrap_or_default();
                    arg.help(format!("{about}. There are: {schemes}:"))
                });
            }
            if matches!(told.get_name(), "run" | "try") {
                told = told.after_help(&help);
            }
            *command = told;
        }
        cli
    }
}

#[derive(Subcommand)]
pub(super) enum Command {
    /// Waits for a lock, runs a command under it, and releases it.
    #[command(
        override_usage = "dlock run [OPTIONS] <NAME> -- <CMD> [ARGS]...\n       dlock run [OPTIONS] <NAME> -c <TEXT>"
    )]
    Run(Run),
    /// Runs a command if the lock is free; without a command, says whether it is: 0 free, 75 held.
    #[command(
        override_usage = "dlock try [OPTIONS] <NAME> [-- <CMD> [ARGS]...]\n       dlock try [OPTIONS] <NAME> -c <TEXT>"
    )]
    Try(Try),
    /// Lists the locks that are held or waited for.
    Ls(Ls),
    /// Shows who holds a lock and who waits for it; exit status 1 if nobody does.
    Inspect(Inspect),
    /// Takes a lock from whoever holds it; exit status 1 if nobody did.
    Unlock(Unlock),
    /// Makes a store in a file, and with --group one that the group's users share; prints its URL.
    Init(Init),
    /// Prints a completion script for a shell.
    Completions {
        /// Which.
        shell: Shell,
    },
}

#[derive(Args)]
pub(super) struct Run {
    #[command(flatten)]
    pub(super) hold: HoldArgs,

    /// Waits this long for the lock, then exits 75 [default: for ever]
    #[arg(short = 'w', long, value_name = "DURATION", allow_negative_numbers = true, value_parser = values::duration, conflicts_with = "no_wait")]
    wait: Option<Duration>,

    /// Does not wait: exits 75 if the lock is held
    #[arg(short = 'n', long)]
    no_wait: bool,
}

impl Run {
    pub(super) fn wait(&self) -> Wait {
        match self.wait {
            _ if self.no_wait => Wait::Never,
            Some(Duration::ZERO) => Wait::Never,
            Some(limit) => Wait::For(limit),
            None => Wait::Forever,
        }
    }
}

#[derive(Args)]
pub(super) struct Try {
    #[command(flatten)]
    pub(super) hold: HoldArgs,
}

/// How to hold a lock, and what to run meanwhile.
#[derive(Args)]
pub(super) struct HoldArgs {
    #[command(flatten)]
    pub(super) store: StoreArg,

    /// The lock's name: up to 1024 bytes of UTF-8 without control characters
    pub(super) name: OsString,

    /// How long the store remembers a dlock that falls silent; renewed while it runs
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, default_value = "30s", value_parser = values::ttl)]
    pub(super) ttl: Duration,

    #[command(flatten)]
    pub(super) kind: KindArgs,

    /// The exit status if the lock was not had
    #[arg(short = 'E', long, value_name = "STATUS", default_value_t = exit::BUSY)]
    pub(super) busy_status: u8,

    /// How long the command may go on after TERM if the lock is lost; then it is killed
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, default_value = "5s", value_parser = values::duration)]
    pub(super) kill_after: Duration,

    /// Runs `sh -c TEXT` instead of a command
    #[arg(short = 'c', value_name = "TEXT", conflicts_with = "command")]
    pub(super) shell: Option<OsString>,

    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub(super) command: Vec<OsString>,
}

impl HoldArgs {
    /// The command with its arguments; empty if there is none.
    pub(super) fn command(&self) -> Vec<OsString> {
        match &self.shell {
            Some(text) => ["sh".as_ref(), "-c".as_ref(), text.as_os_str()].map(OsString::from).into(),
            None => self.command.clone(),
        }
    }
}

#[derive(Args, Clone, Copy)]
#[group(multiple = false)]
pub(super) struct KindArgs {
    /// Grants the lock in order of arrival
    #[arg(long)]
    fair: bool,

    /// Holds the lock together with others that read
    #[arg(short = 's', long, visible_alias = "shared")]
    read: bool,

    /// Holds the lock alone, beside those that read
    #[arg(short = 'x', long, visible_alias = "exclusive")]
    write: bool,

    /// Holds one of N permits: at most N hold the lock at once, in order of arrival
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(u32).range(1..))]
    slots: Option<u32>,
}

impl KindArgs {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self { fair: true, .. } => Kind::Fair,
            Self { read: true, .. } => Kind::Read,
            Self { write: true, .. } => Kind::Write,
            Self { slots: Some(_), .. } => Kind::Permit,
            _ => Kind::Mutex,
        }
    }

    /// The lock of this kind.
    pub(super) fn of(self, locks: &Locks, name: &LockName) -> Arc<dyn DistributedLock> {
        match self.slots {
            Some(slots) => Arc::new(locks.semaphore(name, slots)),
            None => locks.of(self.kind(), name),
        }
    }
}

#[derive(Args)]
pub(super) struct StoreArg {
    /// Where the locks are [default: an SQLite file in the user's state directory]. A URL with a password belongs into
    /// the environment: everybody on the host can see a command line
    #[arg(long, value_name = "URL", env = "DLOCK_STORE", hide_env_values = true)]
    pub(super) store: Option<OsString>,
}

#[derive(Args)]
pub(super) struct Ls {
    #[command(flatten)]
    pub(super) store: StoreArg,

    /// Only names that begin like this
    #[arg(default_value = "")]
    pub(super) prefix: OsString,

    /// Prints a JSON array; durations are in seconds
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Args)]
pub(super) struct Inspect {
    #[command(flatten)]
    pub(super) store: StoreArg,

    /// The lock's name
    pub(super) name: OsString,

    /// Prints a JSON object; durations are in seconds
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Args)]
pub(super) struct Unlock {
    #[command(flatten)]
    pub(super) store: StoreArg,

    /// The lock's name
    pub(super) name: OsString,

    /// Says that you know what you do: the holder may still be at work
    #[arg(long)]
    pub(super) force: bool,
}

#[derive(Args)]
pub(super) struct Init {
    /// The users who share the store: the group's name or number. The folder is the group's then, and made if there is
    /// none
    #[arg(short = 'g', long)]
    pub(super) group: Option<String>,

    /// The file, in a folder of its own: `/srv/locks/locks.db`
    pub(super) path: PathBuf,
}
