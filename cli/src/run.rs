//! `dlock run` and `dlock try`: a command under a lock.

use std::{ffi::OsString, process::Command, sync::Arc, time::Duration};

use dlock::{Error, Guard, Kind, LockName, LockOptions, Locks, LostReason, Occurrence, Ticket, Wait, Who};
use tokio::time::timeout;

use crate::{
    args::BusyArgs,
    args::{HoldArgs, KindArgs, Run},
    child::{self, Child},
    choice::Stores,
    exec,
    exit::{self, Failure, Outcome, chain},
    held::{self, Held, OuterHolds},
    once, output,
    signals::Signals,
    store, ticket,
    ticket_file::{NewTicketFile, TicketFile},
    values,
    wait::{self, WaitLimit},
};

/// Maximum time to wait for the store's confirmation of a release.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time to wait for the release of a lock that was lost. The store may be unreachable, and
/// frees the lock soon by itself.
const LOST_RELEASE_TIMEOUT: Duration = Duration::from_millis(300);

/// Part of the default margin that is left for the end of the processes after KILL.
const TIME_AFTER_KILL: Duration = Duration::from_secs(1);

/// A checked command line of `run` or `try`.
struct Job {
    name: LockName,
    source: LockSource,
    options: LockOptions,
    wait_limit: WaitLimit,
    busy: BusyArgs,
    /// Set by `--once` and `--every`.
    plan: Option<once::Plan>,
    /// File with the ticket of the lock, and the time for which the lock stays held after the
    /// command, if it does.
    ticket_file: Option<(TicketFile, Option<Duration>)>,
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
    let Run { hold, wait, at_least, once, ticket, ticket_file, lasting } = args;
    if hold.command().is_empty() {
        return Err(Failure::usage(
            "no command; write `dlock run NAME -- CMD ARGS…` or `dlock run NAME -c 'shell text'`",
        ));
    }
    let ticket_file = ticket_file.as_deref().map(TicketFile::new);
    let source = match (ticket, &ticket_file) {
        (_, Some(file)) => LockSource::Ticket(file.read()?),
        (Some(ticket), None) => LockSource::Ticket(values::ticket(&ticket)?),
        (None, None) => LockSource::Acquire(wait.wait(), hold.kind),
    };
    let plan = once::Plan::new(&once)?;
    let ticket_file = ticket_file.map(|file| (file, lasting));
    take(stores, "run", source, Terms { at_least, plan, ticket_file }, hold).await
}

/// Runs a command if the lock is free. Without a command, only tests the lock.
pub(crate) async fn attempt(stores: &Stores<'_>, args: HoldArgs) -> Outcome {
    take(stores, "try", LockSource::Acquire(Some(Wait::Never), args.kind), Terms::default(), args).await
}

/// Options that only `run` has.
#[derive(Default)]
struct Terms {
    at_least: Option<Duration>,
    plan: Option<once::Plan>,
    ticket_file: Option<(TicketFile, Option<Duration>)>,
}

