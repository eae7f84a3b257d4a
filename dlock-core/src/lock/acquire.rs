//! Acquiring: builders that are futures, and the caller's side of an acquisition. A few lines over the usual length, so that
//! the caller's side is read in one place.

use std::{
    fmt,
    num::NonZeroU32,
    pin::Pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use super::{Guard, LockOptions, Locks, Owner, contract, owner::Slot};
use crate::{
    contract::Request,
    engine::{HoldRef, Keeper, LastFailure, Outcome, Reentry},
    kit::Moment,
    model::{Error, Kind, LockName, Result, Wait, Who},
};

/// The lock to acquire: everything about it but the options.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) locks: Locks,
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
    /// How many may hold it at once: more than one for a permit only. Zero is refused.
    pub(crate) limit: u32,
    pub(crate) owner: Option<Owner>,
}

/// What both builders share: what to ask for, and the running acquisition once it has begun.
struct Asking {
    target: Target,
    options: LockOptions,
    running: Option<Pin<Box<dyn Future<Output = Outcome> + Send>>>,
}

/// Waits for a lock: set options, then await it. Nothing happens before the first poll.
///
/// # Errors
/// [`Error::Timeout`] when the wait ran out, and the others of [`DistributedLock::lock`](crate::DistributedLock::lock).
///
/// # Cancel safety
/// Dropping it leaves no trace: nothing held, nothing queued, nothing renewed.
#[must_use = "nothing happens unless it is awaited"]
#[derive(Debug)]
pub struct Acquire(Asking);

/// Tries a lock once: set options, then await it. Bind the guard to a name: a guard that is not bound is dropped at once, so
/// the statement `lock.try_lock().await?;` holds nothing, and the compiler does not warn of it.
///
/// # Errors
/// Those of [`DistributedLock::try_lock`](crate::DistributedLock::try_lock).
///
/// # Cancel safety
/// As for [`Acquire`].
#[must_use = "nothing happens unless it is awaited"]
#[derive(Debug)]
pub struct TryAcquire(Asking);

macro_rules! options {
    ($builder:ident: $($(#[$doc:meta])* $option:ident($value:ident: $type:ty)),*) => {
        impl $builder {
            $($(#[$doc])* pub fn $option(mut self, $value: $type) -> Self {
                self.0.options = std::mem::take(&mut self.0.options).$option($value);
                self
            })*
        }
    };
}

options! { Acquire:
    /// How long the store remembers the claim after it last heard of it; renewed by the keeper. Default 30 s, or the store's
    /// longest if that is less.
    ttl(ttl: Duration),
    /// Holds for exactly this long instead of renewing.
    lease(lease: Duration),
    /// Holds no longer than this although it is renewed, from before the request was sent. Default: no end.
    max_hold(longest: Duration),
    /// Renews this often instead of at a third of what is left; at most half the ttl.
    renew_every(cadence: Duration),
    /// Leaves the lock taken until so long after its grant, also if it is released before. See
    /// [`LockOptions::at_least`](crate::LockOptions::at_least).
    at_least(least: Duration),
    /// Says who holds the lock or waits for it, for people who look.
    label(label: impl Into<Arc<str>>),
    /// How long to wait, from the first poll. Default: for ever. Zero is one try.
    wait(wait: impl Into<Wait>)
}

options! { TryAcquire:
    /// How long the store remembers the claim after it last heard of it; renewed by the keeper. Default 30 s, or the store's
    /// longest if that is less.
    ttl(ttl: Duration),
    /// Holds for exactly this long instead of renewing.
    lease(lease: Duration),
    /// Holds no longer than this although it is renewed, from before the request was sent. Default: no end.
    max_hold(longest: Duration),
    /// Renews this often instead of at a third of what is left; at most half the ttl.
    renew_every(cadence: Duration),
    /// Leaves the lock taken until so long after its grant, also if it is released before. See
    /// [`LockOptions::at_least`](crate::LockOptions::at_least).
    at_least(least: Duration),
    /// Says who holds the lock, for people who look.
    label(label: impl Into<Arc<str>>)
}

impl Asking {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Guard>>> {
        let Self { target, options, running } = self;
        let begin = || {
            let work =
                acquire(Target { locks: target.locks.as_on_thread(), ..target.clone() }, options.clone());
            match target.locks.thread().cloned() {
                None => Box::pin(work) as Pin<Box<dyn Future<Output = Outcome> + Send>>,
                Some(thread) => Box::pin(async move { thread.run(work).await }),
            }
        };
        let running = running.get_or_insert_with(begin).as_mut();
        let stake = ready!(running.poll(context))?;
        // `at_least` begins in the poll that hands the guard over. A grant that reaches only the client's thread, because the
        // caller has given up, is released at once.
        if let (Some(taken), Some(least)) = (&stake, options.clone().or(&target.locks.defaults()).staying()) {
            taken.hold.keep_taken_for(least);
        }
        Poll::Ready(Ok(stake.map(|stake| Guard::of(stake, &target.locks))))
    }
}

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, options, running } = self;
        f.debug_struct("Asking")
            .field("name", &target.name)
            .field("kind", &target.kind)
            .field("options", options)
            .field("begun", &running.is_some())
            .finish()
    }
}

