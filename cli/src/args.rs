//! The command line: what clap is told, and what its help says. Over the usual length, so that all options are in one file.

use std::{ffi::OsString, path::PathBuf, sync::Arc, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand, value_parser};
use clap_complete::Shell;
use dlock::{DistributedLock, Kind, LockName, Locks, Registry, Wait};

use crate::{choice, exit, values};

const EXAMPLES: &str = "\
Examples:

  dlock run nightly -- ./report.sh                wait for the lock, run the script, release it
  dlock run -n backup -- ./backup.sh              exit 75 at once if somebody has it
  dlock run -w 30s -c 'wc -l <data' data          wait for 30 seconds at the longest; a shell's text
  dlock run -n --at-least 23h report -- ./r.sh    once a day, over all hosts that share the store
  dlock run --slots 4 pool -- ./job.sh            four at once at most
  dlock ls; dlock inspect nightly                 who holds, who waits
  dlock info                                      which store is used, and why
";

/// What a short help ends with.
const MORE: &str = "`--help` says more: examples, stores, signals, exit statuses. `dlock man | man -l -` is the manual page.";

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
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The command for clap. Adds what attributes cannot express: the exit statuses, and the available stores.
    pub(crate) fn with(registry: &Registry) -> clap::Command {
        let help = format!("{EXAMPLES}\n{}\n{COMMANDS}", exit::help());
        let schemes = registry.schemes().into_iter().filter(|scheme| *scheme != choice::MEMORY);
        let schemes = schemes.collect::<Vec<_>>().join(":, ");
        let mut cli = Self::command().after_help(MORE).after_long_help(&help);
        let own = choice::shown_default();
        for command in cli.get_subcommands_mut() {
            let is_store = |arg: &clap::Arg| arg.get_id() == "store";
            let mut told = std::mem::take(command);
            if told.get_arguments().any(is_store) {
                told = told.mut_arg("store", |arg| {
                    let about = arg.get_long_help().map(ToString::to_string).unwrap_or_default();
                    arg.long_help(format!("{about}\n\nStores: {schemes}:\n\nThe default here is {own}."))
                });
            }
            if matches!(told.get_name(), "run" | "try") {
                told = told.after_help(MORE).after_long_help(&help);
            }
            *command = told;
        }
        cli
    }
}

#[derive(Subcommand)]
pub(crate) enum Command {
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
    /// Takes a lock that outlives this process, and prints a ticket for it.
    Acquire(Acquire),
    /// Gives back the lock of a ticket.
    Release(Release),
    /// Lists the locks that are held or waited for.
    ///
    /// Where a configuration has several stores, those of the default one; `--store NAME` lists another.
    Ls(Ls),
    /// Shows who holds a lock and who waits for it; exit status 1 if nobody does.
    Inspect(Inspect),
    /// Says which store is used, why, and what it can do.
    Info(Info),
    /// Takes a lock from whoever holds it; exit status 1 if nobody did.
    Unlock(Unlock),
    /// Makes a store in a file, and with --group one that the group's users share; prints its URL.
    Init(Init),
    /// There is no such command; says which there are.
    #[command(hide = true)]
    Lock {
        /// Whatever was meant.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Prints the manual page: `dlock man | man -l -`.
    Man {
        /// Of this command.
        command: Option<String>,
    },
    /// Prints a completion script for a shell: `source <(dlock completions bash)`.
    ///
    /// It completes the names of locks too, as `dlock ls` lists them.
    Completions {
        /// Which.
        shell: Shell,
    },
}

#[derive(Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) hold: HoldArgs,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,

    /// Keeps the lock taken until so long after its grant
    ///
    /// Also if the command ends or fails before. A daily job, once over all hosts: `dlock run -n --at-least 23h report --
    /// ./report.sh`
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = values::duration)]
    pub(crate) at_least: Option<Duration>,

    /// Takes back the lock of a ticket that `acquire` has printed; it is released when the command has ended
    #[arg(long, value_name = "TICKET", conflicts_with_all = ["WaitArgs", "KindArgs", "at_least"])]
    pub(crate) ticket: Option<OsString>,
}

/// How long to wait for a lock.
#[derive(Args, Clone, Copy)]
pub(crate) struct WaitArgs {
    /// Waits this long for the store and the lock, then exits 69 or 75; or `forever` [default: for the lock for ever]
    #[arg(short = 'w', long, alias = "timeout", value_name = "DURATION", allow_negative_numbers = true, value_parser = values::wait, conflicts_with = "no_wait")]
    wait: Option<Wait>,

