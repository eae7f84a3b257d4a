//! `dlock acquire` and `dlock release`: a lock that is held between two processes.

use std::time::SystemTime;

use dlock::{Error, LockName, LockOptions, Locks, Ticket, Wait, Who};

use crate::{
    args::{Acquire, Release},
    choice::Stores,
    exit::{Failure, OK, Outcome},
    held::Above,
    json, output,
    signals::Signals,
    store, values,
    wait::{self, Patience},
};

/// Takes a lock that outlives this process, and prints its ticket.
pub(crate) async fn acquire(stores: &Stores<'_>, args: Acquire) -> Outcome {
    let name = values::name(&args.name)?;
    if output::stdout_is_closed() {
        return Err(Failure::usage(
            "stdout is closed, and the ticket is written there; only it gives the lock back",
        ));
    }
    let above = Above::from_env()?;
    let mut signals = Signals::listen()?;
    let does = format!("dlock acquire {name}");
    let chosen = stores.chosen(Some(name.as_str()))?;
    let wait = args.wait.wait().or(chosen.wait()).unwrap_or(Wait::Forever);
    let patience = Patience::new(wait);
    let connecting = store::connect_as(stores, &chosen, &args.who, &does, patience);
    let (locks, who) = signals.unless(connecting).await?;
    let outcome = match signals.unless(take(&locks, &who, &name, above, &args, patience)).await {
        Ok((ticket, since)) => hand_over(&locks, &ticket, since, &args, &mut signals).await,
        Err(failure) => Err(args.busy.apply(failure, wait)),
    };
    store::close(&locks).await;
    outcome
}

/// Takes the lock and detaches it. Also tells a moment before the time of the ticket began.
///
/// # Cancel safety
/// Dropping the future leaves the queue, or releases the lock.
async fn take(
    locks: &Locks,
    who: &Who,
    name: &LockName,
    above: Above,
    args: &Acquire,
    patience: Patience,
) -> Outcome<(Ticket, SystemTime)> {
    // Not only when the lock is had, after a long wait perhaps.
    locks.info().check_detach(args.lasting)?;
    if above.enter(locks, name, args.kind.kind()).await?.is_some() {
        return Err(Failure::usage(format!(
            "lock `{name}` is held by a dlock around this one; `acquire` would wait for that, and that for `acquire`"
        )));
    }
    let lock = args.kind.of(locks, name);
    let guard = wait::acquire(locks, who, &*lock, LockOptions::new(), patience, args.busy.tell()).await?;
    let since = json::now();
    let ticket = guard.detach(args.lasting).await.map_err(Error::from)?;
    Ok((ticket, since))
}

/// Prints the ticket. If nobody gets it, nobody can give the lock back, so this does.
async fn hand_over(
    locks: &Locks,
    ticket: &Ticket,
    since: SystemTime,
    args: &Acquire,
    signals: &mut Signals,
) -> Outcome {
    let text =
        if args.json { json::acquired(ticket, args.lasting, since) } else { Ok(format!("{ticket}\n")) };
    let printed = match text {
        Ok(text) => signals.unless(output::hand_over(text)).await,
        Err(error) => Err(error),
    };
    if printed.is_err() {
        // The first failure is the one to tell.
        locks.release(ticket).await.ok();
    }
    printed.map(|()| OK)
}

/// Gives back the lock of a ticket.
pub(crate) async fn release(stores: &Stores<'_>, args: Release) -> Outcome {
    let ticket = values::ticket(&args.ticket)?;
    let locks = store::connect(stores, ticket.name().as_str()).await?;
    let released = locks.release(&ticket).await;
    store::close(&locks).await;
    if args.json && matches!(released, Ok(()) | Err(Error::Lost { .. })) {
        output::print(json::released(&ticket, released.is_ok())?)?;
    }
    released.map_err(used_up)?;
    Ok(OK)
}

/// Why a ticket cannot be used.
pub(crate) fn used_up(error: Error) -> Failure {
    let hint = match error {
        Error::Lost { .. } => {
            "; the ticket's time is over, another process uses or has used it, somebody has unlocked the lock, or the \
             ticket is of another store than this one"
        }
        _ => "",
    };
    Failure::from(error).and(hint)
}
