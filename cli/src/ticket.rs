//! `dlock acquire` and `dlock release`: a lock that outlives its process.

use std::time::SystemTime;

use dlock::{Error, LockName, LockOptions, Locks, Ticket, Who};

use crate::{
    args::{Acquire, Release},
    choice::Stores,
    exit::{Failure, OK, Outcome},
    held::OuterHolds,
    json, output,
    signals::Signals,
    store, values,
    wait::{self, WaitLimit},
};

/// Acquires a lock that outlives this process, and prints its ticket.
pub(crate) async fn acquire(stores: &Stores<'_>, args: Acquire) -> Outcome {
    let name = values::name(&args.name)?;
    if output::stdout_is_closed() {
        return Err(Failure::usage(
            "stdout is closed, so the ticket cannot be written; without the ticket the lock cannot be released",
        ));
    }
    let outer = OuterHolds::from_env()?;
    let mut signals = Signals::listen()?;
    let activity = format!("dlock acquire {name}");
    let chosen = stores.chosen(Some(name.as_str()))?;
    let wait_limit = WaitLimit::new(args.wait.wait().or(chosen.wait()));
    let verbosity = args.busy.verbosity();
    let connecting = store::connect_as(stores, &chosen, &args.who, &activity, wait_limit, verbosity);
    let (locks, who) = signals.unless(connecting).await?;
    let outcome = match signals.unless(take(&locks, &who, &name, outer, &args, wait_limit)).await {
        Ok((ticket, since)) => print_ticket(&locks, &ticket, since, &args, &mut signals).await,
        Err(failure) => Err(args.busy.apply(failure, wait_limit.wait)),
    };
    store::close(&locks).await;
    outcome
}

/// Acquires the lock and detaches it. Returns the ticket, and a time before the detachment, from
/// which the ticket's time can be counted.
///
/// # Cancel safety
/// Safe: dropping the future leaves the queue, or releases the lock.
async fn take(
    locks: &Locks,
    who: &Who,
    name: &LockName,
    outer: OuterHolds,
    args: &Acquire,
    wait_limit: WaitLimit,
) -> Outcome<(Ticket, SystemTime)> {
    // Checked before the wait, which may be long.
    locks.info().check_detach(args.lasting)?;
    if outer.enter(locks, name, args.kind.kind()).await?.is_some() {
        return Err(Failure::usage(format!(
            "lock `{name}` is held by an outer dlock, which waits for this command; `acquire` would deadlock"
        )));
    }
    let lock = args.kind.of(locks, name);
    let guard =
        wait::acquire(locks, who, &*lock, LockOptions::new(), wait_limit, args.busy.verbosity()).await?;
    let since = json::now();
    let ticket = guard.detach(args.lasting).await.map_err(Error::from)?;
    Ok((ticket, since))
}

/// Prints the ticket. If that fails, releases the lock, because no other process could.
async fn print_ticket(
    locks: &Locks,
    ticket: &Ticket,
    since: SystemTime,
    args: &Acquire,
    signals: &mut Signals,
) -> Outcome {
    let text =
        if args.json { json::acquired(ticket, args.lasting, since) } else { Ok(format!("{ticket}\n")) };
    let printed = match text {
        Ok(text) => signals.unless(output::print_all(text)).await,
        Err(error) => Err(error),
    };
    if printed.is_err() {
        // The first failure is reported, not one of the release.
        locks.release(ticket).await.ok();
    }
    printed.map(|()| OK)
}

/// Releases the lock of a ticket.
pub(crate) async fn release(stores: &Stores<'_>, args: Release) -> Outcome {
    let ticket = values::ticket(&args.ticket)?;
    let locks = store::connect(stores, ticket.name().as_str()).await?;
    let result = locks.release(&ticket).await;
    store::close(&locks).await;
    if args.json && matches!(result, Ok(()) | Err(Error::Lost { .. })) {
        output::print(json::released(&ticket, result.is_ok())?)?;
    }
    result.map_err(unusable)?;
    Ok(OK)
}

/// Converts an error of a ticket into a failure with a list of possible causes.
pub(crate) fn unusable(error: Error) -> Failure {
    let hint = match error {
        Error::Lost { .. } => {
            "; the ticket's time is over, another process has used it, the lock was unlocked by force, or the \
             ticket belongs to another store"
        }
        _ => "",
    };
    Failure::from(error).and(hint)
}
