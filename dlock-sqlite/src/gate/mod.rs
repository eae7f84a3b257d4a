//! The gate: the kernel's queue of writers, a lock on the folder of the doorbells.
//!
//! SQLite itself has no queue. A process that finds the file locked pauses and retries. If several
//! hundred processes do so, most of them find it locked for seconds. At the gate, each process
//! sleeps until it gets the lock. The gate only provides order. SQLite's own lock still decides
//! which process writes, also if a process passes a gate that stays closed.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use crate::{bell::BellDir, files};

/// Time without a change of the file after which waiting processes pass the gate without its lock.
/// A transaction takes a millisecond, but the process that has the lock may be suspended, or the
/// disk may stall.
const STALL_LIMIT: Duration = Duration::from_secs(1);

/// Time before the deadline of a call at which it passes the gate without the lock, although other
/// processes write. They may do so without the gate's lock, behind a process that is suspended. It
/// is enough for some attempts to get SQLite's own lock. At most half of the time of the call.
const UNGATED_TIME: Duration = Duration::from_secs(2);

/// Wait for the gate's lock after an earlier call has waited for almost all of its time.
const SHORT_WAIT: Duration = Duration::from_millis(50);

/// The gate of one store, as one client uses it.
pub(crate) struct Gate {
    dir: Option<Arc<BellDir>>,
    path: PathBuf,
    wait: Arc<Mutex<Option<SharedWait>>>,
}

/// The client's wait for the gate's lock, on a thread that may block. It cannot be cancelled, so
/// later calls join it. Otherwise a gate that stays closed would cost a thread for each call.
struct SharedWait {
    /// Sends the lock to the call that joined last. If that call has ended, the lock is released.
    caller: oneshot::Sender<GateLock>,
    wait_mode: WaitMode,
}

/// How long a call waits for the gate's lock, by what earlier calls have found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitMode {
    /// Until shortly before its deadline.
    Full,
    /// For [`SHORT_WAIT`], because an earlier call has waited until shortly before its deadline.
    Short,
    /// Not at all, because no process has written for [`STALL_LIMIT`].
    None,
}

/// The reply to a request for the gate's lock.
enum Reply {
    Locked(GateLock),
    /// Another process has the lock. The receiver gets it later, and an error if the kernel refuses
    /// the wait.
    Waiting {
        lock: oneshot::Receiver<GateLock>,
        wait_mode: WaitMode,
    },
    /// The store has no gate, or the kernel refuses to lock it.
    Refused,
}

impl Gate {
    pub(crate) fn new(dir: Option<Arc<BellDir>>, path: &Path) -> Self {
        Self { dir, path: path.to_owned(), wait: Arc::default() }
    }

    /// Waits for the gate's lock. Returns `None` if the store has no gate, if the processes at the
    /// gate do not write, or if the wait has taken most of the time until `deadline`. SQLite's lock
    /// alone decides then.
    ///
    /// Calls of one client must not overlap.
    ///
    /// # Cancel safety
    /// Safe. A lock that is acquired after the future was dropped is released at once.
    pub(crate) async fn pass(&self, deadline: Instant) -> Option<GateLock> {
        let mut lock = match self.request() {
            Reply::Locked(lock) => return Some(lock),
            Reply::Waiting { lock, wait_mode: WaitMode::Full } => lock,
            Reply::Waiting { lock, wait_mode: WaitMode::Short } => {
                return timeout(SHORT_WAIT, lock).await.ok()?.ok();
            }
            Reply::Waiting { wait_mode: WaitMode::None, .. } | Reply::Refused => return None,
        };
        let mut last_write = self.last_write();
        let time_left = deadline.saturating_duration_since(Instant::now());
        let give_up_at = deadline - UNGATED_TIME.min(time_left / 2);
        loop {
            let left = give_up_at.saturating_duration_since(Instant::now());
            if let Ok(result) = timeout(left.min(STALL_LIMIT), &mut lock).await {
                return result.ok();
            }
            let current = self.last_write();
            let wait_mode = if current == last_write && left >= STALL_LIMIT {
                WaitMode::None
            } else if left <= STALL_LIMIT {
                WaitMode::Short
            } else {
                last_write = current;
                continue;
            };
            // Later calls need not find out again.
            if let Some(wait) = &mut *self.wait.lock() {
                wait.wait_mode = wait_mode;
            }
            return None;
        }
    }

