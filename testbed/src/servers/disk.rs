//! A file system of a server's own, which a test can fill, or make hang as a failing disk does.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Command,
};

use libtest_mimic::{Completion, Failed, Trial};

use super::folder::Folder;

/// Size of the file system. The file behind it is sparse. etcd allocates 64 MB for each of two log
/// files.
const SIZE: u64 = 512 << 20;

/// File that [`fill`] creates.
const FILLER: &str = "filler";

/// Checks whether servers can have file systems of their own. This requires root, and a kernel with
/// loop devices.
///
/// # Errors
/// The reason why they cannot.
pub fn check_own_disks() -> Result<(), String> {
    let check = || {
        // Its shell unmounts the file system, also if this process is killed.
        let servers = Folder::new()?;
        let folder = servers.server("disk")?;
        mount(&folder)?;
        hang(&folder)?;
        recover(&folder)
    };
    check().map_err(|error: io::Error| format!("servers cannot have disks of their own: {error}"))
}

/// Returns a trial whose servers need file systems of their own. It is ignored, with the reason, on
/// machines on which they cannot have them.
pub fn trial_with_disks(
    name: impl Into<String>,
    case: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, || match check_own_disks() {
        Ok(()) => case().map(|()| Completion::Completed),
        Err(reason) => Ok(Completion::ignored_with(reason)),
    })
}

/// Creates a file system in a file beside `folder`, and mounts it at `folder`. `sweep.sh` unmounts
/// it.
pub(super) fn mount(folder: &Path) -> io::Result<()> {
    let image = image(folder);
    File::create(&image)?.set_len(SIZE)?;
    run("mkfs.ext4", &[Path::new("-q"), "-O".as_ref(), "^has_journal".as_ref(), &image])?;
    run("mount", &["-o".as_ref(), "loop,noatime".as_ref(), &image, folder])
}

/// Makes every write to the file system wait until it [recovers](recover). Reads succeed.
///
/// # Errors
/// If `folder` has no file system of its own.
pub(super) fn hang(folder: &Path) -> io::Result<()> {
    // `fsfreeze` would freeze the file system of the host.
    if !image(folder).exists() {
        return Err(io::Error::other("the server has no disk of its own"));
    }
    run("fsfreeze", &["--freeze".as_ref(), folder])
}

pub(super) fn recover(folder: &Path) -> io::Result<()> {
    run("fsfreeze", &["--unfreeze".as_ref(), folder])
}

/// Leaves no free space in the file system.
///
/// # Errors
/// If `folder` has no file system of its own, or is full already.
pub(super) fn fill(folder: &Path) -> io::Result<()> {
    // The test would fill the disk of the machine.
    if !image(folder).exists() {
        return Err(io::Error::other("the server has no disk of its own"));
    }
    let mut filler = File::create_new(folder.join(FILLER))?;
    match io::copy(&mut io::repeat(0), &mut filler) {
        Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::other("the disk has no end")),
    }
}

/// Deletes what [`fill`] has written.
pub(super) fn empty(folder: &Path) -> io::Result<()> {
    fs::remove_file(folder.join(FILLER))
}

/// Returns the path of the file behind the file system at `folder`.
fn image(folder: &Path) -> PathBuf {
    folder.with_extension("disk")
}

fn run(program: &str, arguments: &[&Path]) -> io::Result<()> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| io::Error::other(format!("{program}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
