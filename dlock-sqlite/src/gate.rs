//! Where writers queue: in the kernel, for a lock on the folder of the doorbells.
//!
//! SQLite itself has no queue. Who finds the file locked pauses and tries again, and of some hundred processes that do so
//! most find it locked for seconds. Here each sleeps until it is its turn. SQLite's own lock decides all the same: who
//! passes by a gate that does not open can only be refused by it.

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

/// How long the file may stay as it is before those at the gate no longer believe that whoever passed it is at work. A
/// transaction takes a millisecond, but a process may be stopped in it, or a disk stall.
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
    /// There is no gate here, or nobody moves on at it: SQLite alone decides.
    Ungated,
}

impl Gate {
    pub(crate) fn new(dir: Option<Arc<Dir>>, path: &Path) -> Self {
        Self { dir, path: path.to_owned() }
    }

    /// Waits for the turn to write.
    ///
    /// # Errors
    /// That it did not come until `limit`, though others had theirs.
    ///
    /// # Cancel safety
    /// Safe: a turn that comes later is passed on.
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

    /// Whether there is one here.
    pub(crate) fn is_there(&self) -> bool {
        self.dir.is_some()
    }

    /// When the file was last changed, by its log.
    fn last_write(&self) -> Option<(SystemTime, u64)> {
        let found = fs::symlink_metadata(files::beside(&self.path, "-wal")).ok()?;
        Some((found.modified().ok()?, found.len()))
    }
}

/// Waits on a thread that may block. It cannot be called off: if nobody waits for it any more, it takes its turn and
/// passes it on.
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
        // Not by closing alone: a child that is being started may have the handle too, for a moment.
        let _: io::Result<()> = flock(&self.0, FlockOperation::Unlock).map_err(io::Error::from);
    }
}
