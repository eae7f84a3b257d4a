//! The files of a store. They are made with the rights that the folder's owner meant them to have, and checked before
//! they are used. Links are not followed: otherwise a user who may create files beside a store could lead another user's
//! dlock to any file.

use std::{
    ffi::OsString,
    fs::{self, Metadata, OpenOptions, Permissions},
    io::{self, ErrorKind},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use dlock_core::{ClaimId, Error, Result};
use rustix::process::geteuid;

use crate::{error::STORE, host};

/// The files that SQLite keeps beside the main one.
const COMPANIONS: [&str; 3] = ["-wal", "-shm", "-journal"];

const SET_GROUP: u32 = 0o2000;

/// The path with `end` behind its name.
pub(crate) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut path = OsString::from(path);
    path.push(end);
    path.into()
}

/// Who may write the store, as the modes and the owners of its file and its folder say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Circle {
    /// The owner and the group of the file.
    pub(crate) owner: (u32, u32),
    /// This user, root, and whoever owns the file or its folder.
    users: [u32; 4],
    /// Whether the file's group may write it, or those whom an access control list names.
    pub(crate) group: bool,
    /// Whether every user of the host may.
    pub(crate) everyone: bool,
    /// Whether every user of the host may create files in the folder.
    open_folder: bool,
}

/// Makes the file, empty, if there is none.
///
/// The mode is what the umask leaves. A folder that passes its group on and lets it write was made to be shared: there
/// the group may write the file, whatever the umask.
///
/// # Errors
/// [`Error::InvalidConfig`] with what to do, or [`Error::Unwritable`].
pub(crate) fn make(path: &Path) -> Result<()> {
    if fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    // Made under another name. When a process closes any handle of a file, the kernel ends all locks that SQLite of that
    // process has on the file: so dlock must never open and close the store itself.
    let draft = beside(path, &format!("-{}", ClaimId::random()));
    match make_draft(&draft, path).and_then(|()| publish(&draft, path)) {
        Ok(()) => Ok(()),
        Err(error) => {
            fs::remove_file(draft).ok();
            // Another process was first.
            if error.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(unmade(path, &error)) }
        }
    }
}

fn unmade(path: &Path, error: &io::Error) -> Error {
    let shown = path.display();
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::ReadOnlyFilesystem => {
            STORE.unwritable(format!("`{shown}` cannot be made: {error}"))
        }
        _ => refusal(
            path,
            &format!(
                "cannot be made: {error}: check that its directory exists and is writable for this user; to share a \
                 store, make it with `dlock init --group GROUP FOLDER/locks.db`"
            ),
        ),
    }
}

fn make_draft(draft: &Path, path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o666).open(draft)?;
    let folder = fs::metadata(path.parent().unwrap_or(path))?.mode();
    if folder & (SET_GROUP | 0o020) == SET_GROUP | 0o020 {
        let mode = file.metadata()?.mode() & 0o777;
        file.set_permissions(Permissions::from_mode(mode | 0o660))?;
    }
    Ok(())
}

/// Gives a file its name, unless another process was first.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn publish(draft: &Path, path: &Path) -> io::Result<()> {
    use rustix::{
        fs::{CWD, RenameFlags, renameat_with},
        io::Errno,
    };
    match renameat_with(CWD, draft, CWD, path, RenameFlags::NOREPLACE) {
        // The file system does not know this flag.
        Err(Errno::INVAL | Errno::NOSYS) => link(draft, path),
        outcome => Ok(outcome?),
    }
}

/// Gives a file its name, unless another process was first.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn publish(draft: &Path, path: &Path) -> io::Result<()> {
    link(draft, path)
}

/// Gives a file its name by a hard link. For a moment the file has two names, and a client that connects just then is
/// refused.
fn link(draft: &Path, path: &Path) -> io::Result<()> {
    fs::hard_link(draft, path)?;
    fs::remove_file(draft)
}

/// Refuses files that a stranger may have put there, or that SQLite would not lock right. `path` must be one that
/// [`canonicalize`](fs::canonicalize) gave.
///
/// # Errors
/// [`Error::InvalidConfig`], with what to do.
pub(crate) fn check(path: &Path) -> Result<Circle> {
    let file = fs::symlink_metadata(path)
        .map_err(|error| refusal(path, &format!("cannot be looked at: {error}")))?;
    check_shape(path, &file)?;
    let folder =
        fs::metadata(path.parent().unwrap_or(path)).map_err(|error| refusal(path, &error.to_string()))?;
    let circle = Circle {
        owner: (file.uid(), file.gid()),
        users: [geteuid().as_raw(), 0, file.uid(), folder.uid()],
        group: file.mode() & 0o060 == 0o060,
        everyone: file.mode() & 0o006 == 0o006,
        open_folder: folder.mode() & 0o002 != 0,
    };
    let mine = [geteuid().as_raw(), 0, folder.uid()].contains(&file.uid());
    if !mine && !circle.group && !circle.everyone {
        return Err(refusal(
            path,
            &format!(
                "belongs to user {} alone, and neither to this user nor to the folder's owner: choose another path, or \
                 share a store: `dlock init --group GROUP FOLDER/locks.db`",
                file.uid()
            ),
        ));
    }
    for end in COMPANIONS {
        let path = beside(path, end);
        if let Ok(found) = fs::symlink_metadata(&path) {
            check_shape(&path, &found)?;
            circle.check(&path, &found)?;
        }
    }
    Ok(circle)
}

/// Refuses all but an ordinary file that has one name.
fn check_shape(path: &Path, file: &Metadata) -> Result<()> {
    let what = if !file.is_file() {
        "is not an ordinary file: remove it, or choose another path for the store".to_owned()
    } else if file.nlink() > 1 {
        format!(
            "is one file with {} names (hard links), and under each SQLite would take it for another: remove all names \
             but one",
            file.nlink()
        )
    } else if host::is_mount_root(path) {
        "is mounted as a single file, apart from the files beside it: mount its whole folder instead"
            .to_owned()
    } else {
        return Ok(());
    };
    Err(refusal(path, &what))
}

impl Circle {
    /// Refuses what a stranger has put beside the file, or could write.
    pub(crate) fn check(&self, path: &Path, found: &Metadata) -> Result<()> {
        // If only the folder's owner can let users create files there, a user who has done so has a part in the store.
        let of_group = self.group && (found.gid() == self.owner.1 || !self.open_folder);
        if !self.everyone && !of_group && !self.users.contains(&found.uid()) {
            let uid = found.uid();
            return Err(refusal(
                path,
                &format!(
                    "belongs to user {uid}, who has no part in the store: remove it, or choose another path"
                ),
            ));
        }
        if found.mode() & 0o022 & !self.write_bits() != 0 {
            let what = "may be written by more users than the store itself: take that right from them with `chmod go-w`";
            return Err(refusal(path, what));
        }
        Ok(())
    }

    /// The bits of the mode that let users other than the owner write.
    pub(crate) fn write_bits(&self) -> u32 {
        match self {
            Self { everyone: true, .. } => 0o022,
            Self { group: true, .. } => 0o020,
            _ => 0,
        }
    }
}

pub(crate) fn refusal(path: &Path, what: &str) -> Error {
    Error::InvalidConfig { reason: format!("`{}` {what}", path.display()) }
}
