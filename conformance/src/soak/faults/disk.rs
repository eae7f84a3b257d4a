//! A full disk below a store in a file.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use dlock_core::driver::StoreUrl;

/// Largest file system that the tool fills. A larger one is not made for a test.
const LARGEST: u64 = 256 << 20;

/// The file system of a store, which the tool can fill. Dropping the value frees it.
#[derive(Debug)]
pub(in super::super) struct Disk {
    ballast: PathBuf,
}

impl Disk {
    /// Returns the file system of the store's file.
    ///
    /// # Errors
    /// The reason why it cannot be filled.
    pub(in super::super) fn of(url: &StoreUrl) -> Result<Self, String> {
        let path = Path::new(url.path());
        let folder = match path.parent() {
            Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
            Some(folder) => folder,
            None => path,
        };
        if !url.hosts().is_empty() || url.path().is_empty() || !folder.is_dir() {
            return Err(format!(
                "`full` fills the disk of a store in a file, and `{}:` names none; the disk of a server is not within \
                 reach of the tool",
                url.scheme()
            ));
        }
        let of_folder = |error: io::Error| format!("`full` cannot read {}: {error}", folder.display());
        let size = rustix::fs::statvfs(folder).map_err(|error| of_folder(error.into()))?;
        let size = size.f_blocks.saturating_mul(size.f_frsize);
        if size == 0 || size > LARGEST {
            return Err(format!(
                "`full` fills only a file system of at most {} MiB, and that of {} has {} MiB; put the store on a small \
                 one: mount -t tmpfs -o size=16m tmpfs DIR",
                LARGEST >> 20,
                folder.display(),
                size >> 20
            ));
        }
        Ok(Self { ballast: folder.join(format!("dlock-soak-ballast-{}", std::process::id())) })
    }

    /// Fills the file system until no byte is left. Bytes that the store frees later are left free.
    ///
    /// # Errors
    /// If the file system fails in another way than being full.
    pub(in super::super) fn fill(&self) -> io::Result<()> {
        let mut file = File::options().append(true).create(true).open(&self.ballast)?;
        let block = [0; 64 << 10];
        let mut length = block.len();
        while length > 0 {
            match file.write(&block[..length]) {
                Ok(0) => length /= 2,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => length /= 2,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Frees the file system.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub(in super::super) fn free(&self) -> io::Result<()> {
        match fs::remove_file(&self.ballast) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.free().ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_without_a_file_is_refused() {
        for url in ["redis://h:1/0", "memory:", "x:"] {
            let reason = Disk::of(&url.parse().expect(url)).expect_err(url);
            assert!(reason.contains("store in a file"), "{reason}");
        }
    }

    #[test]
    fn a_large_file_system_is_refused_with_the_way_to_make_a_small_one() {
        let reason = Disk::of(&"sqlite:/usr/x.db".parse().expect("a URL")).expect_err("it is large");
        assert!(reason.contains("mount -t tmpfs"), "{reason}");
    }
}