async fn take(
    stores: &Stores<'_>,
    verb: &str,
    source: LockSource,
    Terms { at_least, plan, ticket_file }: Terms,
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
    let options = args.ttl.into_iter().fold(LockOptions::new(), LockOptions::ttl);
    let options = args.margin.into_iter().fold(options, LockOptions::margin);
    let job = Job {
        name,
        source,
        options: at_least.into_iter().fold(options, LockOptions::at_least),
        plan,
        ticket_file,
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
    if outcome.as_ref().is_err_and(Failure::is_loss) {
        // The command has ended, so the lock is released now. Otherwise the next holder might wait
        // for the rest of the margin.
        timeout(LOST_RELEASE_TIMEOUT, locks.close()).await.ok();
    } else {
        store::close(&locks).await;
    }
    drop(locks);
    match outcome {
        Ok(End::Status(status)) => Ok(status),
        Ok(End::Become(words, (name, token))) => {
            // A signal that arrived while the client was closed must not be lost.
            signals.unless(async { Ok(()) }).await?;
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
        let name = &self.name;
        let (mut due, mut kept) = (None, None);
        let options = with_margin(self.options.clone(), self.kill_after, locks);
        let guard = match &self.source {
            LockSource::Ticket(ticket) => {
                if let Some((file, Some(lasting))) = &self.ticket_file {
                    // Before the lock is taken over, which uses the ticket.
                    locks.info().check_detach(*lasting)?;
                    kept = Some((*lasting, file.prepare()?));
                }
                let locks = locks.clone().with_defaults(options.or(locks.defaults()));
                let resumed = async { locks.resume(ticket).await.map_err(ticket::unusable) };
                signals.unless(resumed).await?
            }
            LockSource::Acquire(_, kind) => {
                if let Some(held) = signals.unless(self.outer.enter(locks, name, kind.kind())).await? {
                    let at_least = self.options.get_at_least().map(|_| "--at-least");
                    if let Some(option) = self.plan.as_ref().map(once::Plan::option).or(at_least) {
                        return Err(Failure::usage(format!(
                            "lock `{name}` is held by an outer dlock, which releases it; use {option} with the outer one"
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
                if let Some(plan) = &self.plan {
                    let planned = plan.occurrence(locks, Arc::clone(&lock), options.clone());
                    let occurrence = signals.unless(planned).await?;
                    if signals.unless(self.is_done(&occurrence)).await? {
                        return Ok(End::Status(exit::OK));
                    }
                    due = Some(occurrence);
                }
                let acquiring =
                    wait::acquire(locks, who, &*lock, options, self.wait_limit, self.busy.verbosity());
                signals.unless(acquiring).await?
            }
        };
        // Another host may have done it during the wait.
        let is_done = match &due {
            Some(occurrence) => signals.unless(self.is_done(occurrence)).await,
            None => Ok(false),
        };
        if !matches!(is_done, Ok(false)) || self.words.is_empty() {
            release_unused(guard).await;
            return is_done.map(|_| End::Status(exit::OK));
        }
        self.run_under(guard, due, kept, locks, signals).await.map(End::Status)
    }

    /// Returns whether the lock stays held after the command, because of `--at-least` or of the
    /// configuration.
    fn keeps_lock(&self, locks: &Locks) -> bool {
        let options = self.options.clone().or(locks.defaults());
        matches!(self.source, LockSource::Acquire(..)) && options.get_at_least().is_some()
    }

    async fn is_done(&self, occurrence: &Occurrence) -> Outcome<bool> {
        once::is_done(occurrence, &self.name, self.busy.verbosity()).await
    }

    /// Runs the command under the lock, and releases the lock after the command has ended.
    /// Marks `due` as done if the command has succeeded. Keeps the lock held if `kept` is set.
    async fn run_under(
        self,
        guard: Guard,
        due: Option<Occurrence>,
        kept: Option<(Duration, NewTicketFile)>,
        locks: &Locks,
        signals: &mut Signals,
    ) -> Outcome {
        let keeps_lock = self.keeps_lock(locks);
        let mut child = match self.spawn(&guard, keeps_lock, locks, signals) {
            Ok(child) => child,
            Err(failure) => {
                match kept {
                    Some((lasting, file)) => {
                        ticket::keep(locks, guard, lasting, file).await.map_err(Failure::printed).ok();
                    }
                    None => release_unused(guard).await,
                }
                return Err(failure);
            }
        };
        tokio::select! {
            biased;
            status = child.wait(signals, &guard) => {
                let status = status?;
                if let Some(occurrence) = due.filter(|_| status.success()) {
                    let marked = signals.unless(once::mark(&occurrence, &guard)).await;
                    // After the mark a loss has no effect any more. Without a mark, `marked` is the
                    // failure.
                    release(guard, keeps_lock).await;
                    return marked.and_then(|()| child::outcome_of(status));
                }
                // After a suspend of the machine the command may end before the keeper detects the
                // loss.
                let lost = match kept {
                    _ if guard.is_lost() => Some(guard.lost().await),
                    Some((lasting, file)) => {
                        if let Err(failure) = ticket::keep(locks, guard, lasting, file).await {
                            if status.success() || failure.is_loss() {
                                return Err(failure);
                            }
                            failure.printed();
                        }
                        None
                    }
                    None => {
                        if let (Some((file, _)), LockSource::Ticket(ticket)) = (&self.ticket_file, &self.source) {
                            file.remove(ticket);
                        }
                        release(guard, keeps_lock).await
                    }
                };
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

    /// Starts the command with the variables of the lock. With `keeps_lock`, a command that cannot be
    /// executed is an error here, because the lock would stay held after it.
    fn spawn(&self, guard: &Guard, keeps_lock: bool, locks: &Locks, signals: &mut Signals) -> Outcome<Child> {
        if keeps_lock {
            exec::check(&self.words)?;
        }
        let mut command = exec::tied(&self.words);
        set_environment(&mut command, &self.name, guard.token().map(dlock::Token::get));
        command.env(held::VARIABLE, self.outer.clone().with(Held::new(locks, self.source.kind(), guard))?);
        Child::spawn(command, signals)
    }
}

/// Adds the default margin, if neither the command line nor the configuration sets a margin. The
/// margin is sufficient for TERM, KILL, and the end of the processes. A ttl of less than three times
/// the margin gets none, because too little of it would be left for renewals.
pub(crate) fn with_margin(options: LockOptions, kill_after: Duration, locks: &Locks) -> LockOptions {
    let effective = options.clone().or(locks.defaults());
    let margin = kill_after.saturating_add(TIME_AFTER_KILL);
    let ttl = effective.max_margin(locks.info()) * 2;
    if effective.get_margin().is_none() && margin.saturating_mul(3) <= ttl {
        options.margin(margin)
    } else {
        options
    }
}

/// Sets the variables with the name and the token of the lock.
pub(crate) fn set_environment(command: &mut Command, name: &LockName, token: Option<u64>) {
    command.env("DLOCK_NAME", name.as_str());
    match token {
        Some(token) => command.env("DLOCK_TOKEN", token.to_string()),
        // The command must not inherit the token of an outer lock.
        None => command.env_remove("DLOCK_TOKEN"),
    };
}

/// Releases a lock under which no command has run, also within its `at_least`.
async fn release_unused(guard: Guard) {
    guard.clear_at_least();
    release(guard, false).await;
}

/// Releases the lock. Returns the reason of a loss that the release detects. Prints other failures,
/// which do not change the status of the ended command.
async fn release(guard: Guard, keeps_lock: bool) -> Option<LostReason> {
    match timeout(RELEASE_TIMEOUT, guard.release()).await {
        Ok(Ok(())) => {}
        Ok(Err(Error::Lost { reason, .. })) => return Some(reason),
        Ok(Err(error)) => {
            let message = if keeps_lock {
                "the lock may be free after its ttl, before the time of its at_least"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_margin_is_a_second_more_than_kill_after_if_the_ttl_is_long_enough() {
        let s = Duration::from_secs;
        let plain = Locks::memory();
        let with_defaults = |options| Locks::memory().with_defaults(options);
        let none = LockOptions::new;
        for (options, kill_after, locks, margin) in [
            (none(), s(5), &plain, Some(s(6))),
            (none().ttl(s(18)), s(5), &plain, Some(s(6))),
            (none().ttl(s(17)), s(5), &plain, None),
            (none(), s(10), &plain, None),
            (none(), Duration::MAX, &plain, None),
            (none().margin(s(1)), s(5), &plain, Some(s(1))),
            (none().margin(s(0)), s(5), &plain, Some(s(0))),
            (none(), s(5), &with_defaults(none().margin(s(9))), None),
            (none(), s(5), &with_defaults(none().ttl(s(10))), None),
            (none(), s(5), &with_defaults(none().lease(s(10))), None),
            (none(), s(5), &with_defaults(none().max_hold(s(10))), None),
        ] {
            let result = with_margin(options.clone(), kill_after, locks);
            assert_eq!(result.get_margin(), margin, "{options:?} after {kill_after:?} on {locks:?}");
            result.or(locks.defaults()).validate(locks.info()).expect("the default margin is legal");
        }
    }
}
