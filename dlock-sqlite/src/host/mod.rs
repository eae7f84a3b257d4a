//! Queries about the host. They return its name, the id of its boot, whether other kernels may use
//! a file, and the process that has locked a file.

pub(crate) mod clock;
pub(crate) mod descriptors;

use std::path::{Path, PathBuf};

use dlock_core::Result;

/// Returns the host's name, for display.
#[cfg(unix)]
pub(crate) fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the host's name, for display.
#[cfg(not(unix))]
pub(crate) fn name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "this host".to_owned())
}

/// Returns the id of the host's boot, with the offset of the clock if this process is in a time
/// namespace. Processes that created claims in another boot have ended.
///
/// # Errors
/// [`InvalidConfig`](dlock_core::Error::InvalidConfig) if Linux does not provide the id. Without
/// it, claims of this boot and of an earlier one cannot be distinguished.
/// [`Unwritable`](dlock_core::Error::Unwritable) without a free file descriptor.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn boot() -> Result<String> {
    const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
    let boot = read(BOOT_ID)?.trim().to_owned();
    if boot.is_empty() {
        let reason = format!(
            "cannot tell which boot of the host this is, because `{BOOT_ID}` cannot be read: let this process see \
             `/proc/sys`, or use another store"
        );
        return Err(dlock_core::Error::InvalidConfig { reason });
    }
    // Offset of the clock in a time namespace.
    let offsets = read("/proc/self/timens_offsets")?;
    let offset = offsets.lines().find_map(|line| line.strip_prefix("boottime")).unwrap_or_default();
    Ok(match offset.split_whitespace().collect::<Vec<_>>()[..] {
        [seconds, nanos] if (seconds, nanos) != ("0", "0") => format!("{boot} {seconds} s {nanos} ns"),
        _ => boot,
    })
}

/// Reads a file of the kernel. A file that does not exist or cannot be read counts as empty.
///
/// # Errors
/// [`Unwritable`](dlock_core::Error::Unwritable) without a free file descriptor, because the file
/// may have content.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn read(path: &str) -> Result<String> {
    match std::fs::read_to_string(path) {
        Err(source) if descriptors::are_missing(&source) => {
            Err(crate::error::without_descriptors(Path::new(path), source))
        }
        content => Ok(content.unwrap_or_default()),
    }
}

/// Returns the same id for all boots on other systems. Claims of an earlier boot end with their
/// ttl.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn boot() -> Result<String> {
    Ok(String::new())
}

/// Returns whether a single file is a mount point. In that case this process does not see the same
/// files beside it as other processes do. `false` if the kernel does not report it (Linux before
/// 5.8).
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn is_mount_root(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty());
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Returns `false`, because other systems cannot mount single files.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
pub(crate) fn is_mount_root(_: &Path) -> bool {
    false
}

/// Returns the name of a directory's file system, if other kernels may have it mounted too. Kernels
/// do not share SQLite's memory, and another boot id does not mean an earlier boot between them.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn shared_file_system(dir: &Path) -> Option<&'static str> {
    let found = rustix::fs::statfs(dir).ok()?.f_type as u32;
    SHARED_FILE_SYSTEMS.iter().find(|(magic, _)| *magic == found).map(|(_, name)| *name)
}

/// Returns `None`, because dlock cannot detect it on other systems.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn shared_file_system(_: &Path) -> Option<&'static str> {
    None
}

/// Returns whether the file system of a file is mounted read-only.
#[cfg(unix)]
pub(crate) fn is_read_only(file: &Path) -> bool {
    use rustix::fs::{StatVfsMountFlags, statvfs};
    statvfs(file).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Returns `false`, because dlock cannot detect it on other systems.
#[cfg(not(unix))]
pub(crate) fn is_read_only(_: &Path) -> bool {
    false
}

/// Returns the id of another process that has locked one of these files for writing, and whether
/// that process is suspended. If there are several, a suspended process is preferred. `None` if the
/// host reports none.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn lock_owner(files: &[PathBuf]) -> Option<(u32, bool)> {
    use std::os::unix::fs::MetadataExt;
    // The files are not opened, because closing them would release the locks that SQLite has on
    // them.
    let inode = |file: &PathBuf| Some(format!(":{}", file.symlink_metadata().ok()?.ino()));
    let inodes: Vec<_> = files.iter().filter_map(inode).collect();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let owners = locks.lines().filter_map(|line| {
        // `1: POSIX  ADVISORY  WRITE 4711 fe:00:393240 120 120`. The line of a waiter has an arrow,
        // and so one column more.
        let columns: Vec<_> = line.split_whitespace().collect();
        let [_, _, _, "WRITE", pid, file, _, _] = columns[..] else { return None };
        let pid: u32 = pid.parse().ok().filter(|pid| *pid != std::process::id())?;
        inodes.iter().any(|inode| file.ends_with(inode)).then(|| (pid, is_stopped(pid)))
    });
    owners.max_by_key(|(_, stopped)| *stopped)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

/// Returns `None`, because other systems do not report it.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn lock_owner(_: &[PathBuf]) -> Option<(u32, bool)> {
    None
}

/// File systems that several kernels may have mounted, by their numbers in statfs(2). A FUSE file
/// system may be local, but sshfs and virtiofs have the same number.
#[cfg(any(target_os = "linux", target_os = "android"))]
const SHARED_FILE_SYSTEMS: [(u32, &str); 21] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xfe53_4d42, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "FUSE"),
    (0x1983_0326, "BeeGFS"),
    (0x2003_0528, "OrangeFS"),
    (0xaad7_aaea, "PanFS"),
    (0x786f_4256, "vboxsf"),
    (0xbacb_acbc, "vmhgfs"),
    (0x7c7c_6673, "prl_fs"),
    (0x00c0_ffee, "hostfs"),
];
