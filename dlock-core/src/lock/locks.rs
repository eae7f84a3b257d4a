//! A connected client, and the locks it makes.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{DistributedLock, FairMutex, Lock, LockOptions, Mutex, RwPair, Semaphore};
use crate::{
    driver::{Error, Info, Inspect, Kind, LockName, LockState, Result, Store},
    engine::Client,
    stores::memory,
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

    /// The same client with other defaults for what the options of a call leave unset.
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
        RwPair::new(self, name)
    }

    /// A semaphore: at most `limit` holders at once, in order of arrival. Each [`acquire`](Semaphore::acquire) takes one
    /// permit. A limit of zero is refused when a permit is asked for.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore {
        Semaphore::new(self, name, limit)
    }

    /// Any kind of lock, chosen at run time. A permit is that of a semaphore with a limit of one.
    pub fn of(&self, kind: Kind, name: impl AsRef<str>) -> Arc<dyn DistributedLock> {
        match kind {
            Kind::Mutex => Arc::new(self.mutex(name)),
            Kind::Fair => Arc::new(self.fair(name)),
            Kind::Read => Arc::new(self.rwlock(name).read()),
            Kind::Write => Arc::new(self.rwlock(name).write()),
            Kind::Permit => Arc::new(self.semaphore(name, 1)),
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
    /// are still held are dropped and all that was let go has left the store, and then ends its connections and
    /// sessions. Call it before the runtime ends, so that the last releases reach the store.
    ///
    /// A store that cannot be reached keeps it waiting for a ttl, or until the client's session is over.
    ///
    /// # Cancel safety
    /// Safe: the client stays closed, the waiting can be taken up again.
    pub async fn close(&self) {
        self.client.closing.cancel();
        self.client.tasks.close();
        self.client.tasks.wait().await;
        self.client.store.backend.close().await;
    }

    pub(crate) fn defaults(&self) -> LockOptions {
        self.defaults
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
