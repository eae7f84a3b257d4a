//! The user contract: what every lock can do, whatever the store.

use std::time::Duration;

use async_trait::async_trait;

use super::{Guard, LockOptions, Member};
use crate::model::{Error, Kind, LockName, Result};

/// A lock, of any kind and on any store. Object-safe, so that configuration can choose.
#[async_trait]
pub trait DistributedLock: Send + Sync {
    /// The lock's name.
    fn name(&self) -> &LockName;

    /// How it is held.
    fn kind(&self) -> Kind;

    /// How many may hold it at once, as this handle says: the limit of a [`Semaphore`](crate::Semaphore), and 1 for all other
    /// kinds.
    fn limit(&self) -> u32 {
        1
    }

    /// Which store it is in: [`Info::identity`](crate::driver::Info::identity). With the name, which lock it is.
    fn store(&self) -> &str;

    /// What the options of a call leave unset: for a lock of a client, the client's defaults. By default nothing.
    fn defaults(&self) -> LockOptions {
        LockOptions::new()
    }

    /// Checks the options as a call would, without asking the store. By default nothing: the call finds out.
    ///
    /// # Errors
    /// [`Error::InvalidOptions`], and [`Error::Unsupported`].
    fn check(&self, options: &LockOptions) -> Result<()> {
        let _ = options;
        Ok(())
    }

    /// For a [`MultiLock`](crate::MultiLock), which takes members of one client in one request where the store can do that.
    /// By default `None`: the MultiLock asks for this lock by itself. A lock that wraps another and adds nothing to `try_lock`
    /// may return what the other one returns.
    fn member(&self) -> Option<Member> {
        None
    }

    /// Waits for the lock, as long as `options` say. What they leave unset is taken from the client's
    /// [defaults](crate::Locks::with_defaults).
    ///
    /// # Errors
    /// [`Error::Timeout`] when the wait ran out; [`Error::Unavailable`], [`Error::Unwritable`] and [`Error::Refused`] from the
    /// store; [`Error::InvalidOptions`], [`Error::InvalidName`], [`Error::Unsupported`], [`Error::NoRuntime`] before any I/O.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no trace: nothing held, nothing queued, nothing renewed.
    async fn lock(&self, options: &LockOptions) -> Result<Guard>;

    /// Tries once; `None` if somebody else holds it. The `wait` of `options` does not matter. Bind the guard to a name: one
    /// that is not bound is dropped at once.
    ///
    /// On stores with a queue, another contender's try that is about to leave again may make this one fail. It never
    /// succeeds wrongly.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), but never [`Error::Timeout`].
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    async fn try_lock(&self, options: &LockOptions) -> Result<Option<Guard>>;
}

/// A lock that is granted in order of arrival at the store. A [`RedLock`](crate::RedLock) is several stores, and says what is
/// left of the order.
pub trait FairLock: DistributedLock {}

/// A pair of locks of one name: any number of readers, or one writer.
///
/// A reader that comes after a waiting writer waits behind it, so that neither side starves.
pub trait RwLock: Send + Sync {
    /// The shared side.
    fn read(&self) -> Box<dyn DistributedLock>;

    /// The exclusive side.
    fn write(&self) -> Box<dyn DistributedLock>;
}

/// Convenience over [`DistributedLock`], for every lock there is.
pub trait DistributedLockExt: DistributedLock {
    /// Waits for the lock no longer than `limit`, from the call, with the client's defaults for the rest.
    ///
    /// # Errors
    /// As [`DistributedLock::lock`].
    ///
    /// # Cancel safety
    /// As [`DistributedLock::lock`].
    fn lock_within(&self, limit: Duration) -> impl Future<Output = Result<Guard>> + Send {
        async move { self.lock(&LockOptions::new().wait(limit)).await }
    }

    /// Takes the lock, runs `work` with its guard, and releases it. The work is dropped when the lock is lost. If the store
    /// does not confirm the release in time, the result of the work is returned all the same, and the keeper goes on
    /// releasing.
    ///
    /// # Errors
    /// Those of [`DistributedLock::lock`], and [`Error::Lost`] if the lock was lost before the work was done.
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

    /// As [`run_with`](Self::run_with), if the lock is free: `None` if somebody else holds it.
    ///
    /// # Errors
    /// Those of [`DistributedLock::try_lock`], and [`Error::Lost`] if the lock was lost before the work was done.
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

/// Runs `work` for as long as the guard holds, then releases it.
pub(crate) async fn run<T>(guard: Guard, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
    let done = tokio::select! {
        biased;
        reason = guard.lost() => Err(reason),
        done = work(&guard) => Ok(done),
    };
    match done {
        Ok(done) => match guard.release().await {
            Err(lost @ Error::Lost { .. }) => Err(lost),
            _ => Ok(done),
        },
        Err(reason) => Err(Error::Lost { name: guard.name().clone(), reason }),
    }
}
