//! Locks for code that is not async: the same locks, whose calls block the thread. A little over the usual length with its tests.
//!
//! ```
//! use std::time::Duration;
//!
//! # fn main() -> dlock::Result<()> {
//! let locks = dlock::blocking::connect("memory:")?;
//! let guard = locks.mutex("invoice/42").wait(Duration::from_secs(5)).lock()?;
//! println!("mine, with token {:?}", guard.token());
//! guard.release()?;
//! # Ok(()) }
//! ```
//!
//! A client lives [on a thread of its own](dlock_core::Locks::on_own_thread), which renews its locks whatever the program does.
//! Whoever drops the last clone of the client, or its last guard, waits for up to two seconds until the store has confirmed what
//! was let go. Calls may be made from any thread. In an async task they block its executor, as any blocking call does.

use std::{fmt, sync::Arc, time::Duration};

use dlock_core::{
    DistributedLock, Kind, LockOptions, LockState, LostReason, Registry, Result, Ticket, Token, Wait,
};
use pollster::block_on;

/// Connects to the store that a URL names, with the stores that are compiled in.
///
/// # Errors
/// As [`dlock::connect`](crate::connect), and [`Error::Unavailable`](crate::Error::Unavailable) if there is no thread to be had.
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

    /// An exclusive lock. Who comes next is the store's choice: the cheapest kind.
    pub fn mutex(&self, name: impl AsRef<str>) -> Lock {
        self.of(Kind::Mutex, name)
    }

    /// An exclusive lock, granted in order of arrival.
    pub fn fair(&self, name: impl AsRef<str>) -> Lock {
        self.of(Kind::Fair, name)
    }

    /// The shared side of a read/write lock.
    pub fn read(&self, name: impl AsRef<str>) -> Lock {
        self.of(Kind::Read, name)
    }

    /// The exclusive side of a read/write lock.
    pub fn write(&self, name: impl AsRef<str>) -> Lock {
        self.of(Kind::Write, name)
    }

    /// One permit of a semaphore: at most `limit` hold it at once.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Lock {
        Lock { lock: Arc::new(self.0.semaphore(name, limit)), options: LockOptions::new() }
    }

    fn of(&self, kind: Kind, name: impl AsRef<str>) -> Lock {
        Lock { lock: self.0.of(kind, name), options: LockOptions::new() }
    }

    /// Who holds a lock and who waits for it; `None` if nobody does either.
    ///
    /// # Errors
    /// As [`dlock::Locks::inspect`](dlock_core::Locks::inspect).
    pub fn inspect(&self, name: impl AsRef<str> + Send) -> Result<Option<LockState>> {
        block_on(self.0.inspect(name))
    }

    /// Takes back the lock that a ticket stands for.
    ///
    /// # Errors
    /// As [`dlock::Locks::resume`](dlock_core::Locks::resume).
    pub fn resume(&self, ticket: &Ticket) -> Result<Guard> {
        block_on(self.0.resume(ticket)).map(Guard)
    }

    /// Closes the client, and waits until its guards are dropped and all that was let go has left the store.
    pub fn close(&self) {
        block_on(self.0.close());
    }

    /// The same client, for async code on any executor.
    pub fn as_async(&self) -> &dlock_core::Locks {
        &self.0
    }
}

/// A lock of one name and kind, with the options with which it is taken. Cheap to clone; holds nothing until
/// [`lock`](Self::lock) is called.
#[derive(Clone)]
#[must_use = "it holds nothing until `lock` is called"]
pub struct Lock {
    lock: Arc<dyn DistributedLock>,
    options: LockOptions,
}

impl Lock {
    /// How long to wait, from the call. Default: for ever.
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.options = self.options.wait(wait);
        self
    }

    /// How long the store remembers the lock after it last heard of it; renewed meanwhile. Default 30 s, or the store's longest
    /// if that is less.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options = self.options.ttl(ttl);
        self
    }

    /// All options at once, in place of those that were set before.
    pub fn options(mut self, options: LockOptions) -> Self {
        self.options = options;
        self
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// As [`DistributedLock::lock`].
    pub fn lock(&self) -> Result<Guard> {
        block_on(self.lock.lock(&self.options)).map(Guard)
    }

    /// Tries once; `None` if somebody else holds it.
    ///
    /// # Errors
    /// As [`DistributedLock::try_lock`].
    pub fn try_lock(&self) -> Result<Option<Guard>> {
        Ok(block_on(self.lock.try_lock(&self.options))?.map(Guard))
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", self.lock.name()).field("options", &self.options).finish()
    }
}

/// A held lock. Dropping it releases the lock in the background; [`release`](Self::release) waits for the answer.
#[derive(Debug)]
#[must_use = "dropping a guard releases its lock; bind it to a name, not to `_`"]
pub struct Guard(dlock_core::Guard);

impl Guard {
    /// The fencing token of this hold, if the store has tokens.
    pub fn token(&self) -> Option<Token> {
        self.0.token()
    }

    /// Whether the lock is no longer known to be ours. Ask before each step of the work: nothing else tells a thread that is busy.
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    /// How long the lock is ours without another renewal; zero if it is lost.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Waits until the lock is lost, and says how: for a thread beside the work.
    pub fn lost(&self) -> LostReason {
        block_on(self.0.lost())
    }

    /// Releases the lock and waits until the store has confirmed it.
    ///
    /// # Errors
    /// As [`dlock::Guard::release`](dlock_core::Guard::release).
    pub fn release(self) -> Result<()> {
        block_on(self.0.release())
    }

    /// Lets the lock go on without this guard for `lasting` from now.
    ///
    /// # Errors
    /// As [`dlock::Guard::detach`](dlock_core::Guard::detach); after an error the lock is released.
    pub fn detach(self, lasting: Duration) -> Result<Ticket> {
        Ok(block_on(self.0.detach(lasting))?)
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
        let late = locks.mutex("x").wait(Duration::from_millis(20)).lock().unwrap_err();
        assert!(matches!(late, Error::Timeout { .. }), "{late:?}");
        let other = locks.clone();
        let waiting = thread::spawn(move || other.mutex("x").lock().unwrap().token());
        let first = held.token();
        held.release().unwrap();
        assert!(waiting.join().unwrap() > first, "the second holder has a greater token");
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
}
