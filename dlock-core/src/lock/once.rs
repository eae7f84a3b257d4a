//! Work that runs once for each occurrence, and the mark that records its success.

mod error;

use std::{fmt, sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::sleep};

use super::{DistributedLock, Guard, Lock, LockOptions, Locks, kind, mark::mark_name};
use crate::{
    contract::Request,
    engine::{Hold, Keeper, MAX_FAILURES, Terms, retry_pause, with_large_jitter},
    model::{Error, Kind, LockName, LostReason, Result, Wait},
};
pub use error::OnceError;

/// Result of [`Occurrence::run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it says whether the work ran"]
pub enum Once<T> {
    /// The work ran with this output, and the occurrence is marked as done.
    Ran(T),
    /// The occurrence was marked as done, so the work did not run.
    Done,
    /// The lock was not granted within its wait limit, and the work did not run. Another client may
    /// be doing it.
    Busy,
}

/// One occurrence of work that all clients of a store together do once, such as the report of a
/// day. [`Lock::once`] creates it.
///
/// The first client that gets the lock runs the work. After a success the store keeps a mark, and
/// every other client finds the occurrence done. Work that fails leaves no mark, so another client
/// can run it again.
///
/// The key names the occurrence. It must be the same on all hosts, so it should be the time for
/// which the work is planned, and not the time at which a host happens to start it.
/// [`Locks::period_key`] makes it from the store's clock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use dlock_core::{Locks, Once};
/// let report = Locks::memory().mutex("report").once("2026-11-23");
/// let first = report.run(async |_guard| Err::<(), _>("the printer is on fire")).await;
/// assert!(first.is_err()); // no mark
/// let second = report.run(async |guard| Ok::<_, std::io::Error>(guard.token().is_some())).await?;
/// assert_eq!(second, Once::Ran(true));
/// let third = report.run(async |_guard| Ok::<_, std::io::Error>(true)).await?;
/// assert_eq!(third, Once::Done);
/// # Ok(()) }
/// ```
///
/// # Limits
/// - The work is repeated if its client ends between the end of the work and the confirmation of
///   the mark, if the mark's time has ended, or if the store has lost its data. Work that must
///   never be repeated has to check the [token](Guard::token), or be idempotent.
/// - A store that cannot keep a lock without its holder
///   ([`Info::detaches`](crate::driver::Info::detaches)), or that cannot be inspected, refuses
///   before any I/O.
/// - A mark is an entry in the store, like a detached lock, until its time ends.
///   `docs/semantics.md` says what it costs in each store.
///
/// # Requests
/// A run that finds the mark sends one read. A run that does the work sends two reads, the requests
/// of the lock itself, and three requests at its end: a read that confirms the hold, and two that
/// create the mark. Each read is one request, and two on Redis and etcd if the name is taken.
#[derive(Clone)]
#[must_use = "nothing happens until `run` is awaited"]
pub struct Occurrence {
    locks: Locks,
    lock: Arc<dyn DistributedLock>,
    key: Arc<str>,
    keep: Duration,
    options: LockOptions,
}

impl<K: kind::Exclusive> Lock<K> {
    /// Returns the occurrence with this key of the work that the lock protects. A key is a text of
    /// at least one byte, without control characters. It has at most 1000 bytes together with the
    /// lock's name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
    /// use std::time::Duration;
    /// use dlock_core::{Locks, OnceError};
    /// const DAY: Duration = Duration::from_secs(24 * 3600);
    /// let report = Locks::memory().mutex("report").once("2026-11-23").keep(30 * DAY);
    /// let ran = report.wait(Duration::from_secs(5)).run(async |_guard| dlock_core::Result::Ok(())).await;
    /// # ran.map(drop).map_err(|error| match error { OnceError::Work(error) => error, _ => unreachable!() }) }
    /// ```
    pub fn once(&self, key: impl Into<Arc<str>>) -> Occurrence {
        self.target.locks.once(Arc::new(self.clone()), key)
    }
}

impl Locks {
    /// Returns an occurrence of the work that `lock` protects, for a lock that is chosen at run
    /// time. The lock must be of this client's store and of an exclusive kind. The first call that
    /// uses the occurrence checks that. [`Lock::once`] has the details.
    pub fn once(&self, lock: Arc<dyn DistributedLock>, key: impl Into<Arc<str>>) -> Occurrence {
        let (keep, options) = (Occurrence::DEFAULT_KEEP, LockOptions::new());
        Occurrence { locks: self.clone(), lock, key: key.into(), keep, options }
    }
}

impl Occurrence {
    /// Default of [`keep`](Self::keep).
    pub const DEFAULT_KEEP: Duration = Duration::from_secs(7 * 24 * 3600);