impl Acquire {
    pub(crate) fn new(target: Target, options: LockOptions) -> Self {
        Self(Asking { target, options, running: None })
    }
}

impl TryAcquire {
    pub(crate) fn new(target: Target, options: LockOptions) -> Self {
        Self(Asking { target, options: options.wait(Wait::Never), running: None })
    }
}

impl Acquire {
    /// Takes the lock with these options, runs `work` with its guard, and releases it, as
    /// [`Lock::run`](crate::Lock::run) does.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
    /// # use std::time::Duration;
    /// let locks = dlock_core::Locks::memory();
    /// let done = locks.mutex("nightly").lock().wait(Duration::from_secs(5)).run(async |_guard| "done").await?;
    /// assert_eq!(done, "done");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`DistributedLock::lock`](crate::DistributedLock::lock), and [`Error::Lost`] if the lock was lost before the work was
    /// done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock.
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        contract::run(self.await?, work).await
    }
}

impl TryAcquire {
    /// As [`Acquire::run`], if the lock is free: `None` if somebody else holds it.
    ///
    /// # Errors
    /// As [`Acquire::run`], but never [`Error::Timeout`].
    ///
    /// # Cancel safety
    /// As [`Acquire::run`].
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<Option<T>> {
        match self.await? {
            Some(guard) => contract::run(guard, work).await.map(Some),
            None => Ok(None),
        }
    }
}

impl Future for Acquire {
    type Output = Result<Guard>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let guard = ready!(self.0.poll(context))?;
        // Only a single try gives `None`. Here that is a wait of zero, which has timed out.
        let name = || self.0.target.name.clone();
        Poll::Ready(guard.ok_or_else(|| Error::Timeout {
            name: name(),
            waited: Duration::ZERO,
            source: None,
        }))
    }
}

impl Future for TryAcquire {
    type Output = Result<Option<Guard>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context)
    }
}

async fn acquire(target: Target, options: LockOptions) -> Outcome {
    let checked = target.check(options)?;
    let options = &checked.options;
    // One deadline for everything that the call does.
    let until = match options.waiting() {
        Wait::For(waited) => Some(Deadline { waited, at: Moment::now().after(waited).instant() }),
        Wait::Never | Wait::Forever => None,
    };
    let contest = async |until| contest(&target, &checked, until).await;
    match &target.owner {
        None => contest(until).await,
        Some(owner) => own(owner, &target, options, until, contest).await,
    }
}

/// What a call asks for, checked without asking the store.
pub(super) struct Checked {
    options: LockOptions,
    limit: NonZeroU32,
    who: Who,
}

impl Checked {
    /// A keeper for a new claim.
    pub(super) fn keeper(&self, target: &Target, failure: Option<LastFailure>) -> Box<Keeper> {
        let client = target.locks.client();
        let terms = self.options.terms(client.store.backend.info());
        let request = Request::by(self.who.clone(), target.name.clone(), target.kind, terms.ttl);
        let request = request.limit(self.limit).wait(self.options.waiting());
        Keeper::new(client, request, terms, failure)
    }
}

