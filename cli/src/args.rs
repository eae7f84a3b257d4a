//! Command line arguments and their help texts, as definitions for clap.

use std::{ffi::OsString, path::PathBuf, sync::Arc, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand, value_parser};
use clap_complete::Shell;
use dlock::{DistributedLock, Kind, LockName, Locks, Registry, Wait};

use crate::{choice, exit, lead, leader, values};

const EXAMPLES: &str = "\
Examples:

  dlock run nightly -- ./report.sh                wait for the lock, run the script, release it
  dlock run -n backup -- ./backup.sh              exit 75 at once if the lock is held
  dlock run -w 30s -c 'wc -l <data' data          wait for at most 30 seconds; run a shell command
  dlock run -q --every 1d report -- ./r.sh        once a day, over all hosts that share the store
  dlock run --slots 4 pool -- ./job.sh            at most four at the same time
  dlock lead scheduler -- ./scheduler             on one of several hosts, with standbys on the others
  dlock leader scheduler                          the leader
  dlock ls; dlock inspect nightly                 holders and waiters
  dlock info                                      the store in use, and the reason
";

/// Last lines of a short help.
const MORE: &str = "`--help` adds examples, stores, signals and exit statuses. `dlock man | man -l -` shows the manual page.";

const COMMANDS: &str = "\
The command finds the lock's name in DLOCK_NAME and the lock's fencing token in DLOCK_TOKEN. The command of `lead` finds the token in DLOCK_TERM too. \
A `run` of the same name inside the command enters at once. \
Inside `run --read` only --read may nest, inside --slots only --slots. Any other kind would deadlock and exits 64.

dlock waits for the end of the command, whatever the number of signals. \
Without a terminal it forwards HUP, INT, QUIT, TERM, USR1, USR2 and WINCH to the command's process group. \
At a terminal it forwards HUP, TERM, USR1 and USR2 to the command itself, and the command receives a Ctrl-C directly. \
After a Ctrl-C that ended the wait or the command, dlock ends by INT too, so that an enclosing shell script ends. \
If dlock itself is killed, the kernel kills the command (on Linux; neither the command's children nor a command that has changed its user).";

/// Runs commands one at a time, under locks that processes share through a store.
#[derive(Parser)]
#[command(name = "dlock", version, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Returns the command for clap. Adds the exit statuses and the available stores, which
    /// attributes cannot express.
    pub(crate) fn with(registry: &Registry) -> clap::Command {
        Self::with_default(registry, &choice::describe_default())
    }

    /// Returns the same with another description of the default store.
    pub(crate) fn with_default(registry: &Registry, default: &str) -> clap::Command {
        let help = format!("{EXAMPLES}\n{}\n{COMMANDS}", exit::help());
        let schemes = registry.schemes().into_iter().filter(|scheme| *scheme != choice::MEMORY);
        let schemes = schemes.collect::<Vec<_>>().join(":, ");
        let mut cli = Self::command().after_help(MORE).after_long_help(&help);
        for command in cli.get_subcommands_mut() {
            let is_store = |arg: &clap::Arg| arg.get_id() == "store";
            let mut subcommand = std::mem::take(command);
            if subcommand.get_arguments().any(is_store) {
                subcommand = subcommand.mut_arg("store", |arg| {
                    let about = arg.get_long_help().map(ToString::to_string).unwrap_or_default();
                    arg.long_help(format!("{about}\n\nStores: {schemes}:\n\nThe default is {default}."))
                });
            }
            if matches!(subcommand.get_name(), "run" | "try" | "lead") {
                subcommand = subcommand.after_help(MORE).after_long_help(&help);
            }
            *command = subcommand;
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
    /// Runs a command if the lock is free; without a command, only tests the lock: exit status 0 if
    /// free, 75 if held.
    #[command(
        override_usage = "dlock try [OPTIONS] <NAME> [-- <CMD> [ARGS]...]\n       dlock try [OPTIONS] <NAME> -c <TEXT>"
    )]
    Try(Try),
    /// Runs a command whenever this host is elected leader; stops it when the term is lost, and stands
    /// again.
    #[command(
        override_usage = "dlock lead [OPTIONS] <NAME> -- <CMD> [ARGS]...\n       dlock lead [OPTIONS] <NAME> -c <TEXT>"
    )]
    Lead(lead::Args),
    /// Prints who leads an election; exit status 1 if there is no leader.
    Leader(leader::Args),
    /// Takes a lock that outlives this process, and prints a ticket for it.
    Acquire(Acquire),
    /// Keeps the lock of a ticket held for longer, and prints a new ticket in place of the old one.
    Renew(Renew),
    /// Releases the lock of a ticket.
    Release(Release),
    /// Lists the locks that are held or waited for.
    ///
    /// If the configuration has several stores, lists the locks of the default store; `--store
    /// NAME` selects another.
    Ls(Ls),
    /// Shows the holders and waiters of a lock; exit status 1 if there are none.
    Inspect(Inspect),
    /// Prints the store in use, the reason for it, and its capabilities.
    Info(Info),
    /// Takes a lock from its holder; exit status 1 if it was not held.
    Unlock(Unlock),
    /// Lets a command of `run --once` run again; exit status 1 if it was not marked as done.
    Forget(Forget),
    /// Creates a store in a file, or the tables of a store in a database, and prints the store.
    Init(Init),
    /// Fails with a message that names `run` and `acquire`.
    #[command(hide = true)]
    Lock {
        /// Ignored arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Prints the manual page: `dlock man | man -l -`.
    Man {
        /// Subcommand of the page; without it the page of `dlock`.
        command: Option<String>,
    },
    /// Prints a completion script for a shell: `source <(dlock completions bash)`.
    ///
    /// It completes the names of locks too, as `dlock ls` lists them.
    Completions {
        /// Shell of the script.
        shell: Shell,
    },
}

