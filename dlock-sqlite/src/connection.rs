//! One connection to the file, used by one transaction at a time.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use dlock_core::{Result, Source};
use sqlx::SqliteConnection;
use tokio::{
    sync::{Mutex, MutexGuard},
    time::Instant,
};

use crate::{clock, error, schema};

/// How long a transaction waits for those of others, which take less than a millisecond unless the disk stalls.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection that is opened when it is needed.
pub(crate) struct Connection {
    path: PathBuf,
    /// Empty while a transaction has it, and after one that did not end well.
    slot: Mutex<Option<Open>>,
}

struct Open {
    conn: SqliteConnection,
    file: FileId,
}

/// What a transaction wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads a snapshot and keeps nobody waiting.
    Read,
    /// Changes the file, alone.
    Write,
}

/// A transaction. Dropped before its [`commit`](Self::commit), at whatever await, it never was: its connection is
/// closed with it, so that nobody comes upon it half done.
pub(crate) struct Tx<'a> {
    slot: MutexGuard<'a, Option<Open>>,
    open: Open,
    path: &'a Path,
    /// The host's clock after the file was locked: nobody changes it between this moment and the commit.
    pub(crate) now: i64,
}

impl Connection {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, slot: Mutex::new(None) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) async fn begin(&self, access: Access) -> Result<Tx<'_>> {
        let mut slot = self.slot.lock().await;
        let mut open = match slot.take() {
            Some(open) if open.file.is_at(&self.path) => open,
            _ => Open::new(&self.path).await?,
        };
        let begin = match access {
            Access::Read => "BEGIN",
            Access::Write => "BEGIN IMMEDIATE",
        };
        let since = Instant::now();
        while let Err(source) = sqlx::query(begin).execute(&mut open.conn).await {
            let answered = matches!(source, sqlx::Error::Database(_));
            let error = error::explain(&self.path, source);
            if !answered || !error.is_transient() || since.elapsed() > PATIENCE {
                return Err(error);
            }
        }
        // Asked again now that it is locked: a grant in a file that others no longer see would be a lie.
        if !open.file.is_at(&self.path) {
            return Err(replaced(&self.path));
        }
        Ok(Tx { slot, open, path: &self.path, now: clock::now() })
    }
}

impl Open {
    async fn new(path: &Path) -> Result<Self> {
        let before = FileId::of(path).ok();
        let conn = schema::open(path).await?;
        let file = FileId::of(path).map_err(|error| error::unavailable(Source::from(error)))?;
        if before.is_some_and(|before| before != file) {
            return Err(replaced(path));
        }
        Ok(Self { conn, file })
    }
}

fn replaced(path: &Path) -> dlock_core::Error {
    error::unavailable(format!("`{}` was deleted or replaced; it is opened again", path.display()))
}

impl Tx<'_> {
    /// What the statements of this transaction run on.
    pub(crate) fn conn(&mut self) -> &mut SqliteConnection {
        &mut self.open.conn
    }

    /// The error of a statement of this transaction.
    pub(crate) fn explain(&self, source: sqlx::Error) -> dlock_core::Error {
        error::explain(self.path, source)
    }

    /// Makes it so.
    ///
    /// # Errors
    /// Whether it is so is unknown.
    pub(crate) async fn commit(mut self) -> Result<()> {
        let outcome = sqlx::query("COMMIT").execute(&mut self.open.conn).await;
        outcome.map_err(|source| self.explain(source))?;
        *self.slot = Some(self.open);
        Ok(())
    }
}

/// Which file a path leads to.
#[derive(PartialEq, Eq)]
struct FileId(u64, u64);

impl FileId {
    // Only asks for metadata: closing a file of one's own would end SQLite's locks on it.
    #[cfg(unix)]
    fn of(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        path.metadata().map(|found| Self(found.dev(), found.ino()))
    }

    /// Elsewhere an open file cannot be deleted or replaced.
    #[cfg(not(unix))]
    fn of(path: &Path) -> io::Result<Self> {
        path.metadata().map(|_| Self(0, 0))
    }

    fn is_at(&self, path: &Path) -> bool {
        Self::of(path).is_ok_and(|found| found == *self)
    }
}