/// Enters the owner's hold if there is one. Otherwise takes the lock, while the owner's other tasks wait.
async fn own(
    owner: &Owner,
    target: &Target,
    options: &LockOptions,
    until: Option<Deadline>,
    contest: impl AsyncFnOnce(Option<Deadline>) -> Outcome,
) -> Outcome {
    let slot = owner.slot(target.locks.client().id, &target.name);
    // An owner that holds the lock enters at once. It does not wait for other tasks of the owner.
    if let Some(entered) = slot.enter(target) {
        return entered;
    }
    let _turn = match (options.waiting(), &until) {
        // Another task of this owner waits for the lock, so the owner does not hold it, and this try is busy.
        (Wait::Never, _) => match slot.turn.try_lock() {
            Ok(turn) => turn,
            Err(_) => return Ok(None),
        },
        (_, Some(until)) => match timeout_at(until.at, slot.turn.lock()).await {
            Ok(turn) => turn,
            Err(_) => return Err(until.reached(target, None)),
        },
        (_, None) => slot.turn.lock().await,
    };
    if let Some(entered) = slot.enter(target) {
        return entered;
    }
    let stake = contest(until).await?;
    if let Some(taken) = &stake {
        slot.set(&taken.hold);
    }
    Ok(stake)
}

impl Target {
    /// Checks everything that can be checked without the store.
    ///
    /// # Errors
    /// Those of [`DistributedLock::lock`](crate::DistributedLock::lock) before any I/O.
    pub(super) fn check(&self, options: LockOptions) -> Result<Checked> {
        let client = self.locks.client();
        let info = client.store.backend.info();
        let options = options.or(&self.locks.defaults());
        self.name.check()?;
        options.validate(info)?;
        info.check_kind(self.kind)?;
        let (limit, who) = (self.limit()?, options.who(self.locks.who())?);
        client.check(&self.name)?;
        Ok(Checked { options, limit, who })
    }

    /// # Errors
    /// [`Error::InvalidOptions`] if it is zero.
    fn limit(&self) -> Result<NonZeroU32> {
        NonZeroU32::new(self.limit).ok_or_else(|| {
            let reason = format!("semaphore `{}` has a limit of 0: nobody could ever hold it", self.name);
            Error::InvalidOptions { reason }
        })
    }
}

impl Slot {
    /// The result if this owner holds the lock already. `None` if it does not.
    fn enter(&self, target: &Target) -> Option<Outcome> {
        let hold = self.hold()?;
        match hold.enter(target.kind) {
            Reentry::Entered(side) => Some(Ok(Some(HoldRef::new(hold, side)))),
            Reentry::Deadlock => Some(Err(Error::Deadlock { name: target.name.clone(), kind: target.kind })),
            Reentry::Over => None,
        }
    }
}

/// Starts a keeper, and waits for its answer or until the time is over.
async fn contest(target: &Target, checked: &Checked, until: Option<Deadline>) -> Outcome {
    let failure = until.as_ref().map(|_| LastFailure::default());
    let (reply, mut answer) = oneshot::channel();
    checked.keeper(target, failure.clone()).start(reply);
    let outcome = match until {
        None => (&mut answer).await,
        Some(until) => match timeout_at(until.at, &mut answer).await {
            Ok(outcome) => outcome,
            Err(_) => {
                answer.close();
                // The grant may have come at the last moment.
                match answer.try_recv() {
                    Ok(outcome) => Ok(outcome),
                    Err(_) => return Err(until.reached(target, failure)),
                }
            }
        },
    };
    outcome.unwrap_or_else(|_| Err(target.locks.client().keeper_ended()))
}

/// When a bounded wait ends.
struct Deadline {
    waited: Duration,
    at: Instant,
}

impl Deadline {
    fn reached(&self, target: &Target, failure: Option<LastFailure>) -> Error {
        let source = failure.and_then(|last| last.lock().unwrap_or_else(PoisonError::into_inner).take());
        Error::Timeout { name: target.name.clone(), waited: self.waited, source }
    }
}
