//! What of the host matters: its name, which boot this is, and whether a file is this kernel's alone.

use std::path::Path;

/// The host's name, for people.
#[cfg(unix)]
pub(crate) fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The host's name, for people.
#[cfg(not(unix))]
pub(crate) fn name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "this host".to_owned())
}

/// Which boot this is. Claims of another boot are of processes that are gone. Empty where the host does not say.
pub(crate) fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// The file system of a directory, if other kernels may see it too: there SQLite's shared memory is not shared, and
/// another boot id is not an earlier boot.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn foreign_file_system(dir: &Path) -> Option<&'static str> {
    let found = rustix::fs::statfs(dir).ok()?.f_type as u32;
    FOREIGN.iter().find(|(magic, _)| *magic == found).map(|(_, name)| *name)
}

/// Elsewhere the user must know.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn foreign_file_system(_: &Path) -> Option<&'static str> {
    None
}

/// The numbers of statfs(2). FUSE may be local, but sshfs and virtiofs look the same.
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
