//! The meaning of SQLite's errors to the caller.

use std::{io, path::Path};

use dlock_core::{
    Error,
    driver::{StoreErrors, Verdict},
};

use crate::{files, host};

/// Creates errors that name the store `sqlite`, as the URL's scheme does.
pub(crate) const STORE: StoreErrors = StoreErrors::new("sqlite");

/// Other clients kept the file locked. The call has changed nothing.
#[derive(Debug, thiserror::Error)]
#[error("`{path}` is busy: {reason}")]
struct Busy {
    path: String,
    reason: String,
}

/// Converts the error of a call on the file at `path`.
pub(crate) fn explain(path: &Path, source: sqlx::Error) -> Error {
    STORE.explain(verdict(path, &source), source)
}

/// Returns the error of a transaction that could not begin. It names the process that has locked
/// the file, if that is known.
pub(crate) fn busy(path: &Path) -> Error {
    let files = ["", "-shm", "-bells"].map(|suffix| files::beside(path, suffix));
    let reason = match host::lock_owner(&files) {
        Some((pid, true)) => format!(
            "process {pid} is stopped and keeps it locked: continue it with `kill -CONT {pid}`, or kill it"
        ),
        Some((pid, false)) => format!("process {pid}, or others before it, have kept it locked for seconds"),
        None => "other processes have kept it locked for seconds".to_owned(),
    };
    STORE.unavailable(Busy { path: path.display().to_string(), reason })
}

/// Advice for a process that has no free file descriptor.
const NO_DESCRIPTORS: &str = "cannot be opened: the process, or the host, has no free file descriptor; close files, or raise the limit \
    (`ulimit -n`)";

/// Returns the error of a call on the file at `path` that needed another file descriptor.
pub(crate) fn without_descriptors(path: &Path, source: io::Error) -> Error {
    STORE.explain(Verdict::Unwritable(format!("`{}` {NO_DESCRIPTORS}", path.display()).into()), source)
}

/// Returns whether SQLite found the file locked.
pub(crate) fn is_locked(error: &sqlx::Error) -> bool {
    code(error).is_some_and(|code| LOCKED.contains(&(code & PRIMARY)))
}

/// Returns whether the error means that other clients kept the file locked.
pub(crate) fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Unavailable { source, .. } if source.is::<Busy>())
}

/// Mask of a result code's kind of failure. The other bits are its circumstances.
const PRIMARY: i32 = 0xff;

/// SQLite's result codes, without the prefix `SQLITE_`.
mod codes {
    pub(super) const PERM: i32 = 3;
    pub(super) const BUSY: i32 = 5;
    pub(super) const LOCKED: i32 = 6;
    pub(super) const NOMEM: i32 = 7;
    pub(super) const READONLY: i32 = 8;
    pub(super) const IOERR: i32 = 10;
    pub(super) const IOERR_NOMEM: i32 = 3082;
    pub(super) const IOERR_SHMSIZE: i32 = 4874;
    pub(super) const IOERR_SHMMAP: i32 = 5386;
    pub(super) const CORRUPT: i32 = 11;
    pub(super) const FULL: i32 = 13;
    pub(super) const CANTOPEN: i32 = 14;
    pub(super) const PROTOCOL: i32 = 15;
    pub(super) const AUTH: i32 = 23;
    pub(super) const NOTADB: i32 = 26;
}

/// Codes for a file that another connection has locked.
const LOCKED: [i32; 3] = [codes::BUSY, codes::LOCKED, codes::PROTOCOL];

fn code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

fn verdict(path: &Path, error: &sqlx::Error) -> Verdict {
    let message = |advice: &str| format!("`{}` {advice}", path.display()).into();
    let transient = |advice| Verdict::Transient(message(advice));
    let unwritable = |advice| Verdict::Unwritable(message(advice));
    let permanent = |advice| Verdict::Permanent(message(advice));
    if matches!(error, sqlx::Error::WorkerCrashed) {
        return transient("lost its worker thread; it is opened again");
    }
    let code = code(error);
    match code.map(|code| code & PRIMARY) {
        Some(kind) if LOCKED.contains(&kind) => {
            transient("is busy: another process has kept it locked for seconds")
        }
        Some(codes::NOMEM) => unwritable("cannot be used: the process is out of memory"),
        // A file without its file `-shm`, which SQLite would create, cannot be opened.
        Some(codes::READONLY | codes::CANTOPEN) if host::is_read_only(path) => {
            unwritable("cannot be written: its file system is read-only")
        }
        Some(codes::PERM | codes::READONLY | codes::AUTH) => permanent(
            "cannot be written by this user: to share a store, make it with `dlock init --group GROUP FOLDER/locks.db`",
        ),
        // There is no memory, or no space for the file `-shm`.
        Some(codes::IOERR)
            if matches!(code, Some(codes::IOERR_NOMEM | codes::IOERR_SHMSIZE | codes::IOERR_SHMMAP)) =>
        {
            unwritable("cannot grow: its disk or the memory is full")
        }
        Some(codes::IOERR | codes::CANTOPEN) if host::descriptors::are_short() => unwritable(NO_DESCRIPTORS),
        Some(codes::IOERR) => permanent("cannot be read or written: check its disk"),
        Some(codes::CORRUPT) => {
            permanent("is damaged: stop the processes that use it, and delete it; locks held in it are lost")
        }
        Some(codes::FULL) => unwritable("cannot grow: its disk is full"),
        Some(codes::CANTOPEN) => permanent(
            "cannot be opened: check that its directory exists and is writable for this user; to share a store, make \
             it with `dlock init --group GROUP FOLDER/locks.db`",
        ),
        Some(codes::NOTADB) => permanent("is not an SQLite database: choose another path"),
        _ => permanent("failed"),
    }
}
