//! Locks for code that is not async: the same locks, with calls that block the thread.
//!
//! ```
//! use std::time::Duration;
//!
//! # fn main() -> dlock::Result<()> {
//! let locks = dlock::blocking::connect("memory:")?;
//! let guard = locks.mutex("invoice/42").wait(Duration::from_secs(5)).lock()?;
//! println!("lock held, token {:?}", guard.token());
//! guard.release()?;
//! # Ok(()) }
//! ```
//!
//! A client runs [on a thread of its own](dlock_core::Locks::on_own_thread), which renews its locks
//! while the other threads are busy. Dropping the last clone of the client, or its last guard,
//! blocks until the store has confirmed the releases, usually for two seconds at most. Calls may be
//! made from any thread. In an async task they block the executor, as any blocking call does.

mod once;

use std::{fmt, sync::Arc, time::Duration};

use dlock_core::{
    ClaimId, DistributedLock, Kind, LockName, LockOptions, LockState, Owner, Registry, Result, Ticket, Token,
    Wait,
};
use pollster::block_on;
use tokio_util::sync::CancellationToken;

pub use once::Occurrence;

/// Connects to the store of a URL. Supports the stores that are compiled in.
///
/// # Errors
/// As [`dlock::connect`](crate::connect), and [`Error::Unavailable`](crate::Error::Unavailable) if
/// the client's thread cannot be started.
pub fn connect(url: &str) -> Result<Locks> {
    Locks::connect(&crate::registry(), url)
}

/// A connected client. Cheap to clone; clones are the same client.
#[derive(Clone, Debug)]
pub struct Locks(dlock_core::Locks);

impl Locks {
    /// Connects to a store of a registry.
    ///
    /// # Errors
    /// As [`connect`].
    pub fn connect(registry: &Registry, url: &str) -> Result<Self> {
        block_on(registry.connect_on_own_thread(url)).map(Self)
    }

    /// Returns an exclusive lock. The store chooses the next holder. This is the cheapest kind.
    pub fn mutex(&self, name: impl AsRef<str>) -> Lock {
        self.of(Kind::Mutex, name)
    }

    /// Returns an exclusive lock that is granted in order of arrival.
    pub fn fair(&self, name: impl AsRef<str>) -> Lock {
        self.of(Kind::Fair, name)
    }

    /// Returns the shared side of a read/write lock.
    pub fn read(&self, name: impl AsRef<str>) -> Lock {
        self.of(Kind::Read, name)
    }

    /// Returns the exclusive side of a read/write lock.
    pub fn write(&self, name: impl AsRef<str>) -> Lock {
        self.of(Kind::Write, name)
    }

    /// Returns a semaphore, of which at most `limit` holders have a permit at once.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Lock {
        let lock = Arc::new(self.0.semaphore(name, limit));
        Lock { locks: self.0.clone(), lock, options: LockOptions::new() }
    }

    fn of(&self, kind: Kind, name: impl AsRef<str>) -> Lock {
        Lock { locks: self.0.clone(), lock: self.0.of(kind, name), options: LockOptions::new() }
    }

    /// Returns the holders and the waiters of a lock. `None` if there are neither.
    ///
    /// # Errors
    /// As [`dlock::Locks::inspect`](dlock_core::Locks::inspect).
    pub fn inspect(&self, name: impl AsRef<str> + Send) -> Result<Option<LockState>> {
        block_on(self.0.inspect(name))
    }

    /// Returns the locks in the store whose names begin with `prefix`, sorted by name. The result
    /// is a snapshot, and the call may be expensive.
    ///
    /// # Errors
    /// As [`dlock::Locks::list`](dlock_core::Locks::list).
    pub fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        block_on(self.0.list(prefix))
    }

    /// Takes a lock away from its holder, whose guard is then lost. Returns whether the lock was
    /// held.
    ///
    /// # Errors
    /// As [`dlock::Locks::force_release`](dlock_core::Locks::force_release).
    pub fn force_release(&self, name: impl AsRef<str> + Send) -> Result<bool> {
        block_on(self.0.force_release(name))
    }

    /// Takes over the lock of a ticket.
    ///
    /// # Errors
    /// As [`dlock::Locks::resume`](dlock_core::Locks::resume).
    pub fn resume(&self, ticket: &Ticket) -> Result<Guard> {
        block_on(self.0.resume(ticket)).map(Guard::new)
    }

    /// Releases the lock of a ticket.
    ///
    /// # Errors
    /// As [`dlock::Locks::release`](dlock_core::Locks::release).
    pub fn release(&self, ticket: &Ticket) -> Result<()> {
        block_on(self.0.release(ticket))
    }

    /// Closes the client. Waits until its guards have been dropped and the store has confirmed all
    /// releases.
    pub fn close(&self) {
        block_on(self.0.close());
    }

    /// Returns the same client for async code on any executor.
    pub fn as_async(&self) -> &dlock_core::Locks {
        &self.0
    }
}

