//! The gate: where writers queue, in the kernel, for a lock on the folder of the doorbells.
//!
//! SQLite itself has no queue. A process that finds the file locked pauses and tries again. If some hundred processes do so,
//! most of them find it locked for seconds. At the gate each process sleeps until it is its turn. The gate only keeps order:
//! SQLite's own lock still decides who writes, also for a process that goes past a gate that does not open.

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

use crate::{bell::Dir, error, files};

/// If the file does not change for so long, those who wait at the gate go past it. A transaction takes a millisecond, but the
/// process whose turn it is may be stopped, or the disk may stall.
const STANDSTILL: Duration = Duration::from_secs(1);

/// The gate of one store.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    dir: Option<Arc<Dir>>,
    path: PathBuf,
}

/// What passing the gate gave.
pub(crate) enum Pass {
    /// The turn to write, until this is dropped.
    Turn(Turn),
    /// There is no gate here, or the one whose turn it is does not write: SQLite's lock alone decides.
    Ungated,
}

impl Gate {
    pub(crate) fn new(dir: Option<Arc<Dir>>, path: &Path) -> Self {
        Self { dir, path: path.to_owned() }
    }

    /// Waits for the turn to write.
    ///
    /// # Errors
    /// [`is_busy`](error::is_busy) if the turn did not come until `limit`, though other clients wrote meanwhile.
    ///
    /// # Cancel safety
    /// Safe. A turn that comes after the future was dropped is given back at once.
    pub(crate) async fn pass(&self, limit: Instant) -> Result<Pass> {
        let Some(handle) = self.dir.as_ref().and_then(|dir| dir.reopen().ok()) else {
            return Ok(Pass::Ungated);
        };
        let handle = match Turn::take(handle, FlockOperation::NonBlockingLockExclusive) {
            Ok(turn) => return Ok(Pass::Turn(turn)),
            Err((Errno::WOULDBLOCK, handle)) => handle,
            Err(_) => return Ok(Pass::Ungated),
        };
        let mut waiting = wait(handle);
        let mut seen = self.last_write();
        loop {
            let left = limit.saturating_duration_since(Instant::now());
            match timeout(left.min(STANDSTILL), &mut waiting).await {
                Ok(Ok(Some(turn))) => return Ok(Pass::Turn(turn)),
                Ok(_) => return Ok(Pass::Ungated),
                Err(_) if left <= STANDSTILL => return Err(error::busy(&self.path)),
                Err(_) => {
                    let now = self.last_write();
                    if now == seen {
                        return Ok(Pass::Ungated);
                    }
                    seen = now;
                }
            }
        }
    }

    /// Whether there is a gate here.
    pub(crate) fn is_there(&self) -> bool {
        self.dir.is_some()
    }

    /// When SQLite's log was last written, and its size: different after each commit.
    fn last_write(&self) -> Option<(SystemTime, u64)> {
        let found = fs::symlink_metadata(files::beside(&self.path, "-wal")).ok()?;
        Some((found.modified().ok()?, found.len()))
    }
}

/// Waits for the turn on a thread that may block. This wait cannot be cancelled: if nobody waits for its result any more, the
/// turn is taken when it comes, and given back at once.
#[expect(
    clippy::disallowed_methods,
    reason = "the kernel's queue has no asynchronous form, and it may be left in it"
)]
fn wait(handle: OwnedFd) -> tokio::task::JoinHandle<Option<Turn>> {
    tokio::task::spawn_blocking(|| Turn::take(handle, FlockOperation::LockExclusive).ok())
}

/// The turn to write; it ends when this is dropped.
pub(crate) struct Turn(OwnedFd);

impl Turn {
    fn take(handle: OwnedFd, how: FlockOperation) -> Result<Self, (Errno, OwnedFd)> {
        loop {
            match flock(&handle, how) {
                Ok(()) => return Ok(Self(handle)),
                Err(Errno::INTR) => {}
                Err(error) => return Err((error, handle)),
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Closing the handle alone may not unlock it: a child process that is being started may have a copy for a moment.
        let _: io::Result<()> = flock(&self.0, FlockOperation::Unlock).map_err(io::Error::from);
    }
}
