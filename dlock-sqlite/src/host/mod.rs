//! Facts about the host: its name, which boot this is, whether other kernels may see a file, and who has locked it.

pub(crate) mod clock;

use std::path::{Path, PathBuf};

use dlock_core::Result;

/// The host's name, to show to people.
#[cfg(unix)]
pub(crate) fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The host's name, to show to people.
#[cfg(not(unix))]
pub(crate) fn name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "this host".to_owned())
}

/// Which boot of the host this is, and in a time namespace also by how much the clock differs there. The processes that
/// made claims in another boot are gone.
///
/// # Errors
/// [`InvalidConfig`](dlock_core::Error::InvalidConfig) where Linux does not say: then living and dead claims could not be
/// told apart.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn boot() -> Result<String> {
    const BOOT: &str = "/proc/sys/kernel/random/boot_id";
    let boot = std::fs::read_to_string(BOOT).unwrap_or_default().trim().to_owned();
    if boot.is_empty() {
        let reason = format!(
            "cannot tell which boot of the host this is, because `{BOOT}` cannot be read: let this process see \
             `/proc/sys`, or use another store"
        );
        return Err(dlock_core::Error::InvalidConfig { reason });
    }
    // In a time namespace the clock differs by this offset.
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let offset = offsets.lines().find_map(|line| line.strip_prefix("boottime")).unwrap_or_default();
    Ok(match offset.split_whitespace().collect::<Vec<_>>()[..] {
        [seconds, nanos] if (seconds, nanos) != ("0", "0") => format!("{boot} {seconds} s {nanos} ns"),
        _ => boot,
    })
}

/// On other systems all boots are one. Claims of an earlier boot end with their ttl.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn boot() -> Result<String> {
    Ok(String::new())
}

/// Whether a file is mounted by itself. Then this process sees other files beside it than other processes do. `false` where
/// the kernel does not say (Linux before 5.8).
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn is_mount_root(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty());
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// On other systems single files cannot be mounted.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
pub(crate) fn is_mount_root(_: &Path) -> bool {
    false
}

/// The file system of a directory, if other kernels may see it too. Between kernels SQLite's memory is not shared, and
/// another boot id does not mean an earlier boot.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn foreign_file_system(dir: &Path) -> Option<&'static str> {
    let found = rustix::fs::statfs(dir).ok()?.f_type as u32;
    FOREIGN.iter().find(|(magic, _)| *magic == found).map(|(_, name)| *name)
}

/// On other systems dlock cannot tell.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn foreign_file_system(_: &Path) -> Option<&'static str> {
    None
}

/// Whether the file system of a file is mounted read-only.
#[cfg(unix)]
pub(crate) fn is_read_only(file: &Path) -> bool {
    use rustix::fs::{StatVfsMountFlags, statvfs};
    statvfs(file).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// On other systems dlock cannot tell.
#[cfg(not(unix))]
pub(crate) fn is_read_only(_: &Path) -> bool {
    false
}

/// The id of another process that has locked one of these files for writing, if the host tells, and whether that process is
/// stopped. If there are several, one that is stopped.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn writer(files: &[PathBuf]) -> Option<(u32, bool)> {
    use std::os::unix::fs::MetadataExt;
    // The files are not opened: closing them again would end the locks that SQLite has on them.
    let inode = |file: &PathBuf| Some(format!(":{}", file.symlink_metadata().ok()?.ino()));
    let inodes: Vec<_> = files.iter().filter_map(inode).collect();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let writers = locks.lines().filter_map(|line| {
        // `1: POSIX  ADVISORY  WRITE 4711 fe:00:393240 120 120`; who waits for a lock has an arrow in front.
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, _, _, "WRITE", pid, file, _, _] = words[..] else { return None };
        let pid: u32 = pid.parse().ok().filter(|pid| *pid != std::process::id())?;
        inodes.iter().any(|inode| file.ends_with(inode)).then(|| (pid, is_stopped(pid)))
    });
    writers.max_by_key(|(_, stopped)| *stopped)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

/// On other systems the host does not tell.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn writer(_: &[PathBuf]) -> Option<(u32, bool)> {
    None
}

/// File systems that other kernels may see, by their numbers in statfs(2). FUSE may be local, but sshfs and virtiofs have
/// the same number.
#[cfg(any(target_os = "linux", target_os = "android"))]
const FOREIGN: [(u32, &str); 14] = [
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
];