#[derive(Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) hold: HoldArgs,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,

    /// Keeps the lock held for at least this long after its grant
    ///
    /// Also if the command ends or fails before. Example for a daily job that runs once over all
    /// hosts: `dlock run -n --at-least 23h report -- ./report.sh`
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = values::duration)]
    pub(crate) at_least: Option<Duration>,

    #[command(flatten)]
    pub(crate) once: OnceArgs,

    /// Takes over the lock of a ticket that `acquire` has printed, and releases it when the command
    /// has ended
    #[arg(long, value_name = "TICKET", conflicts_with_all = ["WaitArgs", "KindArgs", "OnceArgs", "at_least"])]
    pub(crate) ticket: Option<OsString>,

    /// Takes over the lock of the ticket in a file, and releases it and deletes the file when the
    /// command has ended
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ticket", "WaitArgs", "KindArgs", "OnceArgs", "at_least"])]
    pub(crate) ticket_file: Option<PathBuf>,

    /// Keeps the lock held for this time after the command has ended, for the next step: writes a
    /// new ticket to the file instead of releasing the lock
    #[arg(long = "for", value_name = "DURATION", requires = "ticket_file", allow_negative_numbers = true, value_parser = values::duration)]
    pub(crate) lasting: Option<Duration>,
}

/// Occurrence of the command, which runs once.
#[derive(Args)]
pub(crate) struct OnceArgs {
    /// Runs the command only if it has not yet succeeded for this key; otherwise exits 0
    ///
    /// The key names the occurrence, such as the day of a report: `dlock run --once "$(date -I)"
    /// report -- ./report.sh`. The store remembers a command that ended with status 0, for the time
    /// of --keep. A command that fails, or whose lock is lost before the store has confirmed that it is
    /// done, can run again. So can a command whose dlock is killed before that.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["every", "read", "slots"])]
    pub(crate) once: Option<OsString>,

    /// As --once, with one key for each period of this length, by the store's clock
    ///
    /// For lines of a crontab that all hosts have: `0 * * * * dlock run -q --every 1h report --
    /// ./report.sh`. Periods are centred on the multiples of the length since 1970 (UTC). With 1h, a
    /// start from 8:29:30 to 9:29:30 counts for 9:00. With 1d, a period ends at 11:59:30 UTC; if hosts
    /// start near that time, use `--once "$(date -I)"`. Not on stores without a clock that clients
    /// can read (etcd, a RedLock), and not on stores that keep no mark (ZooKeeper, MySQL and
    /// PostgreSQL with mode=session).
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = values::duration, conflicts_with_all = ["read", "slots"])]
    pub(crate) every: Option<Duration>,

    /// Time for which the store remembers that the command has succeeded [default: 7d, with --every
    /// at least one period]
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = values::duration)]
    pub(crate) keep: Option<Duration>,
}

