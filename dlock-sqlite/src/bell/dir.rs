//! The folder of the doorbells. It is opened once and checked. All files in it are reached through that handle, by names
//! without a path, and links are not followed. So nobody can lead dlock to files elsewhere.

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

use super::Reader;
use crate::files::{self, Circle};

/// An open folder of doorbells.
#[derive(Debug)]
pub(crate) struct Dir {
    path: PathBuf,
    folder: File,
    circle: Circle,
}

impl Dir {
    /// Where the doorbells of the store in the file `store` are.
    pub(crate) fn path_of(store: &Path) -> PathBuf {
        files::beside(store, "-bells")
    }

    /// Opens the folder, and makes it if there is none. `None` if this user may not.
    ///
    /// # Errors
    /// [`InvalidConfig`](dlock_core::Error::InvalidConfig) for what is no folder, or a stranger's.
    pub(crate) fn open(store: &Path, circle: &Circle) -> Result<Option<Self>> {
        let path = Self::path_of(store);
        if fs::symlink_metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            Self::make(&path, circle);
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
        circle.adopt(&folder);
        let now = folder.metadata().unwrap_or(found);
        circle.check(&path, &now)?;
        Ok(Some(Self { path, folder, circle: circle.clone() }))
    }

    /// Makes the folder. It gets its name last, when its mode is right: another process may open it as soon as it has its
    /// name.
    fn make(path: &Path, circle: &Circle) {
        let draft = files::beside(path, &format!("-{}", ClaimId::random()));
        if DirBuilder::new().mode(0o700).create(&draft).is_err() {
            return;
        }
        if let Ok(folder) = open_folder(&draft) {
            circle.adopt(&File::from(folder));
        }
        // EEXIST and ENOTEMPTY: another process was first.
        let named = match renameat_with(CWD, &draft, CWD, path, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => renameat(CWD, &draft, CWD, path),
            outcome => outcome,
        };
        if named.is_err() {
            fs::remove_dir(draft).ok();
        }
    }

    /// Whether the path of the folder still leads to this folder.
    pub(crate) fn is_in_place(&self) -> bool {
        let there = fs::symlink_metadata(&self.path).map(|found| (found.dev(), found.ino()));
        let open = self.folder.metadata().map(|found| (found.dev(), found.ino()));
        there.is_ok_and(|there| open.is_ok_and(|open| open == there))
    }

    /// Another handle of the folder. A lock that is taken through it is its own.
    pub(crate) fn reopen(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(&self.folder, ".", flags, Mode::empty())?)
    }

    /// Makes a FIFO that all users of the store may write, and opens it.
    pub(crate) fn make_fifo(&self, name: &str) -> io::Result<File> {
        mknodat(&self.folder, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        let fifo = self.open_fifo(name, OFlags::RDWR)?;
        // Others may write, not read: what one process reads, the client does not get.
        fifo.set_permissions(Permissions::from_mode(0o600 | self.circle.write_bits()))?;
        self.circle.hand_over(&fifo);
        Ok(fifo)
    }

    /// Opens a FIFO. Does not wait until somebody opens its other end.
    pub(crate) fn open_fifo(&self, name: &str, access: OFlags) -> io::Result<File> {
        let flags = access | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(openat(&self.folder, name, flags, Mode::empty())?);
        match FileType::from_raw_mode(file.metadata()?.mode()) {
            FileType::Fifo => Ok(file),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Whether any process has a FIFO open for reading.
    pub(crate) fn reader(&self, name: &str) -> Reader {
        match self.open_fifo(name, OFlags::WRONLY) {
            Ok(_) => Reader::There,
            // A socket gives the same error, so the type is checked.
            Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) && self.is_fifo(name) => {
                Reader::Gone
            }
            Err(_) => Reader::Unknown,
        }
    }

    /// Whether this open file is the one of this name in the folder.
    pub(crate) fn holds(&self, name: &str, file: &File) -> bool {
        let open = file.metadata().map(|open| (open.dev(), open.ino()));
        self.stat(name).is_some_and(|found| open.is_ok_and(|open| open == id(&found)))
    }

    /// How long ago a FIFO was made; `None` if it is none.
    pub(crate) fn age(&self, name: &str) -> Option<std::time::Duration> {
        let file = self.open_fifo(name, OFlags::RDWR).ok()?;
        let made: SystemTime = file.metadata().ok()?.modified().ok()?;
        made.elapsed().ok()
    }

    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.folder, from, &self.folder, to)?)
    }

    /// Removes a FIFO. A file of another type stays.
    pub(crate) fn remove(&self, name: &str) {
        if self.is_fifo(name) {
            unlinkat(&self.folder, name, AtFlags::empty()).ok();
        }
    }

    /// The names of the files in the folder.
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

impl Circle {
    /// Gives the folder the mode and the group that the users of the store need, if this user owns it.
    fn adopt(&self, folder: &File) {
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
            self.hand_over(folder);
        }
    }

    /// Gives a file of this user to the store's group. Root also gives it to the store's owner, who could not use it
    /// otherwise.
    fn hand_over(&self, file: &File) {
        let Ok(found) = file.metadata() else { return };
        let (owner, group) = self.owner;
        if geteuid().is_root() && (found.uid(), found.gid()) != (owner, group) {
            fchown(file, Some(Uid::from_raw(owner)), Some(Gid::from_raw(group))).ok();
        } else if self.group && found.gid() != group {
            fchown(file, None, Some(Gid::from_raw(group))).ok();
        }
    }
}

fn open_folder(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty())
}

fn id(found: &Stat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}
