//! `dlock acquire`, `dlock renew` and `dlock release`: a lock that outlives its process.

use std::time::{Duration, SystemTime};

use dlock::{Error, Guard, LockName, LockOptions, Locks, Ticket, Who};

use crate::{
    args::{Acquire, Release, Renew, TicketArgs},
    choice::Stores,
    exit::{Failure, OK, Outcome},
    held::OuterHolds,
    json, output,
    signals::Signals,
    store,
    ticket_file::{NewTicketFile, TicketFile},
    values,
    wait::{self, WaitLimit},
};

/// Acquires a lock that outlives this process, and prints its ticket.
pub(crate) async fn acquire(stores: &Stores<'_>, args: Acquire) -> Outcome {
    let name = values::name(&args.name)?;
    // A signal leaves no temporary file of the writer.
    let mut signals = Signals::listen()?;
    let writer = TicketWriter::new(args.ticket_file.as_deref().map(TicketFile::new).as_ref(), args.json)?;
    let outer = OuterHolds::from_env()?;
    let activity = format!("dlock acquire {name}");
    let chosen = stores.chosen(Some(name.as_str()))?;
    let wait_limit = WaitLimit::new(args.wait.wait().or(chosen.wait()));
    let verbosity = args.busy.verbosity();
    let connecting = store::connect_as(stores, &chosen, &args.who, &activity, wait_limit, verbosity);
    let (locks, who) = signals.unless(connecting).await?;
    let outcome = match signals.unless(take(&locks, &who, &name, outer, &args, wait_limit)).await {
        Ok((ticket, since)) => writer.write(&locks, &ticket, args.lasting, since, &mut signals).await,
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
    // A minimum time of the configuration does not apply, because `--for` sets the time of the ticket.
    let options = LockOptions::new().at_least(Duration::ZERO);
    let guard = wait::acquire(locks, who, &*lock, options, wait_limit, args.busy.verbosity()).await?;
    let since = json::now();
    let ticket = guard.detach(args.lasting).await.map_err(Error::from)?;
    Ok((ticket, since))
}

/// The place for a new ticket.
enum TicketWriter {
    Stdout { json: bool },
    File(NewTicketFile),
}

impl TicketWriter {
    /// Checks that the ticket can be written, before it exists.
    fn new(file: Option<&TicketFile>, json: bool) -> Outcome<Self> {
        match file {
            Some(file) => file.prepare().map(Self::File),
            None if output::stdout_is_closed() => Err(Failure::usage(
                "stdout is closed, so the ticket cannot be written; without the ticket the lock cannot be released",
            )),
            None => Ok(Self::Stdout { json }),
        }
    }

    /// Writes the ticket. If that fails, releases the lock, because no other process could.
    async fn write(
        self,
        locks: &Locks,
        ticket: &Ticket,
        lasting: Duration,
        since: SystemTime,
        signals: &mut Signals,
    ) -> Outcome {
        let text = match self {
            Self::File(file) => {
                return write_or_release(locks, ticket, file.write(ticket)).await.map(|()| OK);
            }
            Self::Stdout { json: true } => json::acquired(ticket, lasting, since),
            Self::Stdout { json: false } => Ok(format!("{ticket}\n")),
        };
        let printed = match text {
            Ok(text) => signals.unless(output::print_all(text)).await,
            Err(error) => Err(error),
        };
        write_or_release(locks, ticket, printed).await.map(|()| OK)
    }
}

/// Releases the lock of a ticket that could not be written. Returns the failure to write it.
async fn write_or_release(locks: &Locks, ticket: &Ticket, written: Outcome<()>) -> Outcome<()> {
    if written.is_err() {
        // The first failure is reported, not one of the release.
        locks.release(ticket).await.ok();
    }
    written
}

/// Detaches a hold that was taken over, and writes its new ticket to a file.
pub(crate) async fn keep(locks: &Locks, guard: Guard, lasting: Duration, file: NewTicketFile) -> Outcome<()> {
    let ticket = guard.detach(lasting).await.map_err(Error::from)?;
    write_or_release(locks, &ticket, file.write(&ticket)).await
}

impl TicketArgs {
    fn file(&self) -> Option<TicketFile> {
        self.ticket_file.as_deref().map(TicketFile::new)
    }

    fn read(&self) -> Outcome<Ticket> {
        match (&self.ticket, self.file()) {
            (_, Some(file)) => file.read(),
            (ticket, None) => values::ticket(ticket.as_deref().unwrap_or_default()),
        }
    }
}

/// Takes the lock of a ticket over, and detaches it again.
pub(crate) async fn renew(stores: &Stores<'_>, args: Renew) -> Outcome {
    let ticket = args.ticket.read()?;
    // A signal ends dlock before the takeover, or during the output of the new ticket, but not in
    // between. That time is bounded. Nor does a signal leave a temporary file of the writer.
    let mut signals = Signals::listen()?;
    let writer = TicketWriter::new(args.ticket.file().as_ref(), args.json)?;
    let locks = signals.unless(store::connect(stores, ticket.name().as_str())).await?;
    let outcome = async {
        locks.info().check_detach(args.lasting)?;
        signals.unless(async { Ok(()) }).await?;
        let guard = locks.resume(&ticket).await.map_err(unusable)?;
        let since = json::now();
        let detached = guard.detach(args.lasting).await;
        let ticket = detached.map_err(|error| {
            Failure::from(Error::from(error)).and("; the lock was released, and the ticket is used")
        })?;
        // Otherwise an earlier signal would release the lock, although the ticket can be written.
        signals.forget().await;
        writer.write(&locks, &ticket, args.lasting, since, &mut signals).await
    };
    let outcome = outcome.await;
    store::close(&locks).await;
    outcome
}

/// Releases the lock of a ticket.
pub(crate) async fn release(stores: &Stores<'_>, args: Release) -> Outcome {
    let ticket = args.ticket.read()?;
    let locks = store::connect(stores, ticket.name().as_str()).await?;
    let result = locks.release(&ticket).await;
    let is_used = matches!(result, Ok(()) | Err(Error::Lost { .. }));
    // Before the next holder can write its own ticket to the file.
    if is_used && let Some(file) = args.ticket.file() {
        file.remove(&ticket);
    }
    store::close(&locks).await;
    if is_used && args.json {
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
