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
    held::{self, Above, Held},
    output,
    signals::Signals,
    store, ticket, values,
    wait::{self, Patience},
};

/// How long the store may take to confirm a release.
const RELEASE: Duration = Duration::from_secs(5);

/// The checked arguments.
struct Job {
    name: LockName,
    how: How,
    options: LockOptions,
    /// Whether `options` has a ttl from the command line.
    has_ttl: bool,
    patience: Patience,
    busy: BusyArgs,
    /// Whether the lock is to stay taken after the command.
    stays: bool,
    above: Above,
    words: Vec<OsString>,
    kill_after: Duration,
}

/// How to come by the lock.
enum How {
    Wait(Option<Wait>, KindArgs),
    /// It is held already.
    Ticket(Ticket),
}

impl How {
    fn kind(&self) -> Kind {
        match self {
            Self::Wait(_, kind) => kind.kind(),
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
    let how = match ticket {
        Some(ticket) => How::Ticket(values::ticket(&ticket)?),
        None => How::Wait(wait.wait(), hold.kind),
    };
    take(stores, "run", how, at_least, hold).await
}

/// Runs a command if the lock is free, or only says whether it is.
pub(crate) async fn attempt(stores: &Stores<'_>, args: HoldArgs) -> Outcome {
    take(stores, "try", How::Wait(Some(Wait::Never), args.kind), None, args).await
}

async fn take(
    stores: &Stores<'_>,
    verb: &str,
    how: How,
    at_least: Option<Duration>,
    args: HoldArgs,
) -> Outcome {
    args.flock.check()?;
    let name = values::name(&args.name)?;
    let chosen = stores.chosen(Some(name.as_str()))?;
    let wait = match &how {
        How::Wait(wait, _) => wait.or(chosen.wait()).unwrap_or(Wait::Forever),
        How::Ticket(_) => Wait::Never,
    };
    let patience = Patience::new(wait);
    // Without one, the store's: it may keep less than the default.
    let options = args.ttl.map_or_else(LockOptions::new, |ttl| LockOptions::new().ttl(ttl));
    let at_least = at_least.unwrap_or_default();
    let job = Job {
        name,
        how,
        options: if at_least.is_zero() { options } else { options.at_least(at_least) },
        has_ttl: args.ttl.is_some(),
        stays: !at_least.is_zero(),
        patience,
        busy: args.busy,
        above: Above::from_env()?,
        words: args.command(),
        kill_after: args.kill_after,
    };
    job.check()?;
    let mut signals = Signals::listen()?;
    let does = format!("dlock {verb} {}", job.name);
    let connecting = store::connect_as(stores, &chosen, &args.who, &does, patience);
    let (locks, who) = signals.unless(connecting).await?;
    let outcome = job.run(&locks, &who, &mut signals).await;
    // Of a lock that was lost nothing is left to be released, and its store may not answer for long.
    if !outcome.as_ref().is_err_and(Failure::is_loss) {
        store::close(&locks).await;
    }
    drop(locks);
    match outcome {
        Ok(End::Status(status)) => Ok(status),
        Ok(End::Become(words, (name, token))) => {
            Err(exec::replace(&words, |command| tell(command, &name, token)))
        }
        Err(failure) => Err(args.busy.apply(failure, wait)),
    }
}

/// How a job ends.
enum End {
    Status(u8),
    /// A dlock among the parent processes holds the lock, and holds it until the command has ended. So this process only
    /// has to become the command.
    Become(Vec<OsString>, (LockName, Option<u64>)),
}

impl Job {
    fn check(&self) -> Outcome<()> {
        match &self.how {
            How::Ticket(ticket) if *ticket.name() != self.name => Err(Failure::usage(format!(
                "the ticket is for lock `{}`, not `{}`",
                ticket.name(),
                self.name
            ))),
            _ => Ok(()),
        }
    }

    async fn run(self, locks: &Locks, who: &Who, signals: &mut Signals) -> Outcome<End> {
        let Self { name, options, .. } = &self;
        let guard = match &self.how {
            How::Ticket(ticket) => {
                // Without --ttl, the store's: its configuration may say one.
                let locks = match self.has_ttl {
                    true => locks.clone().with_defaults(options.clone()),
                    false => locks.clone(),
                };
                let resumed = async { locks.resume(ticket).await.map_err(ticket::used_up) };
                signals.unless(resumed).await?
            }
            How::Wait(_, kind) => {
                if let Some(held) = signals.unless(self.above.enter(locks, name, kind.kind())).await? {
                    if self.stays {
                        return Err(Failure::usage(format!(
                            "lock `{name}` is held by a dlock around this one, which releases it; give --at-least to that one"
                        )));
                    }
                    let told = (name.clone(), held.token());
                    return Ok(if self.words.is_empty() {
                        End::Status(exit::OK)
                    } else {
                        End::Become(self.words, told)
                    });
                }
                let lock = kind.of(locks, name);
                let acquiring =
                    wait::acquire(locks, who, &*lock, options.clone(), self.patience, self.busy.tell());
                signals.unless(acquiring).await?
            }
        };
        if self.words.is_empty() {
            release(guard, self.stays).await;
            return Ok(End::Status(exit::OK));
        }
        self.under(guard, locks, signals).await.map(End::Status)
    }

    /// Runs the command; the lock is released when it has ended, not before.
    async fn under(self, guard: Guard, locks: &Locks, signals: &mut Signals) -> Outcome {
        let token = guard.token();
        let mut command = exec::tied(&self.words);
        tell(&mut command, &self.name, token.map(dlock::Token::get));
        command.env(held::VARIABLE, self.above.with(Held::new(locks, self.how.kind(), &guard))?);
        let mut child = Child::spawn(command, signals)?;
        tokio::select! {
            biased;
            status = child.ended(signals) => {
                let status = status?;
                // After a suspend of the machine the command may end before the keeper has noticed the loss.
                let lost = if guard.is_lost() { Some(guard.lost().await) } else { release(guard, self.stays).await };
                if let Some(reason) = lost {
                    let then = format!("the command had ended by itself, with status {}, when that was noticed", child::code(status));
                    return Err(Failure::lost(&self.name, reason, &then));
                }
                child::likewise(status)
            }
            reason = guard.lost() => {
                // First of all: nothing may keep the command running beside the next holder.
                child.terminate();
                let failure = Failure::lost(&self.name, reason, "stopping the command").said();
                child.stop(self.kill_after, signals).await?;
                Err(failure)
            }
        }
    }
}

/// Tells the command which lock it runs under.
fn tell(command: &mut Command, name: &LockName, token: Option<u64>) {
    command.env("DLOCK_NAME", name.as_str());
    match token {
        Some(token) => command.env("DLOCK_TOKEN", token.to_string()),
        // Without a token of its own, the command must not see that of another lock that a parent holds.
        None => command.env_remove("DLOCK_TOKEN"),
    };
}

/// Why the lock was lost, if the release finds that it was. Other failures of the release do not change the status of the
/// command, which has ended.
async fn release(guard: Guard, stays: bool) -> Option<LostReason> {
    match timeout(RELEASE, guard.release()).await {
        Ok(Ok(())) => {}
        Ok(Err(Error::Lost { reason, .. })) => return Some(reason),
        Ok(Err(error)) => {
            let what = if stays {
                "the lock may be free when its ttl ends, before the time of --at-least is over"
            } else {
                "the lock may not be released before its ttl ends"
            };
            output::say(&format!("{what}: {}", chain(&error)));
        }
        Err(_) => {} // What goes on in the background is waited for, and told, by `store::close`.
    }
    None
}