    /// Pauses for `pause` between two attempts without the gate's lock. Ends earlier if the lock
    /// can be acquired, and returns it. Does not pause if the store has no gate.
    ///
    /// # Cancel safety
    /// As [`pass`](Self::pass).
    pub(crate) async fn pause(&self, pause: Duration) -> Option<GateLock> {
        self.dir.as_ref()?;
        match self.request() {
            Reply::Locked(lock) => Some(lock),
            Reply::Waiting { lock, .. } => timeout(pause, lock).await.ok()?.ok(),
            Reply::Refused => {
                sleep(pause).await;
                None
            }
        }
    }

    /// Acquires the lock, or joins or begins the client's wait for it.
    fn request(&self) -> Reply {
        let Some(handle) = self.dir.as_ref().and_then(|dir| dir.reopen().ok()) else {
            return Reply::Refused;
        };
        match GateLock::acquire(handle, FlockOperation::NonBlockingLockExclusive) {
            Ok(lock) => {
                if let Some(wait) = &mut *self.wait.lock() {
                    wait.wait_mode = WaitMode::Full;
                }
                Reply::Locked(lock)
            }
            Err((Errno::WOULDBLOCK, handle)) => self.join(handle),
            Err(_) => Reply::Refused,
        }
    }

    fn join(&self, handle: OwnedFd) -> Reply {
        let (caller, lock) = oneshot::channel();
        let mut wait = self.wait.lock();
        if let Some(wait) = &mut *wait {
            wait.caller = caller;
            return Reply::Waiting { lock, wait_mode: wait.wait_mode };
        }
        *wait = Some(SharedWait { caller, wait_mode: WaitMode::Full });
        // The end of the wait needs this mutex.
        drop(wait);
        wait_for_lock(handle, WaitEnd(Some(Arc::clone(&self.wait))));
        Reply::Waiting { lock, wait_mode: WaitMode::Full }
    }

    /// Returns the time of the last write to SQLite's log, and the log's size. They differ after
    /// each commit.
    fn last_write(&self) -> Option<(SystemTime, u64)> {
        let found = fs::symlink_metadata(files::beside(&self.path, "-wal")).ok()?;
        Some((found.modified().ok()?, found.len()))
    }
}

/// Waits for the gate's lock on a thread that may block, and then ends the shared wait.
#[expect(
    clippy::disallowed_methods,
    reason = "the kernel's queue has no asynchronous form, and a wait may be abandoned in it"
)]
fn wait_for_lock(handle: OwnedFd, mut end: WaitEnd) {
    tokio::task::spawn_blocking(move || {
        let lock = GateLock::acquire(handle, FlockOperation::LockExclusive);
        if let (Ok(lock), Some(wait)) = (lock, end.take()) {
            wait.caller.send(lock).ok();
        }
    });
}

/// Ends the shared wait when it is dropped, also by a runtime that ends before the thread starts.
struct WaitEnd(Option<Arc<Mutex<Option<SharedWait>>>>);

impl WaitEnd {
    /// Ends the wait once. The next call then begins another one.
    fn take(&mut self) -> Option<SharedWait> {
        self.0.take()?.lock().take()
    }
}

impl Drop for WaitEnd {
    fn drop(&mut self) {
        self.take();
    }
}

/// The gate's lock. Released when it is dropped.
pub(crate) struct GateLock(OwnedFd);

impl GateLock {
    fn acquire(handle: OwnedFd, operation: FlockOperation) -> Result<Self, (Errno, OwnedFd)> {
        loop {
            match flock(&handle, operation) {
                Ok(()) => return Ok(Self(handle)),
                Err(Errno::INTR) => {}
                Err(error) => return Err((error, handle)),
            }
        }
    }
}

impl Drop for GateLock {
    fn drop(&mut self) {
        // Closing the handle may not release the lock, because a child process that is being
        // started has a copy of the handle until it executes its program.
        let _: io::Result<()> = flock(&self.0, FlockOperation::Unlock).map_err(io::Error::from);
    }
}
