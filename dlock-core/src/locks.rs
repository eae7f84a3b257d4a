//! A connected client, and the locks it makes.

use std::{
    fmt,
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Acquire, DistributedLock, Error, FairLock, Guard, Info, Inspect, Kind, LockName, LockOptions, LockState,
    Owner, Result, RwLock, Store, TryAcquire, Wait, lock, memory,
};

/// A connected client of one store: makes locks. Cheap to clone; clones are the same client.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
/// use std::time::Duration;
/// let locks = dlock_core::Locks::memory();
/// let guard = locks.mutex("invoice/42").lock().ttl(Duration::from_secs(10)).wait(Duration::from_secs(5)).await?;
/// assert!(!guard.is_lost());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Locks {
    client: Arc<Client>,
    defaults: LockOptions,
}

/// What the clones of a client share.
pub(crate) struct Client {
    /// Tells clients of one process apart, for as long as it runs.
    pub(crate) id: u64,
    pub(crate) store: Store,
    /// Every keeper of this client.
    pub(crate) tasks: TaskTracker,
    pub(crate) closing: CancellationToken,
}

impl Locks {
    /// A client of a connected store.
    pub fn new(store: Store) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let client = Client { id, store, tasks: TaskTracker::new(), closing: CancellationToken::new() };
        Self { client: Arc::new(client), defaults: LockOptions::new() }
    }

    /// A client of a new store in this process's memory: for tests, and as the model of what the others do.
    pub fn memory() -> Self {
        Self::new(memory::MemoryBackend::new().into_store())
    }

    /// The same client with other defaults for `ttl`, `wait` and the rest.
    #[must_use]
    pub fn with_defaults(mut self, defaults: LockOptions) -> Self {
        self.defaults = defaults;
        self
    }

    /// An exclusive lock. Who comes next is the store's choice: the cheapest kind.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Lock::new(self, name)
    }

    /// An exclusive lock, granted in order of arrival.
    pub fn fair(&self, name: impl AsRef<str>) -> FairMutex {
        Lock::new(self, name)
    }

    /// A read/write lock.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwPair {
        RwPair { read: Lock::new(self, &name), write: Lock::new(self, &name) }
    }

    /// Any kind of lock, chosen at run time.
    pub fn lock(&self, kind: Kind, name: impl AsRef<str>) -> Arc<dyn DistributedLock> {
        match kind {
            Kind::Mutex => Arc::new(self.mutex(name)),
            Kind::Fair => Arc::new(self.fair(name)),
            Kind::Read => Arc::new(self.rwlock(name).read),
            Kind::Write => Arc::new(self.rwlock(name).write),
        }
    }

    /// What the store is and can do.
    pub fn info(&self) -> &Info {
        self.client.store.backend.info()
    }

    /// Who holds a lock and who waits for it; `None` if nobody does either. A snapshot.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the store cannot tell, [`Error::InvalidName`], and the store's own.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn inspect(&self, name: impl AsRef<str> + Send) -> Result<Option<LockState>> {
        let name = LockName::new(name)?;
        self.ability("tell who holds a lock")?.inspect(&name).await
    }

    /// The locks in the store whose names begin with `prefix`, in order of their names. A snapshot; may be costly.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the store cannot tell, and the store's own.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        self.ability("list its locks")?.list(prefix).await
    }

    /// Takes a lock from whoever holds it: for people who know that the holder is gone. The next in the queue gets
    /// it; the old holder's guard is lost, at once where the store can tell it. `true` if somebody held it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the store cannot, [`Error::InvalidName`], and the store's own.
    ///
    /// # Cancel safety
    /// If dropped, it may or may not have happened.
    pub async fn force_release(&self, name: impl AsRef<str> + Send) -> Result<bool> {
        let name = LockName::new(name)?;
        self.ability("break a lock")?.force_release(&name).await
    }

    fn ability(&self, what: &str) -> Result<&dyn Inspect> {
        let unsupported = || Error::Unsupported { store: self.info().store, what: what.to_owned() };
        self.client.store.inspect.as_deref().ok_or_else(unsupported)
    }

    /// Closes the client: from now on every acquisition ends with [`Error::Closed`]. Waits until the guards that
    /// are still held are dropped and all that was let go has left the store. Call it before the runtime ends,
    /// so that the last releases reach the store.
    ///
    /// # Cancel safety
    /// Safe: the client stays closed, the waiting can be taken up again.
    pub async fn close(&self) {
        self.client.closing.cancel();
        self.client.tasks.close();
        self.client.tasks.wait().await;
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }
}

impl From<Store> for Locks {
    fn from(store: Store) -> Self {
        Self::new(store)
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("store", &self.info().identity)
            .field("defaults", &self.defaults)
            .finish()
    }
}

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

    sides!(Mutex, Fair, Read, Write);
}

/// An exclusive lock.
pub type Mutex = Lock<kind::Mutex>;
/// An exclusive lock, granted in order of arrival.
pub type FairMutex = Lock<kind::Fair>;
/// The shared side of a read/write lock.
pub type ReadLock = Lock<kind::Read>;
/// The exclusive side of a read/write lock.
pub type WriteLock = Lock<kind::Write>;

/// A lock of one name and kind. Cheap to clone; holds nothing until [`lock`](Self::lock) is awaited.
#[derive(Clone, Debug)]
pub struct Lock<K> {
    target: Target,
    kind: PhantomData<K>,
}

/// What an acquisition is of: everything about a lock but the options.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) locks: Locks,
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
    pub(crate) owner: Option<Owner>,
}

impl<K: kind::Side> Lock<K> {
    fn new(locks: &Locks, name: impl AsRef<str>) -> Self {
        // Checked by the first call that would use it, so that making a lock cannot fail.
        let name = LockName::unchecked(name.as_ref());
        let target = Target { locks: locks.clone(), name, kind: K::KIND, owner: None };
        Self { target, kind: PhantomData }
    }

    /// The same lock in the hands of `owner`, who may take it again while holding it.
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.target.owner = Some(owner.clone());
        self
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.target.name
    }

    /// Waits for the lock. Set options on what it returns, then await it; nothing happens before.
    ///
    /// # Errors
    /// As [`DistributedLock::lock`].
    ///
    /// # Cancel safety
    /// As [`DistributedLock::lock`].
    pub fn lock(&self) -> Acquire {
        Acquire::new(self.target.clone(), self.target.locks.defaults)
    }

    /// Tries once: `None` if somebody else holds it.
    ///
    /// # Errors
    /// As [`DistributedLock::try_lock`].
    ///
    /// # Cancel safety
    /// As [`DistributedLock::lock`].
    pub fn try_lock(&self) -> TryAcquire {
        TryAcquire::new(self.target.clone(), self.target.locks.defaults.wait(Wait::Never))
    }

    /// Takes the lock, runs `work` with its guard, and releases it. The work is dropped when the lock is lost.
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
    /// Those of [`lock`](Self::lock), and [`Error::Lost`] if the lock was lost before the work was done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        lock::run(self.lock().await?, work).await
    }
}

#[async_trait]
impl<K: kind::Side> DistributedLock for Lock<K> {
    fn name(&self) -> &LockName {
        &self.target.name
    }

    async fn lock(&self, options: &LockOptions) -> Result<Guard> {
        Acquire::new(self.target.clone(), *options).await
    }

    async fn try_lock(&self, options: &LockOptions) -> Result<Option<Guard>> {
        TryAcquire::new(self.target.clone(), options.wait(Wait::Never)).await
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