    /// Does not wait: exits 75 if the lock is held
    #[arg(short = 'n', long, aliases = ["nonblock", "nb"])]
    no_wait: bool,
}

impl WaitArgs {
    pub(crate) fn wait(self) -> Option<Wait> {
        if self.no_wait { Some(Wait::Never) } else { self.wait }
    }
}

/// How much to say beside what the command prints.
#[derive(Args, Clone, Copy)]
pub(crate) struct TellArgs {
    /// Says nothing but errors: neither who is waited for, nor that the lock is held
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    quiet: bool,

    /// Says once a minute who is waited for, also away from a terminal
    #[arg(short = 'v', long)]
    verbose: bool,
}

impl TellArgs {
    pub(crate) fn tell(self) -> Tell {
        match self {
            Self { quiet: true, .. } => Tell::Errors,
            Self { verbose: true, .. } => Tell::More,
            _ => Tell::Usual,
        }
    }
}

/// How much to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tell {
    Errors,
    Usual,
    More,
}

/// What `flock` has and dlock does not need.
#[derive(Args, Clone, Copy)]
pub(crate) struct FlockArgs {
    /// The command never inherits the lock, so there is nothing to close.
    #[arg(short = 'o', long, hide = true)]
    close: bool,

    #[arg(short = 'u', long, hide = true)]
    unlock: bool,

    #[arg(short = 'F', long, hide = true)]
    no_fork: bool,
}

impl FlockArgs {
    /// # Errors
    /// For an option that would mean something else here. Says what to use.
    pub(crate) fn check(self) -> exit::Outcome<()> {
        let Self { close: _, unlock, no_fork } = self;
        if unlock {
            return Err(exit::Failure::usage(
                "-u has no meaning here: a lock is released when its command has ended; to take one from its holder use `dlock unlock --force NAME`",
            ));
        }
        if no_fork {
            return Err(exit::Failure::usage(
                "-F has no meaning here: dlock stays beside the command to renew the lock; leave it out, signals are passed on",
            ));
        }
        Ok(())
    }
}

#[derive(Args)]
pub(crate) struct Try {
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
}

#[derive(Args)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) store: StoreArg,

    #[command(flatten)]
    pub(crate) who: WhoArg,

    /// The lock's name: up to 1024 bytes of UTF-8 without control characters
    pub(crate) name: OsString,

    /// How long the lock is held from now on, unless the ticket gives it back before
    #[arg(long = "for", value_name = "DURATION", allow_negative_numbers = true, default_value = "10m", value_parser = values::duration)]
    pub(crate) lasting: Duration,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,

    #[command(flatten)]
    pub(crate) kind: KindArgs,

    #[command(flatten)]
    pub(crate) busy: BusyArgs,

    /// Prints a JSON object with the ticket; docs/json.md explains its fields
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Release {
    #[command(flatten)]
    pub(crate) store: StoreArg,

    /// What `acquire` has printed
    pub(crate) ticket: OsString,

    /// Prints a JSON object; docs/json.md explains its fields
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to do if the lock was not had.
#[derive(Args, Clone, Copy)]
pub(crate) struct BusyArgs {
    /// The exit status if the lock was not had; with -n nothing is said then [default: 75]
    #[arg(short = 'E', long, alias = "conflict-exit-code", value_name = "STATUS")]
    busy_status: Option<u8>,

    #[command(flatten)]
    tell: TellArgs,
}

impl BusyArgs {
    pub(crate) fn tell(self) -> Tell {
        self.tell.tell()
    }

    /// A failure as it is to be told: one that means that the lock is busy has another status, and is not worth a word if the
    /// user has asked for that.
    pub(crate) fn told(self, failure: exit::Failure, wait: Wait) -> exit::Failure {
        let is_expected = wait == Wait::Never && self.busy_status.is_some();
        let is_silent = is_expected || self.tell() == Tell::Errors;
        failure.busy_as(self.busy_status.unwrap_or(exit::BUSY), is_silent)
    }
}

/// How to hold a lock, and what to run meanwhile.
#[derive(Args)]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    pub(crate) store: StoreArg,

    #[command(flatten)]
    pub(crate) who: WhoArg,

    /// The lock's name: up to 1024 bytes of UTF-8 without control characters
    pub(crate) name: OsString,

    /// How long the store remembers a dlock that falls silent; renewed while it runs [default: 30s, or the store's longest]
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = values::ttl)]
    pub(crate) ttl: Option<Duration>,

    #[command(flatten)]
    pub(crate) kind: KindArgs,

    #[command(flatten)]
    pub(crate) busy: BusyArgs,

    #[command(flatten)]
    pub(crate) flock: FlockArgs,

    /// How long the command may go on after TERM if the lock is lost; then it is killed
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, default_value = "5s", value_parser = values::duration)]
    pub(crate) kill_after: Duration,

    /// Runs `sh -c TEXT` instead of a command
    #[arg(short = 'c', value_name = "TEXT", conflicts_with = "command")]
    pub(crate) shell: Option<OsString>,

    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl HoldArgs {
    /// The command with its arguments; empty if there is none.
    pub(crate) fn command(&self) -> Vec<OsString> {
        match &self.shell {
            Some(text) => ["sh".as_ref(), "-c".as_ref(), text.as_os_str()].map(OsString::from).into(),
            None => self.command.clone(),
        }
    }
}

