//! Conversion of errors. The variant says whether a retry may help.

use std::{io, io::ErrorKind};

use dlock::Error;

/// Name of the store in messages, and scheme of its URLs.
pub(crate) const STORE: &str = "folder";

/// Returns the error of an I/O operation. An error of a kind that is not listed here is permanent.
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

/// Returns the error of a call without a result in time. Its step may or may not have been
/// executed.
pub(crate) fn timed_out() -> Error {
    let source = "another process has kept the table locked for too long";
    Error::Unavailable { store: STORE, source: source.into() }
}

/// Returns the error of a table with a line that this store does not write.
pub(crate) fn invalid_line(line: &str) -> Error {
    let source =
        format!("the table has a line that is not in the format of this store: `{}`", line.escape_debug());
    Error::Refused { store: STORE, source: source.into() }
}
