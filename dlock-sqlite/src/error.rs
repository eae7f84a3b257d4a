//! What SQLite's errors mean to the caller: the one place that decides.

use std::path::Path;

use dlock_core::{
    Error,
    driver::{StoreErrors, Verdict},
};

use crate::{files, host};

/// Makes errors that call the store `sqlite`, as the URL's scheme does.
pub(crate) const STORE: StoreErrors = StoreErrors::new("sqlite");

/// Other clients kept the file locked. Nothing of the call has happened.
#[derive(Debug, thiserror::Error)]
#[error("`{path}` is busy: {why}")]
struct Busy {
    path: String,
    why: String,
}

/// The error of a call on the file at `path`.
pub(crate) fn explain(path: &Path, source: sqlx::Error) -> Error {
    STORE.explain(verdict(path, &source), source)
}

/// The error of a transaction that could not begin.
pub(crate) fn busy(path: &Path) -> Error {
    let files = ["", "-shm", "-bells"].map(|end| files::beside(path, end));
    let why = match host::writer(&files) {
        Some((pid, true)) => format!(
            "process {pid} is stopped and keeps it locked: let it go on with `kill -CONT {pid}`, or kill it"
        ),
        Some((pid, false)) => format!("process {pid}, or others before it, have kept it locked for seconds"),
        None => "other processes have kept it locked for seconds".to_owned(),
    };
    STORE.unavailable(Busy { path: path.display().to_string(), why })
}

/// Whether SQLite found the file locked.
pub(crate) fn is_locked(error: &sqlx::Error) -> bool {
    code(error).is_some_and(|code| LOCKED.contains(&(code & 0xff)))
}

/// Whether the error says that others kept the file locked.
pub(crate) fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Unavailable { source, .. } if source.is::<Busy>())
}

/// SQLite's codes for a file that another connection has locked: BUSY, LOCKED and PROTOCOL.
const LOCKED: [i32; 3] = [5, 6, 15];

fn code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

fn verdict(path: &Path, error: &sqlx::Error) -> Verdict {
    let told = |advice: &str| format!("`{}` {advice}", path.display()).into();
    let later = |advice| Verdict::Transient(told(advice));
    let unwritable = |advice| Verdict::Unwritable(told(advice));
    let never = |advice| Verdict::Permanent(told(advice));
    if matches!(error, sqlx::Error::WorkerCrashed) {
        return later("lost its worker thread; it is opened again");
    }
    let code = code(error);
    // The low byte is the kind of failure, the rest its circumstances.
    match code.map(|code| code & 0xff) {
        Some(kind) if LOCKED.contains(&kind) => {
            later("is busy: another process has kept it locked for seconds")
        }
        Some(7) => unwritable("cannot be used: the process is out of memory"),
        Some(8) if host::is_read_only(path) => unwritable("cannot be written: its file system is read-only"),
        Some(3 | 8 | 23) => never(
            "cannot be written by this user: to share a store, make it with `dlock init --group GROUP FOLDER/locks.db`",
        ),
        // Out of memory, or of space for the file `-shm`: NOMEM, SHMSIZE and SHMMAP.
        Some(10) if matches!(code, Some(3082 | 4874 | 5386)) => {
            unwritable("cannot grow: its disk or the memory is full")
        }
        Some(10) => never("cannot be read or written: check its disk"),
        Some(11) => {
            never("is damaged: stop the processes that use it, and delete it; locks held in it are lost")
        }
        Some(13) => unwritable("cannot grow: its disk is full"),
        Some(14) => never(
            "cannot be opened: check that its directory exists and is writable for this user; to share a store, make \
             it with `dlock init --group GROUP FOLDER/locks.db`",
        ),
        Some(26) => never("is not an SQLite database: choose another path"),
        _ => never("failed"),
    }
}
