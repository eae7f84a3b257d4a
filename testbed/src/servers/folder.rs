//! The folder of the servers' files, and the shell that ends the servers.

use std::{
    fs, io,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

/// A folder with a folder for each server. Dropping it ends the servers and removes the folder.
///
/// A separate shell does that, so that it also happens when the test binary is killed.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    watch: Child,
}

impl Folder {
    pub(super) fn new() -> io::Result<Self> {
        let folder = TempDir::with_prefix("dlock-test-")?;
        let watch = Command::new("sh")
            .args(["-c", include_str!("sweep.sh"), "sweep.sh"])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { path: folder.keep(), watch })
    }

    /// Makes the folder of a server.
    pub(super) fn server(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir(&path)?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.watch.stdin.take());
        // A failure is ignored: nobody could be told, and nothing could be done.
        let _ = self.watch.wait();
    }
}
