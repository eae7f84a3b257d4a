//! The traits of locks for users, which are the same for every store.

use std::time::Duration;

use async_trait::async_trait;

use super::{Guard, LockOptions, Member};
use crate::model::{Error, Kind, LockName, Result};

/// A lock of any kind in any store. The trait is dyn compatible, so that a program can choose the
/// lock by its configuration.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
/// use dlock_core::{DistributedLock, Kind, LockOptions, Locks};
/// let lock: std::sync::Arc<dyn DistributedLock> = Locks::memory().of(Kind::Fair, "invoice/42");
/// let guard = lock.lock(&LockOptions::new()).await?;
/// assert!(lock.try_lock(&LockOptions::new()).await?.is_none());
/// # guard.release().await }
/// ```
#[async_trait]
pub trait DistributedLock: Send + Sync {
    /// Returns the lock's name.
    fn name(&self) -> &LockName;

    /// Returns the kind of the lock.
    fn kind(&self) -> Kind;

    /// Returns the limit of this handle of a [`Semaphore`](crate::Semaphore), and 1 for all other
    /// kinds. Default: 1.
    fn limit(&self) -> u32 {
        1
    }

    /// Returns the identity of the lock's store
    /// ([`Info::identity`](crate::driver::Info::identity)). Store and name together identify the
    /// lock.
    fn store(&self) -> &str;

    /// Returns the defaults for options that a call does not set. For a lock of a client they are
    /// the client's defaults. Default: no option is set.
    fn defaults(&self) -> LockOptions {
        LockOptions::new()
    }

    /// Checks the options as a call would, without I/O. A lock that wraps another lock returns the
    /// result of the wrapped lock. A [`MultiLock`](crate::MultiLock) calls this before it requests
    /// any member, and applies [`LockOptions::at_least`] itself.
    ///
    /// # Errors
    /// [`Error::InvalidOptions`] and [`Error::Unsupported`].
    fn check(&self, options: &LockOptions) -> Result<()>;

    /// Returns a value with which a [`MultiLock`](crate::MultiLock) can request this lock together
    /// with other members of the same client, if the store supports that. Default: `None`, and the
    /// MultiLock tries this lock separately. A lock that wraps another lock, and does not change
    /// its `try_lock`, may return the member of the wrapped lock.
    fn member(&self) -> Option<Member> {
        None
    }

    /// Waits for the lock until it is granted or the wait limit of `options` has passed. An option
    /// that is not set has the value from the client's [defaults](crate::Locks::with_defaults), or
    /// else the default of [`LockOptions`].
    ///
    /// # Errors
    /// - [`Error::Timeout`] if the wait limit passed first.
    /// - [`Error::Unavailable`], [`Error::Unwritable`] and [`Error::Refused`] from the store. The
    ///   keeper retries the first two several times before it reports them.
    /// - [`Error::WrongKind`] if the name is in use by a kind that the store cannot order with this
    ///   one.
    /// - [`Error::Deadlock`] if the lock's [`Owner`](crate::Owner) holds the read side and this
    ///   lock is exclusive.
    /// - [`Error::Closed`] if the client was closed.
    /// - [`Error::InvalidOptions`], [`Error::InvalidName`], [`Error::Unsupported`] and
    ///   [`Error::NoRuntime`] before any I/O.
    ///
    /// # Panics
    /// In a tokio runtime without timers.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no hold, no queue position and no renewal. The keeper releases
    /// the claim in the background.
    async fn lock(&self, options: &LockOptions) -> Result<Guard>;

    /// Tries the lock once. Returns `None` if it is busy. The `wait` of `options` has no effect.
    /// Bind the guard to a name, because a guard that is not bound is dropped at once.
    ///
    /// In a store with a queue, the try may also find the lock busy because of another contender's
    /// try that is about to leave. It never gets a lock that another contender holds.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), but never [`Error::Timeout`].
    ///
    /// # Panics
    /// As [`lock`](Self::lock).
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    async fn try_lock(&self, options: &LockOptions) -> Result<Option<Guard>>;
}

/// A lock that is granted in the order in which the first requests arrived at the store. A
/// [`RedLock`](crate::RedLock) has several stores, and its documentation says how far it keeps the
/// order.
pub trait FairLock: DistributedLock {}

/// A pair of locks of one name, for any number of readers or one writer.
///
/// A reader that arrives after a waiting writer waits behind that writer, and the next writer waits
/// behind that reader. Neither side starves.
pub trait RwLock: Send + Sync {
    /// Returns the shared side.
    fn read(&self) -> Box<dyn DistributedLock>;

    /// Returns the exclusive side.
    fn write(&self) -> Box<dyn DistributedLock>;
}

/// Shorter calls for every [`DistributedLock`].
pub trait DistributedLockExt: DistributedLock {
    /// Waits for the lock for at most `limit`, counted from the first poll. All other options have
    /// the client's defaults.
    ///
    /// # Errors
    /// As [`DistributedLock::lock`].
    ///
    /// # Cancel safety
    /// As [`DistributedLock::lock`].
    fn lock_within(&self, limit: Duration) -> impl Future<Output = Result<Guard>> + Send {
        async move { self.lock(&LockOptions::new().wait(limit)).await }
    }

    /// Takes the lock, runs `work` with its guard, and releases the lock. If the lock is lost, the
    /// work is dropped at its next await point. If the store does not confirm the release in time,
    /// the call still returns the result of the work, and the keeper continues to release the lock.
    ///
    /// # Errors
    /// As [`DistributedLock::lock`], and [`Error::Lost`] if the lock was lost before the work was
    /// done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock.
    fn run_with<T>(
        &self,
        options: &LockOptions,
        work: impl AsyncFnOnce(&Guard) -> T,
    ) -> impl Future<Output = Result<T>> {
        async move { run(self.lock(options).await?, work).await }
    }

    /// Does the same as [`run_with`](Self::run_with) if the lock is free. Returns `None` without
    /// running `work` if it is busy.
    ///
    /// # Errors
    /// As [`DistributedLock::try_lock`], and [`Error::Lost`] if the lock was lost before the work
    /// was done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock.
    fn try_run_with<T>(
        &self,
        options: &LockOptions,
        work: impl AsyncFnOnce(&Guard) -> T,
    ) -> impl Future<Output = Result<Option<T>>> {
        async move {
            match self.try_lock(options).await? {
                Some(guard) => run(guard, work).await.map(Some),
                None => Ok(None),
            }
        }
    }
}

impl<L: DistributedLock + ?Sized> DistributedLockExt for L {}

/// Runs `work` until it is done or the guard is lost, and then releases the guard. An error of the
/// release other than a loss is dropped, because the keeper continues to release the lock.
pub(crate) async fn run<T>(guard: Guard, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
    let result = tokio::select! {
        biased;
        reason = guard.lost() => Err(reason),
        output = work(&guard) => Ok(output),
    };
    match result {
        Ok(output) => match guard.release().await {
            Err(lost @ Error::Lost { .. }) => Err(lost),
            _ => Ok(output),
        },
        Err(reason) => Err(Error::Lost { name: guard.name().clone(), reason }),
    }
}
