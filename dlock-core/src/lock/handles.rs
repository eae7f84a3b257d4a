//! The locks of a client: cheap handles, one type a kind.

use std::marker::PhantomData;

use async_trait::async_trait;

use super::{
    Acquire, DistributedLock, FairLock, Guard, LockOptions, Locks, Member, Owner, RwLock, TryAcquire,
    acquire::Target,
};
use crate::model::{Kind, LockName, Result};

/// The kinds as types, so that a lock's kind stands in its type.
pub mod kind {
    /// A kind of lock.
    pub trait Side: Copy + std::fmt::Debug + Send + Sync + 'static {
        /// Its value.
        const KIND: super::Kind;
    }

    macro_rules! sides {
        ($($side:ident),*) => {$(
            /// See [`Kind`](crate::Kind).
            #[derive(Clone, Copy, Debug)]
            pub struct $side;

            impl Side for $side {
                const KIND: super::Kind = super::Kind::$side;
            }
        )*};
    }

    sides!(Mutex, Fair, Read, Write, Permit);

    /// A kind that is taken with [`lock`](super::Lock::lock) and knows [owners](crate::Owner): every kind but [`Permit`].
    pub trait Lockable: Side {}

    impl Lockable for Mutex {}
    impl Lockable for Fair {}
    impl Lockable for Read {}
    impl Lockable for Write {}
}

/// An exclusive lock.
pub type Mutex = Lock<kind::Mutex>;
/// An exclusive lock, granted in order of arrival.
pub type FairMutex = Lock<kind::Fair>;
/// The shared side of a read/write lock.
pub type ReadLock = Lock<kind::Read>;
/// The exclusive side of a read/write lock.
pub type WriteLock = Lock<kind::Write>;

/// A lock of one name and kind. Cheap to clone; holds nothing until [`lock`](Self::lock) is awaited, or
/// [`acquire`](crate::Semaphore::acquire) of a semaphore.
#[derive(Clone, Debug)]
pub struct Lock<K> {
    pub(super) target: Target,
    kind: PhantomData<K>,
}

impl<K: kind::Side> Lock<K> {
    pub(super) fn with_limit(locks: &Locks, name: impl AsRef<str>, limit: u32) -> Self {
        // Checked by the first call that would use it, like the limit, so that making a lock cannot fail.
        let name = LockName::unchecked(name.as_ref());
        let target = Target { locks: locks.clone(), name, kind: K::KIND, limit, owner: None };
        Self { target, kind: PhantomData }
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.target.name
    }

    /// Takes the lock, runs `work` with its guard, and releases it; of a semaphore one permit. The work is dropped when the
    /// lock is lost. If the store does not confirm the release in time, the result of the work is returned all the same, and the
    /// keeper goes on releasing. [`Acquire::run`] does the same with options.
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
    /// As [`DistributedLock::lock`], and [`Error::Lost`](crate::Error::Lost) if the lock was lost before the work was done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        Acquire::new(self.target.clone(), LockOptions::new()).run(work).await
    }

    /// As [`run`](Self::run), if the lock is free: `None` if somebody else holds it.
    ///
    /// # Errors
    /// As [`DistributedLock::try_lock`], and [`Error::Lost`](crate::Error::Lost) if the lock was lost before the work was done.
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

    /// The same lock in the hands of `owner`, who may take it again while holding it.
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.target.owner = Some(owner.clone());
        self
    }

    /// Waits for the lock. Set options on what it returns, then await it; nothing happens before.
    ///
    /// # Errors
    /// As [`DistributedLock::lock`].
    ///
    /// # Cancel safety
    /// As [`DistributedLock::lock`].
    pub fn lock(&self) -> Acquire {
        Acquire::new(self.target.clone(), LockOptions::new())
    }

    /// Tries once: `None` if somebody else holds it.
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
        self.target.locks.defaults()
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

/// A read/write lock: two locks of one name that exclude each other.
#[derive(Clone, Debug)]
pub struct RwPair {
    read: ReadLock,
    write: WriteLock,
}

impl RwPair {
    pub(crate) fn new(locks: &Locks, name: impl AsRef<str>) -> Self {
        Self { read: Lock::new(locks, &name), write: Lock::new(locks, &name) }
    }

    /// The shared side.
    pub fn read(&self) -> ReadLock {
        self.read.clone()
    }

    /// The exclusive side.
    pub fn write(&self) -> WriteLock {
        self.write.clone()
    }

    /// Both sides in the hands of `owner`: who writes may read too, and goes on reading when the write guard is gone.
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