#[derive(Args, Clone, Copy)]
#[group(multiple = false)]
pub(crate) struct KindArgs {
    /// Grants the lock in order of arrival
    #[arg(long)]
    fair: bool,

    /// Holds the lock together with others that read
    #[arg(short = 's', long, visible_alias = "shared")]
    read: bool,

    /// Holds the lock alone, beside those that read
    #[arg(short = 'x', long, visible_alias = "exclusive", short_alias = 'e')]
    write: bool,

    /// Holds one of N permits: at most N hold the lock at once, in order of arrival
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(u32).range(1..))]
    slots: Option<u32>,
}

impl KindArgs {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self { fair: true, .. } => Kind::Fair,
            Self { read: true, .. } => Kind::Read,
            Self { write: true, .. } => Kind::Write,
            Self { slots: Some(_), .. } => Kind::Permit,
            _ => Kind::Mutex,
        }
    }

    /// The lock of this kind.
    pub(crate) fn of(self, locks: &Locks, name: &LockName) -> Arc<dyn DistributedLock> {
        match self.slots {
            Some(slots) => Arc::new(locks.semaphore(name, slots)),
            None => locks.of(self.kind(), name),
        }
    }
}

/// Where the locks are. [`choice`] reads the values, together with where they came from.
#[derive(Args)]
#[allow(dead_code, reason = "read by name")]
pub(crate) struct StoreArg {
    /// Where the locks are [default: see `dlock info`]
    ///
    /// Without it: the store that /etc/dlock.toml names, or else an SQLite file in the user's state directory. A URL with a password belongs into
    /// the environment: everybody on the host can see a command line
    #[arg(long, value_name = "URL", env = "DLOCK_STORE", hide_env_values = true)]
    pub(crate) store: Option<OsString>,

    /// A file of stores by name, in TOML
    ///
    /// It has rules that say which lock is in which store. --store may be the name of a store of it.
    #[arg(long, value_name = "FILE", env = "DLOCK_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<OsString>,
}

/// Who holds and who waits.
#[derive(Args)]
pub(crate) struct WhoArg {
    /// Says who holds or waits, as `ls` and `inspect` show it [default: user, host, process, command]
    ///
    /// Up to 200 bytes. The waiting line of others shows it too.
    #[arg(long, value_name = "TEXT", env = "DLOCK_WHO", hide_env_values = true)]
    pub(crate) who: Option<OsString>,
}

#[derive(Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    pub(crate) store: StoreArg,

    /// Only names that begin like this
    #[arg(default_value = "")]
    pub(crate) prefix: OsString,

    /// Prints a JSON object; docs/json.md explains its fields
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    pub(crate) store: StoreArg,

    /// The lock's name
    pub(crate) name: OsString,

    /// Prints a JSON object; docs/json.md explains its fields
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Info {
    #[command(flatten)]
    pub(crate) store: StoreArg,

    /// The name of a lock: a configuration may say that it is in another store
    pub(crate) name: Option<OsString>,

    /// Prints a JSON object; docs/json.md explains its fields
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Unlock {
    #[command(flatten)]
    pub(crate) store: StoreArg,

    /// The lock's name
    pub(crate) name: OsString,

    /// Says that you know what you do: the holder may still be at work
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args)]
pub(crate) struct Init {
    /// The users who share the store: the group's name or number. The folder is the group's then, and made if there is
    /// none
    #[arg(short = 'g', long)]
    pub(crate) group: Option<String>,

    /// The file, in a folder of its own: `/srv/locks/locks.db`
    pub(crate) path: PathBuf,
}
