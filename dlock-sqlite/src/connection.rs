//! One connection to the file, used by one transaction at a time.

pub(crate) mod schema;
pub(crate) mod thread;

use std::{io, path::Path, time::Duration};

use dlock_core::Result;
use sqlx::SqliteConnection;
use tokio::{
    sync::{Mutex, MutexGuard},
    time::{Instant, timeout_at},
};

use crate::{
    error::{self, STORE},
    files,
    gate::GateLock,
    host::clock,
};
use schema::StoreFile;

/// Time for which a transaction waits for the transactions of other clients. Each of those takes
/// less than a millisecond, unless the disk stalls.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause between two attempts of a client that does not have the gate's lock. It is long, because
/// hundreds of clients may retry.
const UNGATED_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A connection that is opened on first use, and again after a failure.
pub(crate) struct Connection {
    store: StoreFile,
    /// `None` while a transaction uses the connection, and after a transaction that failed.
    idle: Mutex<Option<OpenFile>>,
}

struct OpenFile {
    conn: SqliteConnection,
    id: FileId,
}

/// The access of a transaction to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads a snapshot. No other transaction waits for it.
    Read,
    /// Changes the file. All other writers wait for it.
    Write,
}

/// A transaction. If it is dropped before its [`commit`](Self::commit), it is rolled back, because
/// its connection is dropped with it. So a later transaction never uses a connection on which this
/// one is unfinished.
pub(crate) struct Tx<'a> {
    idle: MutexGuard<'a, Option<OpenFile>>,
    open: OpenFile,
    path: &'a Path,
    /// Held until the commit. Declared after `open`, so that a dropped transaction is rolled back
    /// before the next writer passes the gate.
    gate_lock: Option<GateLock>,
    /// Time of the host's clock after the file was locked. No other client changes the file between
    /// this time and the commit.
    pub(crate) now: i64,
}

impl Connection {
    pub(crate) fn new(store: StoreFile) -> Self {
        Self { store, idle: Mutex::new(None) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.store.path
    }

    /// Opens the file. Waits for at most `timeout` while other clients create or open it.
    pub(crate) async fn open(&self, timeout: Duration) -> Result<()> {
        let (open, gate_lock) = OpenFile::new(&self.store, Instant::now() + timeout).await?;
        *self.idle.lock().await = Some(open);
        drop(gate_lock);
        Ok(())
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// [`is_busy`](error::is_busy) if other clients have kept the file locked for [`LOCK_TIMEOUT`].
    pub(crate) async fn begin(&self, access: Access) -> Result<Tx<'_>> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        let path = self.path();
        let Ok(mut idle) = timeout_at(deadline, self.idle.lock()).await else {
            return Err(error::busy(path));
        };
        let mut gate_lock = None;
        let mut open = match idle.take_if(|open| open.id.is_at(path)) {
            Some(open) => open,
            None => {
                let (open, acquired) = OpenFile::new(&self.store, deadline).await?;
                gate_lock = acquired;
                open
            }
        };
        let begin = match access {
            Access::Read => {
                gate_lock = None;
                "BEGIN"
            }
            Access::Write => {
                if gate_lock.is_none() {
                    gate_lock = self.store.gate.pass(deadline).await;
                }
                "BEGIN IMMEDIATE"
            }
        };
        while let Err(source) = sqlx::query(begin).execute(&mut open.conn).await {
            if !error::is_locked(&source) {
                return Err(error::explain(path, source));
            }
            if Instant::now() > deadline {
                *idle = Some(open);
                return Err(error::busy(path));
            }
            if gate_lock.is_none() {
                gate_lock = self.store.gate.pause(UNGATED_RETRY_PAUSE).await;
            }
        }
        // Checked again, because no other client can write from now on. If the path now leads to
        // another file, other clients use that file, and a grant in this one would not exclude
        // them.
        if !open.id.is_at(path) {
            return Err(replaced(path));
        }
        Ok(Tx { idle, open, path, gate_lock, now: clock::now() })
    }
}

impl OpenFile {
    /// Opens the file, and creates it if it does not exist. Also returns the gate's lock, if the
    /// opening had to acquire it.
    async fn new(store: &StoreFile, deadline: Instant) -> Result<(Self, Option<GateLock>)> {
        let path = &store.path;
        files::make(path)?;
        files::check(path)?;
        let before = FileId::of(path).ok();
        let (conn, gate_lock) = schema::open(store, deadline).await?;
        let id = FileId::of(path).map_err(|error| STORE.unavailable(error))?;
        if before.is_some_and(|before| before != id) {
            return Err(replaced(path));
        }
        // Checked again, because SQLite has opened or created the files beside it since the first
        // check.
        files::check(path)?;
        Ok((Self { conn, id }, gate_lock))
    }
}

fn replaced(path: &Path) -> dlock_core::Error {
    STORE.unavailable(format!("`{}` was deleted or replaced; it is opened again", path.display()))
}

impl Tx<'_> {
    /// Returns the connection, for the statements of this transaction.
    pub(crate) fn conn(&mut self) -> &mut SqliteConnection {
        &mut self.open.conn
    }

    /// Converts an error of a statement of this transaction.
    pub(crate) fn explain(&self, source: sqlx::Error) -> dlock_core::Error {
        error::explain(self.path, source)
    }

    /// Commits, and lets the next client write.
    ///
    /// # Errors
    /// After an error the outcome is unknown.
    pub(crate) async fn commit(mut self) -> Result<()> {
        let result = sqlx::query("COMMIT").execute(&mut self.open.conn).await;
        result.map_err(|source| self.explain(source))?;
        *self.idle = Some(self.open);
        drop(self.gate_lock);
        Ok(())
    }
}

/// The identity of the file to which a path leads: device and inode.
#[derive(PartialEq, Eq)]
struct FileId(u64, u64);

impl FileId {
    // Reads the metadata without opening the file. When this process closes any handle of the file,
    // the kernel releases the locks that SQLite has on it.
    #[cfg(unix)]
    fn of(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        path.symlink_metadata().map(|found| Self(found.dev(), found.ino()))
    }

    /// Returns the same identity for all files, because an open file cannot be deleted or replaced
    /// on other systems.
    #[cfg(not(unix))]
    fn of(path: &Path) -> io::Result<Self> {
        path.symlink_metadata().map(|_| Self(0, 0))
    }

    fn is_at(&self, path: &Path) -> bool {
        Self::of(path).is_ok_and(|found| found == *self)
    }
}