    /// Sets the time for which the store keeps the mark, counted from its creation at the end of
    /// the work. In whole milliseconds. Default: 7 days.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// Sets the maximum time that [`run`](Self::run) waits for the lock. Zero is a single try.
    /// Default: that of the client, or else no limit.
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.options = self.options.wait(wait);
        self
    }

    /// Sets all options of the lock, and replaces those that were set before.
    pub fn options(mut self, options: LockOptions) -> Self {
        self.options = options;
        self
    }

    /// Returns the key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Runs the work unless the occurrence is done. Takes the lock, runs `work` with its guard, and
    /// marks the occurrence as done if the work returns `Ok`. Then releases the lock.
    ///
    /// The occurrence is looked up before the wait for the lock, and again once the lock is held.
    /// An occurrence that is done is therefore reported at once, even if the lock is busy. The lock
    /// is held until the mark is set. If the lock is lost, the work is dropped at its next await
    /// point, and the occurrence is not marked. Before it is marked, the store confirms that the
    /// lock is still held.
    ///
    /// # Errors
    /// - [`OnceError::Work`] with the error of the work. The lock was released, without a mark.
    /// - [`OnceError::Lock`] if the work did not run, because the lock or the store failed. Also
    ///   with [`Error::Lost`] if the lock was lost before the mark was created. This run leaves no
    ///   mark.
    /// - [`OnceError::Mark`] if the work has succeeded, but the store has not confirmed its mark.
    ///   The work may be repeated.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock. If the work had succeeded, the
    /// occurrence may or may not be marked; otherwise it is not.
    pub async fn run<T, E>(
        &self,
        work: impl AsyncFnOnce(&Guard) -> Result<T, E>,
    ) -> Result<Once<T>, OnceError<E>> {
        if self.is_done().await.map_err(OnceError::Lock)? {
            return Ok(Once::Done);
        }
        let guard = match self.lock.lock(&self.options).await {
            Ok(guard) => guard,
            Err(Error::Timeout { .. }) => return Ok(Once::Busy),
            Err(error) => return Err(OnceError::Lock(error)),
        };
        // Another client may have done the work during the wait.
        let is_done = self.is_done().await;
        if !matches!(is_done, Ok(false)) && guard.hold_count() == 1 {
            // No work is done under this hold.
            guard.clear_at_least();
        }
        if is_done.map_err(OnceError::Lock)? {
            guard.release().await.ok();
            return Ok(Once::Done);
        }
        let result = tokio::select! {
            biased;
            reason = guard.lost() => {
                return Err(OnceError::Lock(Error::Lost { name: guard.name().clone(), reason }));
            }
            result = work(&guard) => result,
        };
        let result = match result {
            Err(error) => Err(OnceError::Work(error)),
            Ok(output) => match self.mark(&guard).await {
                Ok(()) => Ok(Once::Ran(output)),
                // The lock of the work, not the claim of the mark.
                Err(Error::Lost { name, reason }) if name == *guard.name() => {
                    Err(OnceError::Lock(Error::Lost { name, reason }))
                }
                Err(error) => Err(OnceError::Mark(error)),
            },
        };
        // The keeper repeats a release that fails. The first error is the one to report, and after
        // the mark a loss has no effect any more.
        guard.release().await.ok();
        result
    }

    /// Returns whether the occurrence is marked as done, with one read and without the lock.
    ///
    /// # Errors
    /// As [`check`](Self::check), and the store's errors after several reads.
    ///
    /// # Cancel safety
    /// Safe. The call only reads.
    pub async fn is_done(&self) -> Result<bool> {
        let (mark, locks) = (self.checked_mark()?, self.locks.without_thread());
        let read = async move { repeated(|| locks.inspect(&mark), |failures| failures < MAX_FAILURES).await };
        // A claim under the mark's name is created only after the work has succeeded. Any such
        // claim therefore proves a success, even if it is not detached yet, or if only some members
        // of a RedLock have it.
        Ok(self.locks.on_thread(read).await?.is_some())
    }

    /// Marks the occurrence as done, for callers that cannot use [`run`](Self::run). The caller
    /// holds the lock with `guard`, and has done the work under it. Afterwards the caller releases
    /// the guard.
    ///
    /// First the store has to confirm that the lock is held. While the store is unreachable, the
    /// call repeats this request until the lock is lost. An occurrence that is marked already stays
    /// as it is.
    ///
    /// # Errors
    /// - [`Error::Lost`] if the lock is lost. This call leaves no mark.
    /// - As [`check`](Self::check), and [`Error::InvalidOptions`] for the guard of another lock.
    /// - The store's errors. The occurrence may then count as marked for at most a ttl, or for its
    ///   whole time if the process ends before the client has undone the mark.
    ///
    /// # Cancel safety
    /// If the future is dropped, the occurrence may or may not be marked.
    pub async fn mark(&self, guard: &Guard) -> Result<()> {
        let (mark, name) = (self.checked_mark()?, self.lock.name());
        let hold = guard.hold().filter(|hold| hold.name == *name);
        let Some(hold) = hold.map(Arc::clone) else {
            let reason =
                format!("the occurrence belongs to lock `{name}`, and the guard to `{}`", guard.name());
            return Err(Error::InvalidOptions { reason });
        };
        let (locks, keep) = (self.locks.without_thread(), self.keep);
        let options = self.options.clone().or(&self.lock.defaults());
        let (who, class) = (options.who(self.locks.who())?, options.lock_class());
        let marking = async move {
            confirm(&locks, &hold).await?;
            let terms = Terms { class, ..LockOptions::new().terms(locks.info()) };
            // The mark needs no token, which would leave a second record in some stores.
            let request = Request::by(who, mark, Kind::Mutex, terms.ttl).wait(Wait::Never).without_token();
            let (reply, outcome) = oneshot::channel();
            Keeper::new(locks.client(), request, terms, None).start(reply);
            let marked = outcome.await.unwrap_or_else(|_| Err(locks.client().keeper_ended()));
            // After a pause another client may have held the lock, and have done the work too. The
            // drop of `marked` removes the claim of this mark.
            if hold.loss().is_some() {
                return Err(hold.lost_error());
            }
            match marked? {
                Some(hold_ref) => hold_ref.detach(keep).await.map(drop).map_err(|(_, error)| error),
                // Another client has marked the occurrence.
                None => Ok(()),
            }
        };
        self.locks.on_thread(marking).await
    }

    /// Removes the mark, so that the work can run again. Returns whether there was one. As
    /// [`Locks::forget`].
    ///
    /// # Errors
    /// As [`Locks::forget`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the mark may or may not have been removed.
    pub async fn forget(&self) -> Result<bool> {
        self.locks.forget(self.lock.name(), &self.key).await
    }

    /// Checks everything that can be checked without the store, as each call does.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the store cannot keep a mark.
    /// - [`Error::InvalidOptions`] for a key that is not valid, a time that the store cannot keep a
    ///   mark for, a lock that is not exclusive or is of another store, and invalid options.
    /// - [`Error::InvalidName`].
    pub fn check(&self) -> Result<()> {
        self.checked_mark().map(drop)
    }

    /// Returns the name of the mark, after all checks before I/O.
    fn checked_mark(&self) -> Result<LockName> {
        let (info, lock) = (self.locks.info(), &self.lock);
        let mark = mark_name(lock.name(), &self.key)?;
        let invalid = |reason| Err(Error::InvalidOptions { reason });
        if !matches!(lock.kind(), Kind::Mutex | Kind::Fair | Kind::Write) {
            return invalid(format!(
                "work that runs once needs an exclusive lock, and lock `{}` is of kind {}; use a mutex, fair or write lock",
                lock.name(),
                lock.kind()
            ));
        }
        if lock.store() != info.identity {
            return invalid(format!(
                "lock `{}` is of another store than the marks of its occurrences",
                lock.name()
            ));
        }
        if !info.detaches || self.locks.client().store.inspect.is_none() {
            let what = "remember that work is done, because its locks end with the session of their client; use another \
                        store for work that runs once: memory, sqlite, redis, etcd, mysql or mariadb (mode=queue), postgres";
            return Err(Error::Unsupported { store: info.store, what: what.to_owned() });
        }
        info.check_detach(self.keep)?;
        info.check_kind(Kind::Mutex)?;
        info.check_kind(lock.kind())?;
        lock.check(&self.options)?;
        Ok(mark)
    }
}

