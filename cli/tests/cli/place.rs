//! A directory with a store of its own, and the processes that use it.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio},
    sync::{Arc, Once, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use signal_hook::flag;
use tempfile::TempDir;

/// Timeout of [`until`]. Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Place(TempDir);

/// Installs the handlers for signals that a user or a shell may send.
static LISTENING: Once = Once::new();

/// Handles signals that a shell may have disabled for this process.
///
/// A shell makes background processes ignore some signals, and their children inherit this. A child
/// of a process with a handler starts with the default action instead.
fn listen() {
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT] {
        let always = Arc::new(AtomicBool::new(true));
        flag::register_conditional_shutdown(signal.as_raw(), 128 + signal.as_raw(), always).unwrap();
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        LISTENING.call_once(listen);
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Returns a `dlock` with the store of this place, and without variables from the environment
    /// of the tests.
    pub(crate) fn dlock<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        self.command(Path::new(env!("CARGO_BIN_EXE_dlock")), args)
    }

    /// Returns the same for a `dlock` at this path.
    pub(crate) fn command<S: AsRef<OsStr>>(
        &self,
        program: &Path,
        args: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(&self.0).stdin(Stdio::null());
        // A new process group, so that dlock is not in the foreground of the tests' terminal.
        command.process_group(0);
        command.env("DLOCK_STORE", format!("sqlite:{}", self.path("locks.db").display()));
        // For commands that call dlock.
        command.env("DLOCK", program);
        for variable in ["DLOCK_NAME", "DLOCK_TOKEN", "DLOCK_HELD", "DLOCK_WHO", "DLOCK_CONFIG"] {
            command.env_remove(variable);
        }
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ended {
        Ended::of(&mut self.dlock(args))
    }

    /// Runs a shell with the variables of [`dlock`](Self::dlock).
    pub(crate) fn run_shell(&self, text: &str) -> Ended {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(text).current_dir(&self.0).stdin(Stdio::null()).process_group(0);
        for (key, value) in self.dlock(["help"]).get_envs() {
            match value {
                Some(value) => shell.env(key, value),
                None => shell.env_remove(key),
            };
        }
        Ended::of(&mut shell)
    }

    /// Starts `dlock run NAME -- sh -c TEXT`, and waits for its first line.
    pub(crate) fn start(&self, args: &[&str], text: &str) -> Started {
        let args = [&["run"], args, &["--", "sh", "-c", text]].concat();
        Started::of(&mut self.dlock(args))
    }

    /// Starts a `dlock run NAME` that ends when its stdin is closed.
    pub(crate) fn hold(&self, args: &[&str]) -> Started {
        self.start(args, "echo held; read _; true")
    }

    /// Returns the output of `dlock inspect`.
    pub(crate) fn state(&self, name: &str) -> Value {
        serde_json::from_str(&self.run(["inspect", "--json", name]).out).expect("JSON")
    }

    /// Waits until a lock has `count` waiters.
    pub(crate) fn until_queued(&self, name: &str, count: usize) {
        until(&format!("{count} wait for {name}"), || {
            self.state(name)["queue"].as_array().unwrap().len() == count
        });
    }
}

/// Status and output of a process that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    pub(crate) fn of(command: &mut Command) -> Self {
        command.output().unwrap().into()
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Self { status: status(output.status), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// Returns the exit status, or the negative number of the signal that killed dlock.
fn status(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| -status.signal().unwrap_or_default())
}

/// A running process, with the first line of its output.
pub(crate) struct Started {
    process: Child,
    out: BufReader<ChildStdout>,
    pub(crate) first: String,
}

impl Started {
    pub(crate) fn of(command: &mut Command) -> Self {
        command.stdin(Stdio::piped());
        Self::with_its_stdin(command)
    }

    pub(crate) fn with_its_stdin(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut started =
            Self { out: BufReader::new(process.stdout.take().unwrap()), process, first: String::new() };
        started.first = started.line();
        started
    }

    /// Returns the next line of output. Empty if the process has ended.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Closes stdin, and waits for the end of the process.
    pub(crate) fn let_go(mut self) -> Ended {
        drop(self.process.stdin.take());
        self.end()
    }

    /// Waits for the end of the process.
    pub(crate) fn end(mut self) -> Ended {
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.process.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        Ended { status: status(self.process.wait().unwrap()), out, err }
    }
}

impl Drop for Started {
    /// Kills the process, so that a failed test leaves no process behind.
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Waits until `is_true` returns `true`. Panics after [`TIMEOUT`].
pub(crate) fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_true() {
        assert!(began.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns whether a process exists and is not a zombie.
pub(crate) fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .and_then(|rest| rest.trim_start().chars().next())
        .is_some_and(|state| state != 'Z')
}
