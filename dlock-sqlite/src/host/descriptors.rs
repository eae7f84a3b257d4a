//! Recognizes that the process, or the host, has no free file descriptor.

use std::{fs::File, io};

use rustix::io::Errno;

/// Number of descriptors that SQLite needs at most to open a store: those of the file, its log, its
/// shared memory and its folder. The others are for a margin.
const NEEDED: usize = 8;

/// Returns whether a call of the system has failed because the process (`EMFILE`) or the host
/// (`ENFILE`) has no free file descriptor.
pub(crate) fn are_missing(error: &io::Error) -> bool {
    let missing = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| missing.contains(&code))
}

/// Returns whether the process has too few free file descriptors for SQLite, which reports such a
/// failure like that of a file without access rights.
pub(crate) fn are_short() -> bool {
    let mut open = Vec::with_capacity(NEEDED);
    for _ in 0..NEEDED {
        match File::open("/") {
            Ok(file) => open.push(file),
            Err(error) => return are_missing(&error),
        }
    }
    false
}
