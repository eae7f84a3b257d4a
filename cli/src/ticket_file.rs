//! Files with the ticket of a lock, for the steps of a script.

use std::{
    fs,
    io::{self, ErrorKind, Write as _},
    path::{Path, PathBuf},
};

use dlock::Ticket;
use tempfile::NamedTempFile;

use crate::exit::{Failure, Outcome};

/// A file that contains the ticket of a lock, or will contain it.
pub(crate) struct TicketFile(PathBuf);

/// A file that will contain a ticket. It was created beside its later place, so that a folder without
/// write access is noticed before the ticket exists. Dropping it deletes it.
pub(crate) struct NewTicketFile {
    file: NamedTempFile,
    path: PathBuf,
}

impl TicketFile {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Reads the ticket.
    pub(crate) fn read(&self) -> Outcome<Ticket> {
        let path = self.0.display();
        let text = fs::read_to_string(&self.0).map_err(|error| {
            Failure::usage(format!(
                "cannot read a ticket from `{path}`: {error}; `dlock acquire --ticket-file` writes one, and its release removes it"
            ))
        })?;
        text.trim_end().parse().map_err(|error| Failure::usage(format!("`{path}`: {error}")))
    }

    /// Deletes the file if it contains this ticket, which was used. Another process may have
    /// written a new ticket since.
    pub(crate) fn remove(&self, used: &Ticket) {
        if self.read().is_ok_and(|ticket| ticket.to_string() == used.to_string()) && self.check_kind().is_ok()
        {
            // A used ticket that cannot be deleted does no harm, because every use of it is refused.
            fs::remove_file(&self.0).ok();
        }
    }

    /// Creates the file that will take this place. Only the user can read it.
    pub(crate) fn prepare(&self) -> Outcome<NewTicketFile> {
        let created = self.check_kind().and_then(|()| {
            let folder = self.0.parent().filter(|folder| !folder.as_os_str().is_empty());
            let file = NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
            Ok(NewTicketFile { file, path: self.0.clone() })
        });
        let what = format!("cannot write a ticket to `{}`", self.0.display());
        created.map_err(|error| Failure::usage(format!("{what}: {error}")))
    }

    /// Checks that the path is that of a file, or of none yet. Root could replace or delete a device or
    /// a pipe, and another user may have created a symbolic link.
    fn check_kind(&self) -> io::Result<()> {
        match self.0.symlink_metadata() {
            Ok(found) if found.is_file() => Ok(()),
            Ok(_) => Err(io::Error::other("it is not a regular file")),
            Err(missing) if missing.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl NewTicketFile {
    /// Writes the ticket and puts the file in its place, at once for other processes.
    pub(crate) fn write(mut self, ticket: &Ticket) -> Outcome<()> {
        let written = writeln!(self.file, "{ticket}");
        // Some file systems report a full disk only then, and others do not support it.
        let synced = written.and_then(|()| match self.file.as_file().sync_all() {
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
            result => result,
        });
        let put = synced.and_then(|()| self.file.persist(&self.path).map_err(|error| error.error));
        let what = format!("cannot write the ticket to `{}`", self.path.display());
        put.map(drop).map_err(|error| Failure::internal(&what, &error))
    }
}
