//! One connection to the file, used by one transaction at a time.

pub(crate) mod schema;
pub(crate) mod thread;

use std::{io, path::Path, time::Duration};

use dlock_core::Result;
use sqlx::SqliteConnection;
use tokio::{
    sync::{Mutex, MutexGuard},
    time::{Instant, sleep, timeout_at},
};

use crate::{
    error::{self, STORE},
    files,
    gate::{Pass, Turn},
    host::clock,
};
use schema::Site;

/// How long a transaction waits for other clients' transactions. Those take less than a millisecond each, unless the disk
/// stalls.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// How long a client that cannot queue at the gate pauses between two tries. Long, because hundreds of clients may try.
const DETOUR: Duration = Duration::from_millis(100);

/// A connection that is opened when it is needed.
pub(crate) struct Connection {
    site: Site,
    /// Empty while a transaction uses the connection, and after a transaction that failed.
    slot: Mutex<Option<Open>>,
}

struct Open {
    conn: SqliteConnection,
    file: FileId,
}

/// What a transaction wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads a snapshot. Nobody waits for it.
    Read,
    /// Changes the file. All other writers wait for it.
    Write,
}

/// A transaction. Rolled back if dropped before its [`commit`](Self::commit), because its connection is dropped with it: no
/// later transaction can find that connection in the middle of this one.
pub(crate) struct Tx<'a> {
    slot: MutexGuard<'a, Option<Open>>,
    open: Open,
    path: &'a Path,
    /// Held until the commit. The last field: a dropped transaction is rolled back before the next writer has its turn.
    turn: Option<Turn>,
    /// The time on the host's clock after the file was locked. From this time until the commit nobody else changes the file.
    pub(crate) now: i64,
}

impl Connection {
    pub(crate) fn new(site: Site) -> Self {
        Self { site, slot: Mutex::new(None) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.site.path
    }

    /// Opens the file. Waits for at most `patience` while other clients make or open it.
    pub(crate) async fn open(&self, patience: Duration) -> Result<()> {
        let (open, turn) = Open::new(&self.site, Instant::now() + patience).await?;
        *self.slot.lock().await = Some(open);
        drop(turn);
        Ok(())
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// [`is_busy`](error::is_busy) if other clients have kept the file locked for [`PATIENCE`].
    pub(crate) async fn begin(&self, access: Access) -> Result<Tx<'_>> {
        let limit = Instant::now() + PATIENCE;
        let path = self.path();
        let Ok(mut slot) = timeout_at(limit, self.slot.lock()).await else { return Err(error::busy(path)) };
        let mut turn = None;
        let mut open = match slot.take_if(|open| open.file.is_at(path)) {
            Some(open) => open,
            None => {
                let (open, taken) = Open::new(&self.site, limit).await?;
                turn = taken;
                open
            }
        };
        let begin = match access {
            Access::Read => {
                turn = None;
                "BEGIN"
            }
            Access::Write => {
                if turn.is_none() {
                    turn = match self.site.gate.pass(limit).await {
                        Ok(Pass::Turn(turn)) => Some(turn),
                        Ok(Pass::Ungated) => None,
                        Err(error) => {
                            *slot = Some(open);
                            return Err(error);
                        }
                    };
                }
                "BEGIN IMMEDIATE"
            }
        };
        while let Err(source) = sqlx::query(begin).execute(&mut open.conn).await {
            if !error::is_locked(&source) {
                return Err(error::explain(path, source));
            }
            if Instant::now() > limit {
                *slot = Some(open);
                return Err(error::busy(path));
            }
            if turn.is_none() && self.site.gate.is_there() {
                sleep(DETOUR).await;
            }
        }
        // Checked again, now that nobody else can write. If the path leads to another file by now, other clients use that
        // one: a grant in this one would exclude nobody.
        if !open.file.is_at(path) {
            return Err(replaced(path));
        }
        Ok(Tx { slot, open, path, turn, now: clock::now() })
    }
}

impl Open {
    /// Opens the file, and makes it if there is none.
    async fn new(site: &Site, limit: Instant) -> Result<(Self, Option<Turn>)> {
        let path = &site.path;
        files::make(path)?;
        files::check(path)?;
        let before = FileId::of(path).ok();
        let (conn, turn) = schema::open(site, limit).await?;
        let file = FileId::of(path).map_err(|error| STORE.unavailable(error))?;
        if before.is_some_and(|before| before != file) {
            return Err(replaced(path));
        }
        // Checked again, because meanwhile SQLite has opened or made the files beside it.
        files::check(path)?;
        Ok((Self { conn, file }, turn))
    }
}

fn replaced(path: &Path) -> dlock_core::Error {
    STORE.unavailable(format!("`{}` was deleted or replaced; it is opened again", path.display()))
}

impl Tx<'_> {
    /// The connection, for the statements of this transaction.
    pub(crate) fn conn(&mut self) -> &mut SqliteConnection {
        &mut self.open.conn
    }

    /// Turns an error of a statement of this transaction into dlock's.
    pub(crate) fn explain(&self, source: sqlx::Error) -> dlock_core::Error {
        error::explain(self.path, source)
    }

    /// Commits, and lets the next one write.
    ///
    /// # Errors
    /// After an error the outcome is unknown.
    pub(crate) async fn commit(mut self) -> Result<()> {
        let outcome = sqlx::query("COMMIT").execute(&mut self.open.conn).await;
        outcome.map_err(|source| self.explain(source))?;
        *self.slot = Some(self.open);
        drop(self.turn);
        Ok(())
    }
}

/// Which file a path leads to.
#[derive(PartialEq, Eq)]
struct FileId(u64, u64);

impl FileId {
    // By metadata, without opening the file: when this process closes any handle of the file, the kernel ends the locks
    // that SQLite has on it.
    #[cfg(unix)]
    fn of(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        path.symlink_metadata().map(|found| Self(found.dev(), found.ino()))
    }

    /// On other systems an open file cannot be deleted or replaced.
    #[cfg(not(unix))]
    fn of(path: &Path) -> io::Result<Self> {
        path.symlink_metadata().map(|_| Self(0, 0))
    }

    fn is_at(&self, path: &Path) -> bool {
        Self::of(path).is_ok_and(|found| found == *self)
    }
}
