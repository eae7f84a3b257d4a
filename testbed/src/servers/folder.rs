//! The folder of all files of a store's servers, and the shell that stops the servers.

use std::{
    fs, io,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

/// A folder with a subfolder for each server. Dropping it stops the servers and removes the folder.
///
/// A separate shell does both, so that they also happen when the test binary is killed.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    sweeper: Child,
}

impl Folder {
    pub(super) fn new() -> io::Result<Self> {
        let folder = TempDir::with_prefix("dlock-test-")?;
        let sweeper = Command::new("sh")
            .args(["-c", include_str!("sweep.sh"), "sweep.sh"])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { path: folder.keep(), sweeper })
    }

    /// Creates the subfolder of a server.
    pub(super) fn server(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir(&path)?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.sweeper.stdin.take());
        // A failure is ignored, because `drop` cannot report it.
        let _ = self.sweeper.wait();
    }
}
