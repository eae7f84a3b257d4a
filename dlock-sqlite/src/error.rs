//! What SQLite's errors mean to the caller: the one place that decides.

use std::path::Path;

use dlock_core::{Error, driver::Source};

use crate::{files, host};

/// The store's name in errors, which is the scheme of its URL.
pub(crate) const STORE: &str = "sqlite";

/// Why a call failed, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("`{path}` {advice}")]
struct Trouble {
    path: String,
    advice: &'static str,
    source: sqlx::Error,
}

/// Other clients kept the file locked. Nothing of the call has happened.
#[derive(Debug, thiserror::Error)]
#[error("`{path}` is busy: {why}")]
struct Busy {
    path: String,
    why: String,
}

/// The error of a call on the file at `path`.
pub(crate) fn explain(path: &Path, source: sqlx::Error) -> Error {
    let verdict = verdict(path, &source);
    let (Verdict::Later(advice) | Verdict::Unwritable(advice) | Verdict::Never(advice)) = verdict;
    let source = Box::new(Trouble { path: path.display().to_string(), advice, source });
    match verdict {
        Verdict::Later(_) => unavailable(source),
        Verdict::Unwritable(_) => unwritable(source),
        Verdict::Never(_) => Error::Refused { store: STORE, source },
    }
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
    unavailable(Busy { path: path.display().to_string(), why })
}

/// Whether SQLite found the file locked.
pub(crate) fn is_locked(error: &sqlx::Error) -> bool {
    code(error).is_some_and(|code| LOCKED.contains(&(code & 0xff)))
}

/// Whether the error says that others kept the file locked.
pub(crate) fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Unavailable { source, .. } if source.is::<Busy>())
}

/// The file did not answer; asking again may help.
pub(crate) fn unavailable(source: impl Into<Source>) -> Error {
    Error::Unavailable { store: STORE, source: source.into() }
}

/// The file cannot be written for now; asking again helps once that is over.
pub(crate) fn unwritable(source: impl Into<Source>) -> Error {
    Error::Unwritable { store: STORE, source: source.into() }
}

/// Whether asking again may help, and what to do.
enum Verdict {
    Later(&'static str),
    Unwritable(&'static str),
    Never(&'static str),
}

/// SQLite's codes for a file that another connection has locked: BUSY, LOCKED and PROTOCOL.
const LOCKED: [i32; 3] = [5, 6, 15];

fn code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

fn verdict(path: &Path, error: &sqlx::Error) -> Verdict {
    if matches!(error, sqlx::Error::WorkerCrashed) {
        return Verdict::Later("lost its worker thread; it is opened again");
    }
    let code = code(error);
    // The low byte is the kind of failure, the rest its circumstances.
    match code.map(|code| code & 0xff) {
        Some(kind) if LOCKED.contains(&kind) => {
            Verdict::Later("is busy: another process has kept it locked for seconds")
        }
        Some(7) => Verdict::Unwritable("cannot be used: the process is out of memory"),
        Some(8) if host::is_read_only(path) => {
            Verdict::Unwritable("cannot be written: its file system is read-only")
        }
        Some(3 | 8 | 23) => Verdict::Never(
            "cannot be written by this user: to share a store, make it with `dlock init --group GROUP FOLDER/locks.db`",
        ),
        // Out of memory, or of space for the file `-shm`: NOMEM, SHMSIZE and SHMMAP.
        Some(10) if matches!(code, Some(3082 | 4874 | 5386)) => {
            Verdict::Unwritable("cannot grow: its disk or the memory is full")
        }
        Some(10) => Verdict::Never("cannot be read or written: check its disk"),
        Some(11) => Verdict::Never(
            "is damaged: stop the processes that use it, and delete it; locks held in it are lost",
        ),
        Some(13) => Verdict::Unwritable("cannot grow: its disk is full"),
        Some(14) => Verdict::Never(
            "cannot be opened: check that its directory exists and is writable for this user; to share a store, make \
             it with `dlock init --group GROUP FOLDER/locks.db`",
        ),
        Some(26) => Verdict::Never("is not an SQLite database: choose another path"),
        _ => Verdict::Never("failed"),
    }
}
