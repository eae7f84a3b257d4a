//! A directory with a store of its own, and the processes that use it.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::PathBuf,
    process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio},
    sync::{Arc, Once, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use signal_hook::flag;
use tempfile::TempDir;

/// Longer than anything here takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Place(TempDir);

/// Whether this process handles the signals that a person or a shell may send.
static LISTENING: Once = Once::new();

/// A shell makes processes in the background ignore some signals, and their children inherit that. So the tests handle these
/// signals: the children of a process that handles a signal begin with the default.
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

    /// `dlock` with the store of this place, and without the variables that the tests may have in their environment.
    pub(crate) fn dlock<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlock"));
        command.args(args).current_dir(&self.0).stdin(Stdio::null());
        // In a process group of its own, so that it is not in the foreground of the tests' terminal.
        command.process_group(0);
        command.env("DLOCK_STORE", format!("sqlite:{}", self.path("locks.db").display()));
        // So that a command may say `dlock` too.
        command.env("DLOCK", env!("CARGO_BIN_EXE_dlock"));
        for variable in ["DLOCK_NAME", "DLOCK_TOKEN", "DLOCK_HELD", "DLOCK_WHO", "DLOCK_CONFIG"] {
            command.env_remove(variable);
        }
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ended {
        Ended::of(&mut self.dlock(args))
    }

    /// A shell with the variables of [`dlock`](Self::dlock).
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

    /// A running `dlock run NAME -- sh -c TEXT`, after it has printed its first line.
    pub(crate) fn start(&self, args: &[&str], text: &str) -> Started {
        let args = [&["run"], args, &["--", "sh", "-c", text]].concat();
        Started::of(&mut self.dlock(args))
    }

    /// A running `dlock run NAME` that ends when its stdin is closed.
    pub(crate) fn hold(&self, args: &[&str]) -> Started {
        self.start(args, "echo held; read _; true")
    }

    /// What the store says about a lock.
    pub(crate) fn state(&self, name: &str) -> Value {
        serde_json::from_str(&self.run(["inspect", "--json", name]).out).expect("JSON")
    }

    /// Waits until so many wait for a lock.
    pub(crate) fn until_queued(&self, name: &str, count: usize) {
        until(&format!("{count} wait for {name}"), || {
            self.state(name)["queue"].as_array().unwrap().len() == count
        });
    }
}

/// How a process ended.
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

/// The exit status. Less than zero: the signal that killed dlock itself.
fn status(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| -status.signal().unwrap_or_default())
}

/// A process that runs, and its first line.
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

    /// The next line that the process prints; empty if the process ends.
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

    /// Closes its stdin, and waits for its end.
    pub(crate) fn let_go(mut self) -> Ended {
        drop(self.process.stdin.take());
        self.end()
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.process.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        Ended { status: status(self.process.wait().unwrap()), out, err }
    }
}

impl Drop for Started {
    /// A test that has failed leaves nothing running.
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Waits for something to become true.
pub(crate) fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_true() {
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process runs: it exists, and is no zombie.
pub(crate) fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .and_then(|rest| rest.trim_start().chars().next())
        .is_some_and(|state| state != 'Z')
}