/// Wait limit for a lock.
#[derive(Args, Clone, Copy)]
pub(crate) struct WaitArgs {
    /// Waits at most this long for the store and the lock, then exits 69 or 75; or `forever`
    /// [default: 30s for the store, no limit for the lock]
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

/// Amount of output of dlock itself.
#[derive(Args, Clone, Copy)]
pub(crate) struct OutputArgs {
    /// Prints errors only, without status lines and without a message about a busy lock
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    quiet: bool,

    /// Prints the current holder, or why the store cannot be reached, once a minute while waiting,
    /// also without a terminal
    #[arg(short = 'v', long)]
    verbose: bool,
}

impl OutputArgs {
    pub(crate) fn verbosity(self) -> Verbosity {
        match self {
            Self { quiet: true, .. } => Verbosity::Quiet,
            Self { verbose: true, .. } => Verbosity::Verbose,
            _ => Verbosity::Normal,
        }
    }
}

/// Amount of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// Errors only.
    Quiet,
    Normal,
    /// The reason of the wait once a minute, also without a terminal.
    Verbose,
}

/// Options of `flock` that dlock does not need.
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
    /// For an option without a meaning in dlock. The message names the replacement.
    pub(crate) fn check(self) -> exit::Outcome<()> {
        let Self { close: _, unlock, no_fork } = self;
        if unlock {
            return Err(exit::Failure::usage(
                "dlock does not support -u: a lock is released when its command has ended; to take it from its holder use `dlock unlock --force NAME`",
            ));
        }
        if no_fork {
            return Err(exit::Failure::usage(
                "dlock does not support -F: it runs beside the command to renew the lock; leave it out, because dlock forwards signals",
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

    /// Time for which the lock is held from now on, unless it is released by its ticket
    #[arg(long = "for", value_name = "DURATION", allow_negative_numbers = true, default_value = "10m", value_parser = values::duration)]
    pub(crate) lasting: Duration,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,

    #[command(flatten)]
    pub(crate) kind: KindArgs,

    #[command(flatten)]
    pub(crate) busy: BusyArgs,

    /// Writes the ticket to a file instead of stdout, for the steps of a script
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub(crate) ticket_file: Option<PathBuf>,

    /// Prints a JSON object with the ticket; docs/json.md explains its fields
    #[arg(long)]
    pub(crate) json: bool,
}

/// A ticket, or the file that contains it.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct TicketArgs {
    /// Ticket that `acquire` has printed
    pub(crate) ticket: Option<OsString>,

    /// File with the ticket
    #[arg(long, value_name = "FILE")]
    pub(crate) ticket_file: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Renew {
    #[command(flatten)]
    pub(crate) store: StoreArg,

    #[command(flatten)]
    pub(crate) ticket: TicketArgs,

    /// Time for which the lock is held from now on
    #[arg(long = "for", value_name = "DURATION", allow_negative_numbers = true, default_value = "10m", value_parser = values::duration)]
    pub(crate) lasting: Duration,

    /// Prints a JSON object with the new ticket, as `acquire` does
    #[arg(long, conflicts_with = "ticket_file")]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Release {
    #[command(flatten)]
    pub(crate) store: StoreArg,

    #[command(flatten)]
    pub(crate) ticket: TicketArgs,

    /// Prints a JSON object; docs/json.md explains its fields
    #[arg(long)]
    pub(crate) json: bool,
}

/// Behaviour if the lock is busy.
#[derive(Args, Clone, Copy)]
pub(crate) struct BusyArgs {
    /// Exit status if the lock is busy; with -n no message is printed then [default: 75]
    #[arg(short = 'E', long, alias = "conflict-exit-code", value_name = "STATUS")]
    busy_status: Option<u8>,

    #[command(flatten)]
    output: OutputArgs,
}

impl BusyArgs {
    pub(crate) fn verbosity(self) -> Verbosity {
        self.output.verbosity()
    }

    /// Applies the options to a failure. A busy lock gets the status of `-E`, and no message if the
    /// user expects it.
    pub(crate) fn apply(self, failure: exit::Failure, wait: Wait) -> exit::Failure {
        let is_expected = wait == Wait::Never && self.busy_status.is_some();
        let is_silent = is_expected || self.verbosity() == Verbosity::Quiet;
        failure.busy_as(self.busy_status.unwrap_or(exit::BUSY), is_silent)
    }
}

/// Options of a hold, and the command that runs under it.
#[derive(Args)]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    pub(crate) store: StoreArg,

    #[command(flatten)]
    pub(crate) who: WhoArg,

    /// The lock's name: up to 1024 bytes of UTF-8 without control characters
    pub(crate) name: OsString,

    /// Time after which the store frees the lock of a dlock that no longer renews it [default: 30s,
    /// or the store's longest]
    ///
    /// etcd and ZooKeeper free it after the timeout of the client's session instead, which the
    /// parameter `session` of the store's URL sets.
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = values::ttl)]
    pub(crate) ttl: Option<Duration>,

    /// Stops the command this long before the store frees the lock, if the store is unreachable; at
    /// most half of the ttl [default: the configuration's margin, else --kill-after plus 1s; none
    /// if that is more than a third of the ttl]
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = values::duration)]
    pub(crate) margin: Option<Duration>,

    #[command(flatten)]
    pub(crate) kind: KindArgs,

    #[command(flatten)]
    pub(crate) busy: BusyArgs,

    #[command(flatten)]
    pub(crate) flock: FlockArgs,

    /// Time between TERM and KILL for the command of a lost lock
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

    /// Holds the lock together with other readers
    #[arg(short = 's', long, visible_alias = "shared")]
    read: bool,

    /// Holds the lock alone, as the writer beside readers
    #[arg(short = 'x', long, visible_alias = "exclusive", short_alias = 'e')]
    write: bool,

    /// Holds one of N permits, so at most N hold the lock at once, in order of arrival
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

