//! What the system's errors mean.

use std::{io, io::ErrorKind};

use dlock::Error;

/// The store's name in messages, and the scheme of its URLs.
pub(crate) const STORE: &str = "folder";

/// Whether asking again may help. What is not known here will not.
pub(crate) fn from_io(source: io::Error) -> Error {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::ReadOnlyFilesystem => {
            Error::Unwritable { store: STORE, source: source.into() }
        }
        ErrorKind::Interrupted | ErrorKind::TimedOut => {
            Error::Unavailable { store: STORE, source: source.into() }
        }
        _ => Error::Refused { store: STORE, source: source.into() },
    }
}

/// The step did not get its turn in time. Whether it happened is not known.
pub(crate) fn late() -> Error {
    let source = "another process has kept the folder to itself for too long";
    Error::Unavailable { store: STORE, source: source.into() }
}

/// The table is not one of ours.
pub(crate) fn garbled(line: &str) -> Error {
    let source = format!("the table has a line that no folder store has written: `{}`", line.escape_debug());
    Error::Refused { store: STORE, source: source.into() }
}
