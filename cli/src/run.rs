//! `dlock run` and `dlock try`: a command under a lock.

use std::{ffi::OsString, process::Command, time::Duration};

use dlock::{Error, Guard, Kind, LockName, LockOptions, Locks, LostReason, Ticket, Wait, Who};
use tokio::time::timeout;

use crate::{
    args::BusyArgs,
    args::{HoldArgs, KindArgs, Run},
    child::{self, Child},
    choice::Stores,
    exec,
    exit::{self, Failure, Outcome, chain},
    held::{self, Held, OuterHolds},
    output,
    signals::Signals,
    store, ticket, values,
    wait::{self, WaitLimit},
};

/// Maximum time to wait for the store's confirmation of a release.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// A checked command line of `run` or `try`.
struct Job {
    name: LockName,
    source: LockSource,
    options: LockOptions,
    /// Whether `options` has a ttl from the command line.
    has_ttl: bool,
    wait_limit: WaitLimit,
    busy: BusyArgs,
    /// Whether `--at-least` keeps the lock held after the command.
    keeps_lock: bool,
    outer: OuterHolds,
    words: Vec<OsString>,
    kill_after: Duration,
}

/// Origin of the lock.
enum LockSource {
    Acquire(Option<Wait>, KindArgs),
    /// A detached hold.
    Ticket(Ticket),
}

impl LockSource {
    fn kind(&self) -> Kind {
        match self {
            Self::Acquire(_, kind) => kind.kind(),
            Self::Ticket(ticket) => ticket.kind(),
        }
    }
}

/// Runs a command under a lock.
pub(crate) async fn run(stores: &Stores<'_>, args: Run) -> Outcome {
    let Run { hold, wait, at_least, ticket } = args;
    if hold.command().is_empty() {
        return Err(Failure::usage(
            "no command; write `dlock run NAME -- CMD ARGS…` or `dlock run NAME -c 'shell text'`",
        ));
    }
    let source = match ticket {
        Some(ticket) => LockSource::Ticket(values::ticket(&ticket)?),
        None => LockSource::Acquire(wait.wait(), hold.kind),
    };
    take(stores, "run", source, at_least, hold).await
}

/// Runs a command if the lock is free. Without a command, only tests the lock.
pub(crate) async fn attempt(stores: &Stores<'_>, args: HoldArgs) -> Outcome {
    take(stores, "try", LockSource::Acquire(Some(Wait::Never), args.kind), None, args).await
}

async fn take(
    stores: &Stores<'_>,
    verb: &str,
    source: LockSource,
    at_least: Option<Duration>,
    args: HoldArgs,
) -> Outcome {
    args.flock.check()?;
    let name = values::name(&args.name)?;
    let chosen = stores.chosen(Some(name.as_str()))?;
    let wait_limit = WaitLimit::new(match &source {
        LockSource::Acquire(wait, _) => wait.or(chosen.wait()),
        // A detached hold needs no wait for the lock.
        LockSource::Ticket(_) => None,
    });
    // Without --ttl the ttl is the store's default, because its maximum may be less than 30 s.
    let options = args.ttl.map_or_else(LockOptions::new, |ttl| LockOptions::new().ttl(ttl));
    let at_least = at_least.unwrap_or_default();
    let job = Job {
        name,
        source,
        options: if at_least.is_zero() { options } else { options.at_least(at_least) },
        has_ttl: args.ttl.is_some(),
        keeps_lock: !at_least.is_zero(),
        wait_limit,
        busy: args.busy,
        outer: OuterHolds::from_env()?,
        words: args.command(),
        kill_after: args.kill_after,
    };
    job.check()?;
    let mut signals = Signals::listen()?;
    let activity = format!("dlock {verb} {}", job.name);
    let connecting =
        store::connect_as(stores, &chosen, &args.who, &activity, wait_limit, args.busy.verbosity());
    let (locks, who) = signals.unless(connecting).await?;
    let outcome = job.run(&locks, &who, &mut signals).await;
    // A lost lock needs no release, and its store may be unreachable for a long time.
    if !outcome.as_ref().is_err_and(Failure::is_loss) {
        store::close(&locks).await;
    }
    drop(locks);
    match outcome {
        Ok(End::Status(status)) => Ok(status),
        Ok(End::Become(words, (name, token))) => {
            Err(exec::replace(&words, |command| set_environment(command, &name, token)))
        }
        Err(failure) => Err(args.busy.apply(failure, wait_limit.wait)),
    }
}

