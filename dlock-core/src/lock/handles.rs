//! Handles of a client's locks, with one type for each kind.

use std::{marker::PhantomData, sync::Arc};

use async_trait::async_trait;

use super::{
    Acquire, DistributedLock, FairLock, Guard, LockOptions, Locks, Member, Owner, RwLock, TryAcquire,
    acquire::Target,
};
use crate::model::{Kind, LockName, Result};

/// The kinds of lock as types. The type of a handle contains the kind of its lock.
pub mod kind {
    mod sealed {
        pub trait Sealed {}
    }

    /// A kind of lock. Sealed: all kinds are in this module.
    pub trait Side: sealed::Sealed + Copy + std::fmt::Debug + Send + Sync + 'static {
        /// The kind as a value.
        const KIND: super::Kind;
    }

    macro_rules! sides {
        ($($side:ident),*) => {$(
            #[doc = concat!("The kind [`Kind::", stringify!($side), "`](crate::model::Kind::", stringify!($side), ").")]
            #[derive(Clone, Copy, Debug)]
            pub struct $side;

            impl sealed::Sealed for $side {}

            impl Side for $side {
                const KIND: super::Kind = super::Kind::$side;
            }
        )*};
    }

    sides!(Mutex, Fair, Read, Write, Permit);

    /// A kind that is acquired with [`lock`](super::Lock::lock) and supports
    /// [owners](crate::Owner). All kinds except [`Permit`].
    pub trait Lockable: Side {}

    impl Lockable for Mutex {}
    impl Lockable for Fair {}
    impl Lockable for Read {}
    impl Lockable for Write {}

    /// A kind that excludes all other holders, as the work of an
    /// [occurrence](crate::Occurrence) requires.
    pub trait Exclusive: Lockable {}

    impl Exclusive for Mutex {}
    impl Exclusive for Fair {}
    impl Exclusive for Write {}
}

/// An exclusive lock.
pub type Mutex = Lock<kind::Mutex>;
/// An exclusive lock, granted in order of arrival.
pub type FairMutex = Lock<kind::Fair>;
/// The shared side of a read/write lock.
pub type ReadLock = Lock<kind::Read>;
/// The exclusive side of a read/write lock.
pub type WriteLock = Lock<kind::Write>;

/// A handle of the lock with one name and kind. Cheap to clone.
///
/// The handle itself holds nothing. A call of [`lock`](Self::lock), or of a semaphore's
/// [`acquire`](crate::Semaphore::acquire), begins when its future is first polled.
#[derive(Clone, Debug)]
pub struct Lock<K> {
    pub(super) target: Target,
    kind: PhantomData<K>,
}

impl<K: kind::Side> Lock<K> {
    pub(super) fn with_limit(locks: &Locks, name: impl AsRef<str>, limit: u32) -> Self {
        // The first call that uses the lock checks its name and limit, so that creating a handle
        // cannot fail.
        let name = LockName::unchecked(name.as_ref());
        let (locks, kind) = (locks.clone(), K::KIND);
        let target = Target { locks, name, kind, limit, owner: None, is_candidate: false };
        Self { target, kind: PhantomData }
    }

    /// Returns the lock's name.
    pub fn name(&self) -> &LockName {
        &self.target.name
    }

    /// Takes the lock, or one permit of a semaphore, runs `work` with its guard, and releases it.
    /// [`Acquire::run`] does the same with options.
    ///
    /// If the lock is lost, the work is dropped at its next await point. If the store does not
    /// confirm the release in time, the call still returns the result of the work, and the keeper
    /// continues to release the lock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
    /// let locks = dlock_core::Locks::memory();
    /// let token = locks.mutex("nightly").run(async |guard| guard.token()).await?;
    /// assert!(token.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`DistributedLock::lock`], and [`Error::Lost`](crate::Error::Lost) if the lock was lost
    /// before the work was done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        Acquire::new(self.target.clone(), LockOptions::new()).run(work).await
    }

    /// Does the same as [`run`](Self::run) if the lock is free. Returns `None` without running
    /// `work` if it is busy.
    ///
    /// # Errors
    /// As [`DistributedLock::try_lock`], and [`Error::Lost`](crate::Error::Lost) if the lock was
    /// lost before the work was done.
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    pub async fn try_run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<Option<T>> {
        TryAcquire::new(self.target.clone(), LockOptions::new()).run(work).await
    }
}

