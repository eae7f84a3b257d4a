//! The client of a store, which creates its locks.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::runtime::Handle;

use super::{DistributedLock, Election, FairMutex, Lock, LockOptions, Mutex, RwPair, Semaphore, mark};
use crate::{
    contract::{Contender, Info, Inspect, LockState, Store},
    engine::{Client, Thread},
    model::{Error, Kind, LockName, Result, Who},
    stores::memory,
};

/// A client of one store, which creates locks. Cheap to clone. Clones are the same client.
///
/// Creating a lock does no I/O and cannot fail. The first call that uses the lock checks its name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
/// use std::time::Duration;
/// let locks = dlock_core::Locks::memory();
/// let invoice = locks.mutex("invoice/42");
/// let guard = invoice.lock().ttl(Duration::from_secs(10)).wait(Duration::from_secs(5)).await?;
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
    /// Creates a client of a connected store. Its tasks run on the tokio runtime of its callers,
    /// which must have time enabled ([`enable_time`](tokio::runtime::Builder::enable_time)).
    ///
    /// # Panics
    /// Calls of the client panic in tokio if the runtime has time disabled.
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

    /// Starts a thread for the client, and runs `connecting` there. The client's connection and its
    /// keepers also run on that thread.
    ///
    /// - Locks are renewed while the caller's runtime is blocked. On the caller's runtime, a call
    ///   that blocks the runtime's threads for a ttl loses every lock.
    /// - Locks, guards and all methods of the client work on any executor, and without one. A
    ///   [`MultiLock`](crate::MultiLock), and a [`RedLock`](crate::RedLock) of several clients,
    ///   still need a tokio runtime.
    /// - Dropping the last clone of the client, or its last guard, blocks until the store has
    ///   confirmed the releases, for at most two seconds, or four if the driver blocks the client's
    ///   thread. No lock then stays taken at the end of `main`. Await [`close`](Self::close) first to
    ///   avoid blocking the thread.
    ///
    /// The costs are one thread for each client, and two wake-ups between threads for each call.
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
    /// The errors of `connecting`, and [`Error::Unavailable`] if the system cannot start a thread.
    ///
    /// # Cancel safety
    /// Safe. Dropping the future ends the attempt and the thread.
    pub async fn on_own_thread(
        connecting: impl Future<Output = Result<Self>> + Send + 'static,
    ) -> Result<Self> {
        let thread = Thread::start()?;
        let mut locks = thread.run(connecting).await?;
        thread.serve(&locks.client);
        locks.thread = Some(Arc::new(thread));
        Ok(locks)
    }

    /// Creates a client of a new store in the memory of this process. The store is for tests, and
    /// is the model for the behaviour of the other stores.
    pub fn memory() -> Self {
        Self::new(memory::MemoryBackend::new().into_store())
    }

    /// Returns the same client with other defaults, for options that a call does not set. Other
    /// clones of the client keep their defaults.
    #[must_use]
    pub fn with_defaults(mut self, defaults: LockOptions) -> Self {
        self.defaults = defaults;
        self
    }

    /// Returns the same client with another label, which [`inspect`](Self::inspect) shows for its
    /// holders and waiters. Default: [`Who::this_process`].
    #[must_use]
    pub fn with_who(mut self, who: Who) -> Self {
        self.who = who;
        self
    }

    /// Returns an exclusive lock. The store chooses the next holder. This is the cheapest kind.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Lock::new(self, name)
    }

    /// Returns an exclusive lock that is granted in order of arrival.
    pub fn fair(&self, name: impl AsRef<str>) -> FairMutex {
        Lock::new(self, name)
    }

    /// Returns a read/write lock.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwPair {
        RwPair::new(self, name)
    }

    /// Returns a semaphore with at most `limit` holders at one time, in order of arrival. Each
    /// [`acquire`](Semaphore::acquire) takes one permit, and refuses a limit of zero.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore {
        Semaphore::with_limit(self, name, limit)
    }

    /// Returns the election of a leader. It is a [fair](Self::fair) lock of this name, or a mutex in
    /// a store without fair locks.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self, name)
    }

    /// Returns a lock of a kind that is chosen at run time. For [`Kind::Permit`] it is a semaphore
    /// with a limit of 1.
    pub fn of(&self, kind: Kind, name: impl AsRef<str>) -> Arc<dyn DistributedLock> {
        match kind {
            Kind::Mutex => Arc::new(self.mutex(name)),
            Kind::Fair => Arc::new(self.fair(name)),
            Kind::Read => Arc::new(self.rwlock(name).read()),
            Kind::Write => Arc::new(self.rwlock(name).write()),
            Kind::Permit => Arc::new(self.semaphore(name, 1)),
        }
    }

    /// Returns the name, the identity and the capabilities of the store.
    pub fn info(&self) -> &Info {
        self.client.store.backend.info()
    }

    /// Returns a snapshot of the holders and waiters of a lock, or `None` if it has neither.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the store cannot list them, [`Error::InvalidName`],
    /// [`Error::NoRuntime`], and the store's errors.
    ///
    /// # Cancel safety
    /// Safe. The call only reads.
    pub async fn inspect(&self, name: impl AsRef<str> + Send) -> Result<Option<LockState>> {
        let name = LockName::new(name)?;
        let store = self.inspector("tell who holds a lock")?;
        self.check_runtime(&name)?;
        self.on_thread(async move { store.inspect(&name).await }).await
    }

    /// Returns the claim that holds an exclusive lock.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect), and if a part of the store that may know the holder does not
    /// reply.
    pub(super) async fn holder(&self, name: LockName) -> Result<Option<Contender>> {
        name.check()?;
        let store = self.inspector("tell who holds a lock")?;
        self.check_runtime(&name)?;
        self.on_thread(async move { store.holder(&name).await }).await
    }

    /// Returns a snapshot of the locks whose names begin with `prefix`, in order of their names.
    /// May be expensive in a store with many locks. Leaves out the [marks](Self::marks) of work that
    /// is done.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the store cannot list its locks, [`Error::NoRuntime`] with the prefix
    /// and `*` as the name, and the store's errors.
    ///
    /// # Cancel safety
    /// Safe. The call only reads.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        let mut states = self.list_all(prefix).await?;
        states.retain(|state| !mark::is_mark(&state.name));
        Ok(states)
    }

    /// Returns the locks and the marks whose names in the store begin with `prefix`.
    pub(super) async fn list_all(&self, prefix: &str) -> Result<Vec<LockState>> {
        let (store, prefix) = (self.inspector("list its locks")?, prefix.to_owned());
        self.check_runtime(&LockName::unchecked(format!("{prefix}*")))?;
        self.on_thread(async move { store.list(&prefix).await }).await
    }

    /// Deletes the claims of all holders of a lock, and returns whether there was a holder. This is
    /// for an operator who knows that the holder has ended. The next waiter gets the lock. The old
    /// holder's guard is lost, at once if the store notifies it, or else at its next renewal.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the store cannot break a lock, [`Error::InvalidName`],
    /// [`Error::NoRuntime`], and the store's errors.
    ///
    /// # Cancel safety
    /// If the future is dropped, the claims may or may not have been deleted.
    pub async fn force_release(&self, name: impl AsRef<str> + Send) -> Result<bool> {
        let name = LockName::new(name)?;
        let store = self.inspector("break a lock")?;
        self.check_runtime(&name)?;
        self.on_thread(async move { store.force_release(&name).await }).await
    }

    /// Returns the store's interface for inspection. `what` names the request in the error.
    pub(super) fn inspector(&self, what: &str) -> Result<Arc<dyn Inspect>> {
        let unsupported = || Error::Unsupported { store: self.info().store, what: what.to_owned() };
        self.client.store.inspect.clone().ok_or_else(unsupported)
    }

    /// Closes the client and all its clones. From now on every acquisition fails with
    /// [`Error::Closed`].
    ///
    /// The call waits until all guards are dropped and every released claim has been deleted from
    /// the store. It does not limit the wait for guards, so drop them first. Then it ends the
    /// client's connections and sessions. Await it before the runtime ends, so that the last
    /// releases reach the store.
    ///
    /// If the store is unreachable, the call waits for up to a ttl, or until the client's session
    /// has ended. After a [detachment](crate::Guard::detach) that was neither confirmed nor undone,
    /// it also waits for the time of that detachment.
    ///
    /// Outside of a tokio runtime the call closes the client on a thread that it starts.
    ///
    /// # Cancel safety
    /// Safe. The client stays closed, and another call continues to wait.
    pub async fn close(&self) {
        self.client.closing.cancel();
        let client = Arc::clone(&self.client);
        let closed = async move {
            client.close().await;
            Ok(())
        };
        // Some drivers need a runtime to close.
        let thread = match (&self.thread, Handle::try_current()) {
            (None, Err(_)) => Thread::start().ok(),
            _ => None,
        };
        // An error means that the thread has ended, and with it all keepers.
        match thread {
            Some(thread) => thread.run(closed).await.ok(),
            None => self.on_thread(closed).await.ok(),
        };
    }

    /// Runs `work` on the client's thread if it has one, or else in the caller's task.
    pub(super) async fn on_thread<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        match &self.thread {
            None => work.await,
            Some(thread) => thread.run(work).await,
        }
    }

    /// Checks that a call about this lock has a runtime. Most drivers panic without one.
    pub(super) fn check_runtime(&self, name: &LockName) -> Result<()> {
        match self.thread {
            None => Handle::try_current().map(drop).map_err(|_| Error::NoRuntime { name: name.clone() }),
            Some(_) => Ok(()),
        }
    }

    /// Returns the client for use on its thread. It has no reference to the thread, because the
    /// thread must not wait for its own end.
    pub(super) fn without_thread(&self) -> Self {
        Self { thread: None, ..self.clone() }
    }

    pub(super) fn thread(&self) -> Option<&Arc<Thread>> {
        self.thread.as_ref()
    }

    /// Returns the options that a call has if it does not set them.
    pub fn defaults(&self) -> &LockOptions {
        &self.defaults
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
