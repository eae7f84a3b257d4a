//! A connected client, and the locks it makes.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{DistributedLock, FairMutex, Lock, LockOptions, Mutex, RwPair, Semaphore};
use crate::{
    contract::{Info, Inspect, LockState, Store},
    engine::{Client, Thread},
    model::{Error, Kind, LockName, Result, Who},
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
    who: Who,
    thread: Option<Arc<Thread>>,
}

impl Locks {
    /// A client of a connected store. It lives on the caller's tokio runtime, which needs timers
    /// ([`enable_time`](tokio::runtime::Builder::enable_time)); without them tokio panics, and says so.
    pub fn new(store: Store) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let client = Client::new(id, store);
        Self {
            client: Arc::new(client),
            defaults: LockOptions::new(),
            who: Who::this_process(),
            thread: None,
        }
    }

    /// A client on a thread of its own: it is connected there, and its connection and its keepers live there.
    ///
    /// - Locks are renewed while the caller's runtime is blocked. Otherwise a call that blocks the runtime's threads for a
    ///   ttl loses every lock.
    /// - Locks, guards and all methods work on any executor, and where there is none. ([`MultiLock`](crate::MultiLock) and
    ///   [`RedLock`](crate::RedLock)s of several clients need a tokio runtime all the same.)
    /// - Whoever drops the last clone of the client, or its last guard, waits until the store has confirmed what was let go,
    ///   for two seconds at the longest. So nothing stays locked at the end of `main`. This blocks the thread;
    ///   [`close`](Self::close) waits without doing so.
    ///
    /// It costs one thread for each client, and two wake-ups between threads for each call.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
    /// use dlock_core::{Locks, Registry};
    /// let locks = Locks::on_own_thread(async { Registry::new().connect("memory:").await }).await?;
    /// let guard = locks.mutex("invoice/42").lock().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of `connecting`, and [`Error::Unavailable`] if there is no thread to be had.
    ///
    /// # Cancel safety
    /// Safe: dropping the future ends the attempt and the thread.
    pub async fn on_own_thread(
        connecting: impl Future<Output = Result<Self>> + Send + 'static,
    ) -> Result<Self> {
        let thread = Thread::start()?;
        let mut locks = thread.run(connecting).await?;
        thread.serve(&locks.client);
        locks.thread = Some(Arc::new(thread));
        Ok(locks)
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

    /// The same client under another name than [this process](Who::this_process): what `inspect` shows of those who hold or wait.
    #[must_use]
    pub fn with_who(mut self, who: Who) -> Self {
        self.who = who;
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
        Semaphore::with_limit(self, name, limit)
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
        let store = self.ability("tell who holds a lock")?;
        self.on_thread(async move { store.inspect(&name).await }).await
    }

    /// The locks in the store whose names begin with `prefix`, in order of their names. A snapshot; may be costly.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the store cannot tell, and the store's own.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        let (store, prefix) = (self.ability("list its locks")?, prefix.to_owned());
        self.on_thread(async move { store.list(&prefix).await }).await
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
        let store = self.ability("break a lock")?;
        self.on_thread(async move { store.force_release(&name).await }).await
    }

    fn ability(&self, what: &str) -> Result<Arc<dyn Inspect>> {
        let unsupported = || Error::Unsupported { store: self.info().store, what: what.to_owned() };
        self.client.store.inspect.clone().ok_or_else(unsupported)
    }

    /// Closes the client: from now on every acquisition ends with [`Error::Closed`]. Waits until the guards that
    /// are still held are dropped and all that was let go has left the store, and then ends its connections and
    /// sessions. Call it before the runtime ends, so that the last releases reach the store.
    ///
    /// A store that cannot be reached keeps it waiting for a ttl, or until the client's session is over. After a
    /// [detachment](crate::Guard::detach) that was neither confirmed nor undone, it waits for the time of that too.
    ///
    /// # Cancel safety
    /// Safe: the client stays closed, the waiting can be taken up again.
    pub async fn close(&self) {
        self.client.closing.cancel();
        let client = Arc::clone(&self.client);
        let closed = async move {
            client.close().await;
            Ok(())
        };
        // An error means that the thread has ended, and with it all that could be waited for.
        self.on_thread(closed).await.ok();
    }

    /// Does `work` where the client lives.
    pub(super) async fn on_thread<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        match &self.thread {
            None => work.await,
            Some(thread) => thread.run(work).await,
        }
    }

    /// The client as it is used on its thread: there nobody may wait for the end of the thread.
    pub(super) fn as_on_thread(&self) -> Self {
        Self { thread: None, ..self.clone() }
    }

    pub(super) fn thread(&self) -> Option<&Arc<Thread>> {
        self.thread.as_ref()
    }

    pub(crate) fn defaults(&self) -> LockOptions {
        self.defaults.clone()
    }

    pub(crate) fn who(&self) -> &Who {
        &self.who
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