/// Store of the locks. [`choice`] reads the values, together with their sources.
#[derive(Args)]
pub(crate) struct StoreArg {
    /// URL of the store [default: see `dlock info`]
    ///
    /// Without it dlock uses the store that /etc/dlock.toml names, or else an SQLite file in the
    /// user's state directory. Pass a URL with a password in the environment, because every user of
    /// the host can see a command line
    #[arg(long, value_name = "URL", env = "DLOCK_STORE", hide_env_values = true)]
    pub(crate) store: Option<OsString>,

    /// TOML file with named stores
    ///
    /// Its rules assign locks to stores. --store accepts the name of a store in this file. Without
    /// --config dlock reads /etc/dlock.toml, if that exists. docs/config.md describes the format.
    #[arg(long, value_name = "FILE", env = "DLOCK_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<OsString>,
}

/// Description of the holder or waiter.
#[derive(Args)]
pub(crate) struct WhoArg {
    /// Description of this holder or waiter in `ls` and `inspect` [default: user, host, process,
    /// command]
    ///
    /// Up to 200 bytes. The status line of other waiters shows it too.
    #[arg(long, value_name = "TEXT", env = "DLOCK_WHO", hide_env_values = true)]
    pub(crate) who: Option<OsString>,
}

#[derive(Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    pub(crate) store: StoreArg,

    /// Lists only names with this prefix
    #[arg(default_value = "")]
    pub(crate) prefix: OsString,

    /// Lists what `run --once` and --every have done, instead of locks
    #[arg(long)]
    pub(crate) marks: bool,

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

    /// Name of a lock, since a configuration may assign it to another store
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

    /// Confirms the risk that the holder may still be running
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args)]
pub(crate) struct Forget {
    #[command(flatten)]
    pub(crate) store: StoreArg,

    /// The lock's name
    pub(crate) name: OsString,

    /// The key, as `ls --marks` prints it
    pub(crate) key: OsString,
}

#[derive(Args)]
pub(crate) struct Init {
    /// Name or number of the group whose users share the store. Its folder belongs to the group,
    /// and is created if it does not exist
    #[arg(short = 'g', long)]
    pub(crate) group: Option<String>,

    /// The file, in a folder of its own: `/srv/locks/locks.db`. Or the URL of a server, with a user
    /// that may create what the store needs: `postgres://admin@host/app`
    #[arg(value_name = "PATH|URL")]
    pub(crate) path: PathBuf,
}
