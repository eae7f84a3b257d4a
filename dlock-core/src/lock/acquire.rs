//! Acquisition of a lock. The builders are futures, and wait for the keeper that they start.

use std::{
    fmt,
    num::NonZeroU32,
    pin::Pin,
    sync::Arc,
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

/// The lock to acquire: its client, name, kind, limit and owner.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) locks: Locks,
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
    /// Maximum number of holders at one time, for a permit. 1 for all other kinds. An acquisition
    /// refuses zero.
    pub(crate) limit: u32,
    pub(crate) owner: Option<Owner>,
    /// Whether the caller is a candidate of an election.
    pub(crate) is_candidate: bool,
}

/// State of both builders, with the running acquisition once it has begun.
struct Acquisition {
    target: Target,
    options: LockOptions,
    running: Option<Running>,
}

/// An acquisition that has begun. Options that are set later have no effect.
struct Running {
    outcome: Pin<Box<dyn Future<Output = Outcome> + Send>>,
    /// See [`LockOptions::at_least`].
    min_time_taken: Option<Duration>,
}

/// A future that waits for a lock, and a builder of the call's options.
///
/// Set options, then await it. Nothing happens before the first poll. An option that is not set has
/// the value from the client's [defaults](Locks::with_defaults), or else the default of
/// [`LockOptions`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
/// use dlock_core::{Error, Locks};
/// use std::time::Duration;
/// let stock = Locks::memory().mutex("stock");
/// let guard = stock.lock().ttl(Duration::from_secs(10)).label("inventory").await?;
/// let error = stock.lock().wait(Duration::from_millis(10)).await.unwrap_err();
/// assert!(matches!(error, Error::Timeout { .. }));
/// # guard.release().await }
/// ```
///
/// # Errors
/// [`Error::Timeout`] if the wait limit passes first, and the other errors of
/// [`DistributedLock::lock`](crate::DistributedLock::lock).
///
/// # Cancel safety
/// Dropping the future leaves no hold, no queue position and no renewal.
#[must_use = "nothing happens unless it is awaited"]
#[derive(Debug)]
pub struct Acquire(Acquisition);

/// A future that tries a lock once, and a builder of the call's options.
///
/// Set options, then await it. Nothing happens before the first poll. The output is `None` if the
/// lock is busy. An option that is not set has the value from the client's
/// [defaults](Locks::with_defaults), or else the default of [`LockOptions`].
///
/// Bind the guard to a name. A guard that is not bound is dropped at once, so the statement
/// `lock.try_lock().await?;` holds nothing, and the compiler does not warn about it.
///
/// # Errors
/// As [`DistributedLock::try_lock`](crate::DistributedLock::try_lock).
///
/// # Cancel safety
/// As [`Acquire`].
#[must_use = "nothing happens unless it is awaited"]
#[derive(Debug)]
pub struct TryAcquire(Acquisition);

macro_rules! options {
    ($builder:ident) => {
        impl $builder {
            fn with(mut self, set: impl FnOnce(LockOptions) -> LockOptions) -> Self {
                self.0.options = set(std::mem::take(&mut self.0.options));
                self
            }

            /// Sets the time after which the store deletes a claim that is not renewed. Default:
            /// 30 s, within the store's limits. See [`LockOptions::ttl`].
            pub fn ttl(self, ttl: Duration) -> Self {
                self.with(|options| options.ttl(ttl))
            }

            /// Sets a fixed duration of the hold, from before the request is sent. Default: none.
            /// See [`LockOptions::lease`].
            pub fn lease(self, lease: Duration) -> Self {
                self.with(|options| options.lease(lease))
            }

            /// Sets the maximum duration of a hold that is renewed, from before the request is
            /// sent. Default: none. See [`LockOptions::max_hold`].
            pub fn max_hold(self, max: Duration) -> Self {
                self.with(|options| options.max_hold(max))
            }

            /// Sets the interval between renewals, at most half the ttl. Default: a third of the
            /// time left until the deadline. See [`LockOptions::renew_every`].
            pub fn renew_every(self, interval: Duration) -> Self {
                self.with(|options| options.renew_every(interval))
            }

            /// Sets the time between the guard's deadline and the earliest grant to another client,
            /// for work that needs time to stop. Default: none. See [`LockOptions::margin`].
            pub fn margin(self, margin: Duration) -> Self {
                self.with(|options| options.margin(margin))
            }

            /// Sets the minimum time for which the lock stays taken, counted from the return of the
            /// guard. If the guard is released or dropped earlier, the store keeps the lock taken
            /// until then. Default: none. See [`LockOptions::at_least`].
            pub fn at_least(self, min: Duration) -> Self {
                self.with(|options| options.at_least(min))
            }

            /// Sets the text that says who has the claim. Default: user, host, process id and
            /// program. See [`LockOptions::label`].
            pub fn label(self, label: impl Into<Arc<str>>) -> Self {
                self.with(|options| options.label(label))
            }

            /// Sets the class of the lock in metrics and events. Default: none. See
            /// [`LockOptions::class`].
            pub fn class(self, class: impl Into<Arc<str>>) -> Self {
                self.with(|options| options.class(class))
            }
        }
    };
}

