//! The files of a store. They are created with the access rights that the folder's owner intended,
//! and checked before they are used. Links are not followed. Otherwise a user who may create files
//! beside a store could redirect another user's dlock to any file.

use std::{
    ffi::OsString,
    fs::{self, File, Metadata, Permissions},
    io::{self, ErrorKind},
    os::unix::fs::{MetadataExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
};

use dlock_core::{ClaimId, Error, Result};
use rustix::{
    fs::{Mode, OFlags, openat},
    process::geteuid,
};

use crate::{
    error::{self, STORE},
    host,
};

/// Suffixes of the files that SQLite keeps beside the main one.
const SIDE_FILES: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Owner of files whose owner has no number in this container's user namespace.
const UNMAPPED_USER: u32 = 65_534;

/// Mode bit of a folder whose new files get the folder's group.
const SET_GROUP: u32 = 0o2000;

/// Returns the path with `suffix` appended to its name.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut path = OsString::from(path);
    path.push(suffix);
    path.into()
}

/// The users who may write the store, according to the modes and owners of its file and folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreUsers {
    /// Owner and group of the file.
    pub(crate) owner: (u32, u32),
    /// This user, root, the owner of the file and the owner of its folder.
    trusted: [u32; 4],
    /// Whether the file's group may write it, or the users that an access control list names.
    pub(crate) group_may_write: bool,
    /// Whether all users of the host may write the file.
    all_may_write: bool,
    /// Whether every user of the host may create files in the folder.
    open_folder: bool,
}

/// Creates an empty file if the file does not exist.
///
/// A file that root creates belongs to the owner of the folder, who could not use it otherwise.
///
/// Its mode follows the umask. A folder that passes its group on and that its group may write is
/// intended to be shared. In such a folder the group may write the file, whatever the umask.
///
/// # Errors
/// [`Error::InvalidConfig`], which says what to do, or [`Error::Unwritable`], also without a free file
/// descriptor.
pub(crate) fn make(path: &Path) -> Result<()> {
    if fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    // The file is created under another name, because dlock must never open and close the store
    // itself. When a process closes any handle of a file, the kernel releases all locks that SQLite
    // in that process has on the file.
    let draft = beside(path, &format!("-{}", ClaimId::random()));
    match make_draft(&draft, path).and_then(|()| publish(&draft, path)) {
        Ok(()) => Ok(()),
        Err(error) => {
            fs::remove_file(draft).ok();
            // Another process was first.
            if error.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(creation_error(path, error)) }
        }
    }
}

fn creation_error(path: &Path, error: io::Error) -> Error {
    if host::descriptors::are_missing(&error) {
        return error::without_descriptors(path, error);
    }
    let file = path.display();
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::ReadOnlyFilesystem => {
            STORE.unwritable(format!("`{file}` cannot be created: {error}"))
        }
        _ => refusal(
            path,
            &format!(
                "cannot be created: {error}: check that its directory exists and is writable for this user; to share a \
                 store, make it with `dlock init --group GROUP FOLDER/locks.db`"
            ),
        ),
    }
}

fn make_draft(draft: &Path, path: &Path) -> io::Result<()> {
    // Both names are resolved from one open folder, so that a user who replaces a folder by a link
    // becomes the owner of no file elsewhere.
    let folder = File::open(path.parent().unwrap_or(path))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let name = draft.file_name().unwrap_or_default();
    let file = File::from(openat(&folder, name, flags, Mode::from_raw_mode(0o666))?);
    let folder = folder.metadata()?;
    if geteuid().is_root() && ![0, UNMAPPED_USER].contains(&folder.uid()) {
        // In a container root may lack the right. It can use the store nevertheless.
        fchown(&file, Some(folder.uid()), Some(folder.gid())).ok();
    }
    if folder.mode() & (SET_GROUP | 0o020) == SET_GROUP | 0o020 {
        let mode = file.metadata()?.mode() & 0o777;
        file.set_permissions(Permissions::from_mode(mode | 0o660))?;
    }
    Ok(())
}

/// Gives a file its final name, unless another process was first.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn publish(draft: &Path, path: &Path) -> io::Result<()> {
    use rustix::{
        fs::{CWD, RenameFlags, renameat_with},
        io::Errno,
    };
    match renameat_with(CWD, draft, CWD, path, RenameFlags::NOREPLACE) {
        // The file system does not support the flag.
        Err(Errno::INVAL | Errno::NOSYS) => link(draft, path),
        outcome => Ok(outcome?),
    }
}

/// Gives a file its final name, unless another process was first.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn publish(draft: &Path, path: &Path) -> io::Result<()> {
    link(draft, path)
}

/// Gives a file its final name by a hard link. Until the old name is removed the file has two
/// names, and a client that connects in this time is refused.
fn link(draft: &Path, path: &Path) -> io::Result<()> {
    fs::hard_link(draft, path)?;
    fs::remove_file(draft)
}