/// A lock of one name and kind, with the options for its acquisition. Cheap to clone. It is not
/// held until [`lock`](Self::lock) is called.
#[derive(Clone)]
#[must_use = "the lock is not held until `lock` is called"]
pub struct Lock {
    locks: dlock_core::Locks,
    lock: Arc<dyn DistributedLock>,
    options: LockOptions,
}

impl Lock {
    /// Sets the wait limit, which counts from the call of [`lock`](Self::lock). Default: no limit.
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.options = self.options.wait(wait);
        self
    }

    /// Sets the time after which the store deletes a claim that is not renewed. A held lock is
    /// renewed. Default: 30 s, or the store's longest ttl if that is less.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options = self.options.ttl(ttl);
        self
    }

    /// Sets all options, and replaces those that were set before.
    pub fn options(mut self, options: LockOptions) -> Self {
        self.options = options;
        self
    }

    /// Returns the same lock for `owner`, which may acquire it again while it holds it. A semaphore
    /// has no owners. It is returned unchanged, and a second call takes a second permit.
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        let (locks, name) = (&self.locks, self.lock.name());
        let owned: Arc<dyn DistributedLock> = match self.lock.kind() {
            Kind::Mutex => Arc::new(locks.mutex(name).owned_by(owner)),
            Kind::Fair => Arc::new(locks.fair(name).owned_by(owner)),
            Kind::Read => Arc::new(locks.rwlock(name).read().owned_by(owner)),
            Kind::Write => Arc::new(locks.rwlock(name).write().owned_by(owner)),
            _ => return self,
        };
        self.lock = owned;
        self
    }

    /// Waits for the lock and returns its guard.
    ///
    /// # Errors
    /// As [`DistributedLock::lock`].
    pub fn lock(&self) -> Result<Guard> {
        block_on(self.lock.lock(&self.options)).map(Guard::new)
    }

    /// Acquires the lock only if it is free. Returns `None` if it is busy.
    ///
    /// # Errors
    /// As [`DistributedLock::try_lock`].
    pub fn try_lock(&self) -> Result<Option<Guard>> {
        Ok(block_on(self.lock.try_lock(&self.options))?.map(Guard::new))
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", self.lock.name()).field("options", &self.options).finish()
    }
}

/// A held lock. Dropping it releases the lock in the background. [`release`](Self::release) waits
/// for the store's reply.
#[derive(Debug)]
#[must_use = "dropping a guard releases its lock; bind it to a name, not to `_`"]
pub struct Guard {
    guard: dlock_core::Guard,
    /// Cancelled when this guard is dropped, which ends the waits of its signals.
    dropped: CancelOnDrop,
}

