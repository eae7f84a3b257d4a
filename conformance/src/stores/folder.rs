//! Where servers keep their files, and the watch that ends them.

use std::{
    fs, io,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

/// A folder with a folder for each server. Its end is the end of the servers, and of itself.
///
/// A shell of its own sees to that, since a test binary that is killed cannot.
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
        // Nobody is there to be told of a failure, and it leaves nothing to do.
        let _ = self.watch.wait();
    }
}