options!(Acquire);
options!(TryAcquire);

impl Acquisition {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Guard>>> {
        let Self { target, options, running } = self;
        let begin = || {
            let min_time_taken = options.clone().or(target.locks.defaults()).get_at_least();
            let options = options.clone();
            let outcome: Pin<Box<dyn Future<Output = Outcome> + Send>> = match target.locks.thread().cloned()
            {
                None => Box::pin(acquire(target.clone(), options)),
                Some(thread) => {
                    let target = Target { locks: target.locks.without_thread(), ..target.clone() };
                    Box::pin(async move { thread.run(acquire(target, options)).await })
                }
            };
            Running { outcome, min_time_taken }
        };
        let Running { outcome, min_time_taken } = running.get_or_insert_with(begin);
        let hold_ref = ready!(outcome.as_mut().poll(context))?;
        // The time of `at_least` starts only when the caller receives the guard. If the caller has
        // dropped this future, the grant reaches only the client's own thread, and its hold is
        // released at once.
        if let (Some(hold_ref), Some(min)) = (&hold_ref, *min_time_taken) {
            hold_ref.hold.keep_taken_for(min);
        }
        Poll::Ready(Ok(hold_ref.map(|hold_ref| Guard::of(hold_ref, &target.locks))))
    }
}

impl fmt::Debug for Acquisition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, options, running } = self;
        f.debug_struct("Acquisition")
            .field("name", &target.name)
            .field("kind", &target.kind)
            .field("options", options)
            .field("begun", &running.is_some())
            .finish()
    }
}

impl Acquire {
    pub(crate) fn new(target: Target, options: LockOptions) -> Self {
        Self(Acquisition { target, options, running: None })
    }

    /// Sets the maximum time that the future waits for the lock, from its first poll. Zero is a
    /// single try. Default: [`Wait::Forever`]. See [`LockOptions::wait`].
    pub fn wait(self, wait: impl Into<Wait>) -> Self {
        self.with(|options| options.wait(wait))
    }

    /// Takes the lock with these options, runs `work` with its guard, and releases the lock, as
    /// [`Lock::run`](crate::Lock::run) does.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
    /// use std::time::Duration;
    /// let nightly = dlock_core::Locks::memory().mutex("nightly");
    /// let output = nightly.lock().wait(Duration::from_secs(5)).run(async |_guard| "done").await?;
    /// assert_eq!(output, "done");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`DistributedLock::lock`](crate::DistributedLock::lock), and [`Error::Lost`] if the lock
    /// was lost before the work was done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock.
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        contract::run(self.await?, work).await
    }
}

impl TryAcquire {
    pub(crate) fn new(target: Target, options: LockOptions) -> Self {
        Self(Acquisition { target, options: options.wait(Wait::Never), running: None })
    }

    /// Does the same as [`Acquire::run`] if the lock is free. Returns `None` without running `work`
    /// if it is busy.
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
        // Only a single try returns `None`. Here the wait limit was zero, and has passed.
        let name = || self.0.target.name.clone();
        Poll::Ready(guard.ok_or_else(|| Error::Timeout { name: name(), limit: Duration::ZERO, source: None }))
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
    // One deadline for all steps of the call.
    let deadline = match options.wait_limit() {
        Wait::For(limit) => Some(WaitDeadline { limit, at: Moment::now().after(limit).instant() }),
        Wait::Never | Wait::Forever => None,
    };
    let run_keeper = async |deadline| run_keeper(&target, &checked, deadline).await;
    match &target.owner {
        None => run_keeper(deadline).await,
        // Boxed, because few calls have an owner, and every call would otherwise reserve the memory
        // of this future.
        Some(owner) => Box::pin(acquire_for(owner, &target, options, deadline, run_keeper)).await,
    }
}

/// Options, limit and label of a call that passed all checks before I/O.
pub(super) struct CheckedOptions {
    options: LockOptions,
    limit: NonZeroU32,
    who: Who,
}

