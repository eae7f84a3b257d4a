//! The folder of the doorbells. It is opened once and checked. All files in it are accessed through
//! that handle, by names without a path, and links are not followed. So no other user can redirect
//! dlock to files elsewhere.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    time::SystemTime,
};

use dlock_core::{ClaimId, Result};
use rustix::{
    fs::{
        AtFlags, CWD, Dir as Entries, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid, fchown, mknodat,
        openat, renameat, renameat_with, statat, unlinkat,
    },
    io::Errno,
    process::geteuid,
};

use super::Liveness;
use crate::files::{self, StoreUsers};

/// An open folder of doorbells.
#[derive(Debug)]
pub(crate) struct BellDir {
    path: PathBuf,
    folder: File,
    users: StoreUsers,
}

impl BellDir {
    /// Returns the path of the folder for the store in the file `store`.
    pub(crate) fn path_of(store: &Path) -> PathBuf {
        files::beside(store, "-bells")
    }

    /// Opens the folder, and creates it if it does not exist. `None` if this user may not do so.
    ///
    /// # Errors
    /// [`InvalidConfig`](dlock_core::Error::InvalidConfig) if the path is not a folder, or belongs
    /// to a user who has no part in the store.
    pub(crate) fn open(store: &Path, users: &StoreUsers) -> Result<Option<Self>> {
        let path = Self::path_of(store);
        if fs::symlink_metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            Self::make(&path, users);
        }
        let folder = match open_folder(&path) {
            Ok(folder) => File::from(folder),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                let what = "is not a folder: remove it, so that the store's doorbells can be there";
                return Err(files::refusal(&path, what));
            }
            Err(_) => return Ok(None),
        };
        let Ok(found) = folder.metadata() else { return Ok(None) };
        users.set_folder_mode(&folder);
        let current = folder.metadata().unwrap_or(found);
        users.check(&path, &current)?;
        Ok(Some(Self { path, folder, users: users.clone() }))
    }

    /// Creates the folder. It gets its name after its mode, because another process may open the
    /// folder as soon as it has its name.
    fn make(path: &Path, users: &StoreUsers) {
        let draft = files::beside(path, &format!("-{}", ClaimId::random()));
        if DirBuilder::new().mode(0o700).create(&draft).is_err() {
            return;
        }
        if let Ok(folder) = open_folder(&draft) {
            users.set_folder_mode(&File::from(folder));
        }
        // Fails with EEXIST or ENOTEMPTY if another process was first.
        let renamed = match renameat_with(CWD, &draft, CWD, path, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => renameat(CWD, &draft, CWD, path),
            outcome => outcome,
        };
        if renamed.is_err() {
            fs::remove_dir(draft).ok();
        }
    }

    /// Returns whether the folder's path still leads to this folder.
    pub(crate) fn is_in_place(&self) -> bool {
        let at_path = fs::symlink_metadata(&self.path).map(|found| (found.dev(), found.ino()));
        let open = self.folder.metadata().map(|found| (found.dev(), found.ino()));
        at_path.is_ok_and(|at_path| open.is_ok_and(|open| open == at_path))
    }

    /// Opens another handle of the folder. A lock taken through it is separate from all others.
    pub(crate) fn reopen(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(&self.folder, ".", flags, Mode::empty())?)
    }

    /// Creates a FIFO that all users of the store may write, and opens it.
    pub(crate) fn make_fifo(&self, name: &str) -> io::Result<File> {
        mknodat(&self.folder, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        let fifo = self.open_fifo(name, OFlags::RDWR)?;
        // Others may write but not read, because what another process reads does not reach the
        // client.
        fifo.set_permissions(Permissions::from_mode(0o600 | self.users.write_bits()))?;
        self.users.set_owner(&fifo);
        Ok(fifo)
    }

    /// Opens a FIFO. Does not wait for another process to open the other end.
    pub(crate) fn open_fifo(&self, name: &str, access: OFlags) -> io::Result<File> {
        let flags = access | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(openat(&self.folder, name, flags, Mode::empty())?);
        match FileType::from_raw_mode(file.metadata()?.mode()) {
            FileType::Fifo => Ok(file),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Returns whether any process has a FIFO open for reading.
    pub(crate) fn liveness(&self, name: &str) -> Liveness {
        match self.open_fifo(name, OFlags::WRONLY) {
            Ok(_) => Liveness::Alive,
            // Opening a socket returns the same error, so the type is checked.
            Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) && self.is_fifo(name) => {
                Liveness::Dead
            }
            Err(_) => Liveness::Unknown,
        }
    }

    /// Returns whether the folder has this open file under this name.
    pub(crate) fn contains(&self, name: &str, file: &File) -> bool {
        let open = file.metadata().map(|open| (open.dev(), open.ino()));
        self.stat(name).is_some_and(|found| open.is_ok_and(|open| open == file_id(&found)))
    }

    /// Returns the time since a FIFO was created. `None` if the file is not a FIFO.
    pub(crate) fn age(&self, name: &str) -> Option<std::time::Duration> {
        let file = self.open_fifo(name, OFlags::RDWR).ok()?;
        let created: SystemTime = file.metadata().ok()?.modified().ok()?;
        created.elapsed().ok()
    }

    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.folder, from, &self.folder, to)?)
    }

    /// Removes a FIFO. Does not remove a file of another type.
    pub(crate) fn remove(&self, name: &str) {
        if self.is_fifo(name) {
            unlinkat(&self.folder, name, AtFlags::empty()).ok();
        }
    }

    /// Returns the names of the files in the folder.
    pub(crate) fn names(&self) -> Vec<String> {
        let Ok(folder) = self.reopen() else { return Vec::new() };
        let entries = Entries::new(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned)).collect()
    }

    fn is_fifo(&self, name: &str) -> bool {
        self.stat(name).is_some_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Fifo)
    }

    fn stat(&self, name: &str) -> Option<Stat> {
        statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }
}

impl StoreUsers {
    /// Sets the mode and the group of the folder as the users of the store need them, if this user
    /// owns the folder.
    fn set_folder_mode(&self, folder: &File) {
        let Ok(found) = folder.metadata() else { return };
        let wanted = match self.write_bits() {
            0 => 0o700,
            0o020 => 0o770,
            _ => 0o777,
        };
        let me = geteuid().as_raw();
        if me == found.uid() && found.mode() & 0o777 != wanted {
            let kept = found.mode() & 0o7000;
            folder.set_permissions(Permissions::from_mode(wanted | kept)).ok();
        }
        if me == found.uid() {
            self.set_owner(folder);
        }
    }

    /// Sets the group of this user's file to the store's group. Root also sets the owner to the
    /// store's owner, who could not use the file otherwise.
    fn set_owner(&self, file: &File) {
        let Ok(found) = file.metadata() else { return };
        let (owner, group) = self.owner;
        if geteuid().is_root() && (found.uid(), found.gid()) != (owner, group) {
            fchown(file, Some(Uid::from_raw(owner)), Some(Gid::from_raw(group))).ok();
        } else if self.group_may_write && found.gid() != group {
            fchown(file, None, Some(Gid::from_raw(group))).ok();
        }
    }
}

fn open_folder(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty())
}

fn file_id(found: &Stat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}