/// Result of a job.
enum End {
    Status(u8),
    /// An outer dlock holds the lock until the command has ended. This process is replaced by the
    /// command.
    Become(Vec<OsString>, (LockName, Option<u64>)),
}

impl Job {
    fn check(&self) -> Outcome<()> {
        match &self.source {
            LockSource::Ticket(ticket) if *ticket.name() != self.name => Err(Failure::usage(format!(
                "the ticket is for lock `{}`, not `{}`",
                ticket.name(),
                self.name
            ))),
            _ => Ok(()),
        }
    }

    async fn run(self, locks: &Locks, who: &Who, signals: &mut Signals) -> Outcome<End> {
        let Self { name, options, .. } = &self;
        let guard = match &self.source {
            LockSource::Ticket(ticket) => {
                // Without --ttl the store's configuration may set a ttl.
                let locks = match self.has_ttl {
                    true => locks.clone().with_defaults(options.clone()),
                    false => locks.clone(),
                };
                let resumed = async { locks.resume(ticket).await.map_err(ticket::unusable) };
                signals.unless(resumed).await?
            }
            LockSource::Acquire(_, kind) => {
                if let Some(held) = signals.unless(self.outer.enter(locks, name, kind.kind())).await? {
                    if self.keeps_lock {
                        return Err(Failure::usage(format!(
                            "lock `{name}` is held by an outer dlock, which releases it; use --at-least with the outer one"
                        )));
                    }
                    let lock = (name.clone(), held.token());
                    return Ok(if self.words.is_empty() {
                        End::Status(exit::OK)
                    } else {
                        End::Become(self.words, lock)
                    });
                }
                let lock = kind.of(locks, name);
                let acquiring = wait::acquire(
                    locks,
                    who,
                    &*lock,
                    options.clone(),
                    self.wait_limit,
                    self.busy.verbosity(),
                );
                signals.unless(acquiring).await?
            }
        };
        if self.words.is_empty() {
            release(guard, self.keeps_lock).await;
            return Ok(End::Status(exit::OK));
        }
        self.run_under(guard, locks, signals).await.map(End::Status)
    }

    /// Runs the command under the lock, and releases the lock after the command has ended.
    async fn run_under(self, guard: Guard, locks: &Locks, signals: &mut Signals) -> Outcome {
        let token = guard.token();
        let mut command = exec::tied(&self.words);
        set_environment(&mut command, &self.name, token.map(dlock::Token::get));
        command.env(held::VARIABLE, self.outer.with(Held::new(locks, self.source.kind(), &guard))?);
        let mut child = Child::spawn(command, signals)?;
        tokio::select! {
            biased;
            status = child.wait(signals) => {
                let status = status?;
                // After a suspend of the machine the command may end before the keeper detects the
                // loss.
                let lost = if guard.is_lost() { Some(guard.lost().await) } else { release(guard, self.keeps_lock).await };
                if let Some(reason) = lost {
                    let then = format!("the command had ended with status {} before the loss was detected", child::code(status));
                    return Err(Failure::lost(&self.name, reason, &then));
                }
                child::outcome_of(status)
            }
            reason = guard.lost() => {
                // Before any output, because the command must not run beside the next holder.
                child.terminate();
                let failure = Failure::lost(&self.name, reason, "stopping the command").printed();
                child.stop(self.kill_after, signals).await?;
                Err(failure)
            }
        }
    }
}

/// Sets the variables with the name and the token of the lock.
fn set_environment(command: &mut Command, name: &LockName, token: Option<u64>) {
    command.env("DLOCK_NAME", name.as_str());
    match token {
        Some(token) => command.env("DLOCK_TOKEN", token.to_string()),
        // The command must not inherit the token of an outer lock.
        None => command.env_remove("DLOCK_TOKEN"),
    };
}

/// Releases the lock. Returns the reason of a loss that the release detects. Prints other failures,
/// which do not change the status of the ended command.
async fn release(guard: Guard, keeps_lock: bool) -> Option<LostReason> {
    match timeout(RELEASE_TIMEOUT, guard.release()).await {
        Ok(Ok(())) => {}
        Ok(Err(Error::Lost { reason, .. })) => return Some(reason),
        Ok(Err(error)) => {
            let message = if keeps_lock {
                "the lock may be free after its ttl, before the time of --at-least"
            } else {
                "the lock may stay held until its ttl ends"
            };
            output::say(&format!("{message}: {}", chain(&error)));
        }
        // `store::close` waits for the release in the background, and reports a failure.
        Err(_) => {}
    }
    None
}