impl<K: kind::Lockable> Lock<K> {
    pub(super) fn new(locks: &Locks, name: impl AsRef<str>) -> Self {
        Self::with_limit(locks, name, 1)
    }

    /// Returns the same lock with an owner, which can take the lock again while it holds it.
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.target.owner = Some(owner.clone());
        self
    }

    /// Returns a future that waits for the lock. Set options on it, then await it. Nothing happens
    /// before its first poll. By default it waits without a limit, and the ttl is 30 s.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
    /// use std::time::Duration;
    /// let locks = dlock_core::Locks::memory();
    /// let guard = locks.fair("invoice/42").lock().wait(Duration::from_secs(5)).await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`DistributedLock::lock`].
    ///
    /// # Cancel safety
    /// As [`DistributedLock::lock`].
    pub fn lock(&self) -> Acquire {
        Acquire::new(self.target.clone(), LockOptions::new())
    }

    /// Returns a future that tries the lock once. Its output is `None` if the lock is busy. Set
    /// options on it, then await it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
    /// let lock = dlock_core::Locks::memory().mutex("invoice/42");
    /// let guard = lock.try_lock().await?.expect("free");
    /// assert!(lock.try_lock().await?.is_none());
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`DistributedLock::try_lock`].
    ///
    /// # Cancel safety
    /// As [`DistributedLock::lock`].
    pub fn try_lock(&self) -> TryAcquire {
        TryAcquire::new(self.target.clone(), LockOptions::new())
    }
}

/// Makes locks of different kinds one type, as for a [`MultiLock`](crate::MultiLock).
///
/// ```
/// use dlock_core::{DistributedLock, Locks};
/// use std::sync::Arc;
/// let locks = Locks::memory();
/// let both: [Arc<dyn DistributedLock>; 2] = [locks.mutex("a").into(), locks.fair("b").into()];
/// # assert_eq!(both[1].name().as_str(), "b");
/// ```
impl<K: kind::Side> From<Lock<K>> for Arc<dyn DistributedLock> {
    fn from(lock: Lock<K>) -> Self {
        Arc::new(lock)
    }
}

#[async_trait]
impl<K: kind::Side> DistributedLock for Lock<K> {
    fn name(&self) -> &LockName {
        &self.target.name
    }

    fn kind(&self) -> Kind {
        K::KIND
    }

    fn limit(&self) -> u32 {
        self.target.limit
    }

    fn store(&self) -> &str {
        &self.target.locks.info().identity
    }

    fn defaults(&self) -> LockOptions {
        self.target.locks.defaults().clone()
    }

    fn check(&self, options: &LockOptions) -> Result<()> {
        options.clone().or(&self.defaults()).validate(self.target.locks.info())
    }

    fn member(&self) -> Option<Member> {
        Member::of(&self.target)
    }

    async fn lock(&self, options: &LockOptions) -> Result<Guard> {
        Acquire::new(self.target.clone(), options.clone()).await
    }

    async fn try_lock(&self, options: &LockOptions) -> Result<Option<Guard>> {
        TryAcquire::new(self.target.clone(), options.clone()).await
    }
}

impl FairLock for FairMutex {}

/// A read/write lock. Its two sides are locks of one name that exclude each other.
///
/// Any number of readers hold at one time, or one writer. A reader that arrives after a waiting
/// writer waits behind it, so that writers do not starve.
#[derive(Clone, Debug)]
pub struct RwPair {
    read: ReadLock,
    write: WriteLock,
}

impl RwPair {
    pub(crate) fn new(locks: &Locks, name: impl AsRef<str>) -> Self {
        Self { read: Lock::new(locks, &name), write: Lock::new(locks, &name) }
    }

    /// Returns the shared side.
    pub fn read(&self) -> ReadLock {
        self.read.clone()
    }

    /// Returns the exclusive side.
    pub fn write(&self) -> WriteLock {
        self.write.clone()
    }

    /// Returns both sides with an owner. An owner that writes may also read, and continues to read
    /// after its write guard is released.
    #[must_use]
    pub fn owned_by(self, owner: &Owner) -> Self {
        Self { read: self.read.owned_by(owner), write: self.write.owned_by(owner) }
    }
}

impl RwLock for RwPair {
    fn read(&self) -> Box<dyn DistributedLock> {
        Box::new(self.read.clone())
    }

    fn write(&self) -> Box<dyn DistributedLock> {
        Box::new(self.write.clone())
    }
}
