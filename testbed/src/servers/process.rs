//! A server as a child process of the test binary.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use dlock_conformance::Data;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use super::recipe::Member;

#[derive(Debug)]
pub(super) struct Process {
    folder: PathBuf,
    command: Vec<String>,
    data: &'static str,
    child: Mutex<Option<Child>>,
}

impl Process {
    pub(super) fn start(folder: &Path, member: &Member) -> io::Result<Self> {
        let Member { command, data, .. } = member;
        let process =
            Self { folder: folder.to_owned(), command: command.clone(), data, child: Mutex::new(None) };
        process.start_again(Data::Kept)?;
        Ok(process)
    }

    pub(super) fn start_again(&self, data: Data) -> io::Result<()> {
        let mut running = self.child.lock();
        if running.is_some() {
            return Err(io::Error::other("the server runs already"));
        }
        if data == Data::Lost {
            fs::write(self.folder.join("lost"), "")?;
        }
        let log = File::options().create(true).append(true).open(self.folder.join("log"))?;
        let child = Command::new("sh")
            .args(["-c", include_str!("serve.sh"), "serve.sh", self.data])
            .args(&self.command)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        fs::write(self.folder.join("pid"), child.id().to_string())?;
        *running = Some(child);
        Ok(())
    }

    pub(super) fn kill(&self) -> io::Result<()> {
        let mut child = self.child.lock().take().ok_or_else(not_running)?;
        child.kill()?;
        // Before `wait`, because afterwards the id may belong to another process.
        fs::remove_file(self.folder.join("pid"))?;
        child.wait()?;
        Ok(())
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = self.child.lock().as_ref().map(Pid::from_child).ok_or_else(not_running)?;
        Ok(kill_process(pid, signal)?)
    }

    /// Returns whether the server has ended without `kill`.
    pub(super) fn has_ended(&self) -> io::Result<bool> {
        let mut child = self.child.lock();
        let ended = child.as_mut().map(Child::try_wait).transpose()?.flatten().is_some();
        if ended {
            // From now on the id may belong to another process.
            fs::remove_file(self.folder.join("pid"))?;
            *child = None;
        }
        Ok(ended)
    }

    pub(super) fn log(&self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.folder.join("log"))?).into_owned())
    }
}

fn not_running() -> io::Error {
    io::Error::other("the server does not run")
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.lock().take() {
            // An error means that the process has ended already, or that it cannot be killed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
