//! Files with the ticket of a lock, for the steps of a script.

use std::{
    fs,
    io::{self, Write as _},
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
        if self.read().is_ok_and(|ticket| ticket.to_string() == used.to_string())
            && let Ok(path) = self.resolved()
        {
            // A used ticket that cannot be deleted does no harm, because every use of it is refused.
            fs::remove_file(path).ok();
        }
    }

    /// Creates the file that will take this place. Only the user can read it.
    pub(crate) fn prepare(&self) -> Outcome<NewTicketFile> {
        let created = self.resolved().and_then(|path| {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let file = NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
            Ok(NewTicketFile { file, path })
        });
        let what = format!("cannot write a ticket to `{}`", self.0.display());
        created.map_err(|error| Failure::usage(format!("{what}: {error}")))
    }

    /// Returns the path without symbolic links, or the path itself if there is no such file.
    ///
    /// # Errors
    /// If the path is that of a device, a pipe or a folder. Root could replace or delete it.
    fn resolved(&self) -> io::Result<PathBuf> {
        match fs::metadata(&self.0) {
            Ok(found) if found.is_file() => fs::canonicalize(&self.0),
            Ok(_) => Err(io::Error::other("it is not a regular file")),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(self.0.clone()),
            Err(error) => Err(error),
        }
    }
}

impl NewTicketFile {
    /// Writes the ticket and puts the file in its place, at once for other processes.
    pub(crate) fn write(mut self, ticket: &Ticket) -> Outcome<()> {
        let written = writeln!(self.file, "{ticket}");
        // Some file systems report a full disk only then.
        let synced = written.and_then(|()| self.file.as_file().sync_all());
        let put = synced.and_then(|()| self.file.persist(&self.path).map_err(|error| error.error));
        let what = format!("cannot write the ticket to `{}`", self.path.display());
        put.map(drop).map_err(|error| Failure::internal(&what, &error))
    }
}