/// Cancels its token when it is dropped.
#[derive(Debug)]
struct CancelOnDrop(CancellationToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Guard {
    fn new(guard: dlock_core::Guard) -> Self {
        Self { guard, dropped: CancelOnDrop(CancellationToken::new()) }
    }

    /// Returns the lock's name.
    pub fn name(&self) -> &LockName {
        self.guard.name()
    }

    /// Returns the unique id of this hold.
    pub fn id(&self) -> Option<ClaimId> {
        self.guard.id()
    }

    /// Returns the number of guards that share this hold. Above 1 only if an [`Owner`] has
    /// re-entered.
    pub fn hold_count(&self) -> usize {
        self.guard.hold_count()
    }

    /// Returns the fencing token of this hold, if the store has tokens.
    pub fn token(&self) -> Option<Token> {
        self.guard.token()
    }

    /// Returns whether the lock is lost. Call it before each step of the work, because a busy
    /// thread is not notified of a loss.
    pub fn is_lost(&self) -> bool {
        self.guard.is_lost()
    }

    /// Returns the time for which the lock is held without another renewal. Zero if it is lost.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Returns a signal of the loss for another thread. The other thread needs no guard. Its wait
    /// also ends when the guard is dropped.
    ///
    /// ```
    /// use std::thread;
    ///
    /// # fn main() -> dlock::Result<()> {
    /// let locks = dlock::blocking::connect("memory:")?;
    /// let guard = locks.mutex("invoice/42").lock()?;
    /// let signal = guard.lost_signal();
    /// let watching = thread::spawn(move || {
    ///     if signal.wait() {
    ///         // the lock is lost: stop the work
    ///     }
    /// });
    /// // the work
    /// guard.release()?;
    /// watching.join().ok();
    /// # Ok(()) }
    /// ```
    pub fn lost_signal(&self) -> LostSignal {
        LostSignal { lost: self.guard.lost_signal(), dropped: self.dropped.0.clone() }
    }

    /// Cancels the minimum time of [`at_least`](LockOptions::at_least), so that the lock is free as
    /// soon as this guard is released or dropped.
    pub fn clear_at_least(&self) {
        self.guard.clear_at_least();
    }

    /// Turns an exclusive hold into a read hold. No other writer can acquire the lock in between.
    ///
    /// # Errors
    /// As [`dlock::Guard::downgrade`](dlock_core::Guard::downgrade); after an error the lock is
    /// released.
    pub fn downgrade(self) -> Result<Self> {
        let Self { guard, dropped } = self;
        Ok(Self { guard: block_on(guard.downgrade())?, dropped })
    }

    /// Releases the lock and waits until the store has confirmed it.
    ///
    /// # Errors
    /// As [`dlock::Guard::release`](dlock_core::Guard::release).
    pub fn release(self) -> Result<()> {
        block_on(self.guard.release())
    }

    /// Keeps the lock held without this guard for `lasting` from now. Returns the ticket that
    /// resumes or releases it.
    ///
    /// # Errors
    /// As [`dlock::Guard::detach`](dlock_core::Guard::detach); after an error the lock is released.
    pub fn detach(self, lasting: Duration) -> Result<Ticket> {
        Ok(block_on(self.guard.detach(lasting))?)
    }
}

/// Reports the loss of a lock to a thread without its guard, see [`Guard::lost_signal`]. Clones are
/// the same signal.
#[derive(Clone, Debug)]
pub struct LostSignal {
    lost: dlock_core::LostSignal,
    dropped: CancellationToken,
}

impl LostSignal {
    /// Returns whether the keeper or the guard has detected a loss.
    pub fn is_lost(&self) -> bool {
        self.lost.is_lost()
    }

    /// Blocks until the lock is lost, or until its guard is released, detached or dropped. Returns
    /// whether the lock was lost.
    pub fn wait(&self) -> bool {
        block_on(self.dropped.run_until_cancelled(self.lost.lost()));
        self.is_lost()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::Error;

    #[test]
    fn threads_exclude_each_other_and_are_woken() {
        let locks = connect("memory:").unwrap();
        let held = locks.mutex("x").lock().unwrap();
        assert!(locks.mutex("x").try_lock().unwrap().is_none());
        let error = locks.mutex("x").wait(Duration::from_millis(20)).lock().unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
        let other = locks.clone();
        let waiting = thread::spawn(move || other.mutex("x").lock().unwrap().token());
        let first = held.token();
        held.release().unwrap();
        assert!(waiting.join().unwrap() > first, "the second holder's token is not greater");
    }

    #[test]
    fn a_ticket_a_permit_and_a_reader_are_there_too() {
        let locks = connect("memory:").unwrap();
        let ticket = locks.fair("x").lock().unwrap().detach(Duration::from_secs(600)).unwrap();
        assert_eq!(locks.inspect("x").unwrap().unwrap().holders.len(), 1);
        locks.resume(&ticket).unwrap().release().unwrap();
        let permits =
            [locks.semaphore("pool", 2).lock().unwrap(), locks.semaphore("pool", 2).lock().unwrap()];
        assert!(locks.semaphore("pool", 2).try_lock().unwrap().is_none());
        let readers = [locks.read("y").lock().unwrap(), locks.read("y").lock().unwrap()];
        assert!(locks.write("y").try_lock().unwrap().is_none());
        drop((permits, readers));
        locks.close();
    }

    #[test]
    fn a_thread_beside_the_work_learns_of_the_loss_and_of_the_release() {
        let locks = connect("memory:").unwrap();
        for is_lost in [false, true] {
            let guard = locks.mutex("x").lock().unwrap();
            let signal = guard.lost_signal();
            let watching = thread::spawn({
                let signal = signal.clone();
                move || signal.wait()
            });
            assert!(!signal.is_lost());
            if is_lost {
                assert!(locks.force_release("x").unwrap());
                assert!(signal.wait(), "the wait ended without a loss, although the guard exists");
                drop(guard);
            } else {
                guard.release().unwrap();
            }
            assert_eq!(watching.join().unwrap(), is_lost);
        }
    }

    #[test]
    fn tickets_lists_owners_and_downgrades_are_those_of_the_async_face() {
        let locks = connect("memory:").unwrap();
        let ticket = locks.mutex("a/1").lock().unwrap().detach(Duration::from_secs(600)).unwrap();
        assert_eq!(locks.list("a/").unwrap().len(), 1);
        locks.release(&ticket).unwrap();
        assert!(matches!(locks.release(&ticket), Err(Error::Lost { .. })), "the ticket was used twice");
        assert!(locks.list("a/").unwrap().is_empty());
        assert!(!locks.force_release("a/1").unwrap());

        let owner = Owner::new();
        let mine = locks.write("b").owned_by(&owner);
        let (outer, inner) =
            (mine.lock().unwrap(), mine.try_lock().unwrap().expect("the owner may re-enter"));
        assert_eq!((inner.hold_count(), inner.id()), (2, outer.id()));
        assert!(locks.write("b").try_lock().unwrap().is_none());
        inner.release().unwrap();
        let reading = outer.downgrade().unwrap();
        let beside = locks.read("b").try_lock().unwrap().expect("readers share the lock");
        assert!(locks.write("b").try_lock().unwrap().is_none());
        drop((reading, beside));
        locks.close();
    }
}