/// Refuses files that a user without a part in the store may have created, and files that SQLite
/// would not lock correctly. `path` must come from [`canonicalize`](fs::canonicalize).
///
/// # Errors
/// [`Error::InvalidConfig`], which says what to do. [`Error::Unavailable`] if the path leads to an
/// empty file beside the side files of a deleted one.
pub(crate) fn check(path: &Path) -> Result<StoreUsers> {
    let file =
        fs::symlink_metadata(path).map_err(|error| refusal(path, &format!("cannot be examined: {error}")))?;
    check_shape(path, &file)?;
    let folder =
        fs::metadata(path.parent().unwrap_or(path)).map_err(|error| refusal(path, &error.to_string()))?;
    let users = StoreUsers {
        owner: (file.uid(), file.gid()),
        trusted: [geteuid().as_raw(), 0, file.uid(), folder.uid()],
        group_may_write: file.mode() & 0o060 == 0o060,
        all_may_write: file.mode() & 0o006 == 0o006,
        open_folder: folder.mode() & 0o002 != 0,
    };
    let has_trusted_owner = [geteuid().as_raw(), 0, folder.uid()].contains(&file.uid());
    if !has_trusted_owner && !users.group_may_write && !users.all_may_write {
        return Err(refusal(
            path,
            &format!(
                "belongs to user {} alone, and neither to this user nor to the folder's owner: choose another path, or \
                 share a store: `dlock init --group GROUP FOLDER/locks.db`",
                file.uid()
            ),
        ));
    }
    for suffix in SIDE_FILES {
        let path = beside(path, suffix);
        if let Ok(found) = fs::symlink_metadata(&path) {
            check_shape(&path, &found)?;
            users.check(&path, &found)?;
        }
    }
    check_side_files(path)?;
    Ok(users)
}

/// Does not open an empty file beside the log or the index of a file that was deleted or replaced.
/// SQLite finds them by name, and processes that still use the deleted file would share them. The
/// error is transient, because the files may be just being deleted, one after the other.
fn check_side_files(path: &Path) -> Result<()> {
    let side = ["-wal", "-shm"].map(|suffix| beside(path, suffix)).into_iter().find(|side| side.exists());
    // Examined after the side files. SQLite creates them only for a file that is not empty.
    let is_empty = fs::symlink_metadata(path).is_ok_and(|file| file.len() == 0);
    match side.filter(|_| is_empty) {
        Some(side) => Err(STORE.unavailable(format!(
            "`{}` is of another file, which was deleted or replaced: stop the processes that use that file, and delete \
             the file with its `-wal` and `-shm`",
            side.display()
        ))),
        None => Ok(()),
    }
}

/// Refuses everything except an ordinary file that has one name.
fn check_shape(path: &Path, file: &Metadata) -> Result<()> {
    let problem = if !file.is_file() {
        "is not an ordinary file: remove it, or choose another path for the store".to_owned()
    } else if file.nlink() > 1 {
        format!(
            "is one file with {} names (hard links), and SQLite would treat each name as another file: remove all names \
             but one",
            file.nlink()
        )
    } else if host::is_mount_root(path) {
        "is mounted as a single file, apart from the files beside it: mount its whole folder instead"
            .to_owned()
    } else {
        return Ok(());
    };
    Err(refusal(path, &problem))
}

impl StoreUsers {
    /// Refuses a path beside the file if a user without a part in the store has created it, or
    /// could write it.
    pub(crate) fn check(&self, path: &Path, found: &Metadata) -> Result<()> {
        // If users need the permission of the folder's owner to create files in the folder, a user
        // who has created one has a part in the store.
        let is_of_group = self.group_may_write && (found.gid() == self.owner.1 || !self.open_folder);
        if !self.all_may_write && !is_of_group && !self.trusted.contains(&found.uid()) {
            let uid = found.uid();
            return Err(refusal(
                path,
                &format!(
                    "belongs to user {uid}, who has no part in the store: remove it, or choose another path"
                ),
            ));
        }
        if found.mode() & 0o022 & !self.write_bits() != 0 {
            let problem =
                "may be written by more users than the store itself: remove that right with `chmod go-w`";
            return Err(refusal(path, problem));
        }
        Ok(())
    }

    /// Returns the mode bits that let users other than the owner write.
    pub(crate) fn write_bits(&self) -> u32 {
        match self {
            Self { all_may_write: true, .. } => 0o022,
            Self { group_may_write: true, .. } => 0o020,
            _ => 0,
        }
    }
}

pub(crate) fn refusal(path: &Path, problem: &str) -> Error {
    Error::InvalidConfig { reason: format!("`{}` {problem}", path.display()) }
}