impl CheckedOptions {
    /// Creates a keeper for a new claim.
    pub(super) fn keeper(&self, target: &Target, failure: Option<LastFailure>) -> Box<Keeper> {
        let client = target.locks.client();
        let terms = self.options.terms(client.store.backend.info());
        let request = Request::by(self.who.clone(), target.name.clone(), target.kind, terms.ttl);
        let request = request.limit(self.limit).wait(self.options.wait_limit());
        let request = if target.is_candidate { request.candidate() } else { request };
        Keeper::new(client, request, terms, failure)
    }
}

/// Enters the owner's hold, if there is one. Otherwise acquires the lock with `run_keeper`, while
/// other tasks of the owner wait.
async fn acquire_for(
    owner: &Owner,
    target: &Target,
    options: &LockOptions,
    deadline: Option<WaitDeadline>,
    run_keeper: impl AsyncFnOnce(Option<WaitDeadline>) -> Outcome,
) -> Outcome {
    let slot = owner.slot(target.locks.client().id, &target.name);
    // An owner that holds the lock enters at once. It does not wait for other tasks of the owner.
    if let Some(entered) = slot.enter(target) {
        return entered;
    }
    let _turn = match (options.wait_limit(), &deadline) {
        // Another task of this owner is acquiring the lock. The owner does not hold it yet, so this
        // try finds the lock busy.
        (Wait::Never, _) => match slot.acquisition.try_lock() {
            Ok(turn) => turn,
            Err(_) => return Ok(None),
        },
        (_, Some(deadline)) => match timeout_at(deadline.at, slot.acquisition.lock()).await {
            Ok(turn) => turn,
            Err(_) => return Err(deadline.timeout(target, None)),
        },
        (_, None) => slot.acquisition.lock().await,
    };
    if let Some(entered) = slot.enter(target) {
        return entered;
    }
    let hold_ref = run_keeper(deadline).await?;
    if let Some(hold_ref) = &hold_ref {
        slot.set(&hold_ref.hold);
    }
    Ok(hold_ref)
}

impl Target {
    /// Checks everything that can be checked without the store.
    ///
    /// # Errors
    /// The errors that [`DistributedLock::lock`](crate::DistributedLock::lock) returns before any
    /// I/O.
    pub(super) fn check(&self, options: LockOptions) -> Result<CheckedOptions> {
        let client = self.locks.client();
        let info = client.store.backend.info();
        let options = options.or(self.locks.defaults());
        self.name.check()?;
        options.validate(info)?;
        info.check_kind(self.kind)?;
        let (limit, who) = (self.limit()?, options.who(self.locks.who())?);
        client.check(&self.name)?;
        Ok(CheckedOptions { options, limit, who })
    }

    /// # Errors
    /// [`Error::InvalidOptions`] if the limit is zero.
    fn limit(&self) -> Result<NonZeroU32> {
        NonZeroU32::new(self.limit).ok_or_else(|| {
            let reason = format!("semaphore `{}` has a limit of 0; it must be at least 1", self.name);
            Error::InvalidOptions { reason }
        })
    }
}

impl Slot {
    /// Enters the owner's hold. Returns `None` if the owner does not hold the lock.
    fn enter(&self, target: &Target) -> Option<Outcome> {
        let hold = self.hold()?;
        match hold.enter(target.kind) {
            Reentry::Entered(side) => Some(Ok(Some(HoldRef::new(hold, side)))),
            Reentry::Deadlock => Some(Err(Error::Deadlock { name: target.name.clone(), kind: target.kind })),
            Reentry::Over => None,
        }
    }
}

/// Starts a keeper, and waits for its result until the deadline.
async fn run_keeper(target: &Target, checked: &CheckedOptions, deadline: Option<WaitDeadline>) -> Outcome {
    let failure = deadline.as_ref().map(|_| LastFailure::default());
    let (reply, mut result) = oneshot::channel();
    checked.keeper(target, failure.clone()).start(reply);
    let outcome = match deadline {
        None => (&mut result).await,
        Some(deadline) => match timeout_at(deadline.at, &mut result).await {
            Ok(outcome) => outcome,
            Err(_) => {
                result.close();
                // The keeper may have sent a grant just before the channel was closed.
                match result.try_recv() {
                    Ok(outcome) => Ok(outcome),
                    Err(_) => return Err(deadline.timeout(target, failure)),
                }
            }
        },
    };
    outcome.unwrap_or_else(|_| Err(target.locks.client().keeper_ended()))
}

/// End of a wait with a limit.
struct WaitDeadline {
    limit: Duration,
    at: Instant,
}

impl WaitDeadline {
    /// Returns the error of a wait that has reached this deadline.
    fn timeout(&self, target: &Target, failure: Option<LastFailure>) -> Error {
        let source = failure.and_then(|last| last.lock().take());
        Error::Timeout { name: target.name.clone(), limit: self.limit, source }
    }
}
