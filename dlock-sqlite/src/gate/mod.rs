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

use dlock_core::Result;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use tokio::time::{Instant, timeout};

use crate::{bell::BellDir, error, files};

/// Time without a change of the file after which waiting processes pass the gate without its lock.
/// A transaction takes a millisecond, but the process that has the lock may be suspended, or the
/// disk may stall.
const STALL_LIMIT: Duration = Duration::from_secs(1);

/// The gate of one store.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    dir: Option<Arc<BellDir>>,
    path: PathBuf,
}

/// The result of passing the gate.
pub(crate) enum Pass {
    /// The gate's lock.
    Locked(GateLock),
    /// No lock. The store has no gate, or the process that has the gate's lock does not write.
    /// SQLite's lock alone decides.
    Ungated,
}

impl Gate {
    pub(crate) fn new(dir: Option<Arc<BellDir>>, path: &Path) -> Self {
        Self { dir, path: path.to_owned() }
    }

    /// Waits for the gate's lock.
    ///
    /// # Errors
    /// [`is_busy`](error::is_busy) if other clients kept writing and this one did not get the lock
    /// before `deadline`.
    ///
    /// # Cancel safety
    /// Safe. A lock that is acquired after the future was dropped is released at once.
    pub(crate) async fn pass(&self, deadline: Instant) -> Result<Pass> {
        let Some(handle) = self.dir.as_ref().and_then(|dir| dir.reopen().ok()) else {
            return Ok(Pass::Ungated);
        };
        let handle = match GateLock::acquire(handle, FlockOperation::NonBlockingLockExclusive) {
            Ok(lock) => return Ok(Pass::Locked(lock)),
            Err((Errno::WOULDBLOCK, handle)) => handle,
            Err(_) => return Ok(Pass::Ungated),
        };
        let mut waiting = wait_for_lock(handle);
        let mut last_write = self.last_write();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match timeout(left.min(STALL_LIMIT), &mut waiting).await {
                Ok(Ok(Some(lock))) => return Ok(Pass::Locked(lock)),
                Ok(_) => return Ok(Pass::Ungated),
                Err(_) if left <= STALL_LIMIT => return Err(error::busy(&self.path)),
                Err(_) => {
                    let current = self.last_write();
                    if current == last_write {
                        return Ok(Pass::Ungated);
                    }
                    last_write = current;
                }
            }
        }
    }

    /// Returns whether the store has a gate.
    pub(crate) fn exists(&self) -> bool {
        self.dir.is_some()
    }

    /// Returns the time of the last write to SQLite's log, and the log's size. They differ after
    /// each commit.
    fn last_write(&self) -> Option<(SystemTime, u64)> {
        let found = fs::symlink_metadata(files::beside(&self.path, "-wal")).ok()?;
        Some((found.modified().ok()?, found.len()))
    }
}

/// Waits for the gate's lock on a thread that may block. The wait cannot be cancelled. If its
/// result is dropped, the lock is acquired later and released at once.
#[expect(
    clippy::disallowed_methods,
    reason = "the kernel's queue has no asynchronous form, and a wait may be abandoned in it"
)]
fn wait_for_lock(handle: OwnedFd) -> tokio::task::JoinHandle<Option<GateLock>> {
    tokio::task::spawn_blocking(|| GateLock::acquire(handle, FlockOperation::LockExclusive).ok())
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