impl fmt::Debug for Occurrence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lock, key, keep, options, .. } = self;
        f.debug_struct("Occurrence")
            .field("name", lock.name())
            .field("key", key)
            .field("keep", keep)
            .field("options", options)
            .finish()
    }
}

/// Makes a read. Repeats it after a transient error while `may_repeat` is true for the number of
/// failures.
async fn repeated<T, R>(read: impl Fn() -> R, may_repeat: impl Fn(u32) -> bool) -> Result<T>
where
    R: Future<Output = Result<T>>,
{
    let mut failures = 0;
    loop {
        match read().await {
            Err(error) if error.is_transient() => {
                failures += 1;
                if !may_repeat(failures) {
                    return Err(error);
                }
                sleep(with_large_jitter(retry_pause(failures))).await;
            }
            result => return result,
        }
    }
}

/// Waits until the store has confirmed that it still has the claim of a hold.
///
/// # Errors
/// [`Error::Lost`] if the hold is lost, and the store's error if it refuses.
async fn confirm(locks: &Locks, hold: &Hold) -> Result<()> {
    let holder = repeated(|| locks.holder(hold.name.clone()), |_| hold.loss().is_none()).await;
    if hold.loss().is_some() {
        return Err(hold.lost_error());
    }
    match holder?.is_some_and(|holder| hold.id.is_reported_as(&holder.id)) {
        true => Ok(()),
        false => Err(Error::Lost { name: hold.name.clone(), reason: LostReason::Deleted }),
    }
}
