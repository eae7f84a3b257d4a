//! The exec step. A second dlock process requests to be killed together with the first, and then
//! executes the command in its place.
//!
//! A command must not outlive the dlock that renews its lock. Only the process of the command
//! itself can request from the kernel to be killed with its parent. Therefore dlock starts its own
//! program again, and the new process makes this request before it executes the command.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::{ffi::OsStrExt as _, process::CommandExt},
    path::Path,
    process::Command,
};

use rustix::{
    fs::{Access, access},
    io::Errno,
};

use crate::exit::Failure;

/// Folders in which the system searches a program if the variable `PATH` is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// First argument that selects this step.
pub(crate) const STEP: &str = "__exec";

/// Returns the command to spawn, which the kernel kills when this process ends.
#[cfg(target_os = "linux")]
pub(crate) fn tied(words: &[OsString]) -> Command {
    // Not the path of the program, because a new version may have replaced dlock during the wait.
    let mut step = Command::new("/proc/self/exe");
    step.arg0("dlock").arg(STEP).arg(std::process::id().to_string()).args(words);
    step
}

/// Returns the command to spawn. On this system it may outlive dlock.
#[cfg(not(target_os = "linux"))]
pub(crate) fn tied(words: &[OsString]) -> Command {
    untied(words)
}

/// Checks that the program of a command exists, and that this user may execute it. Does not detect
/// errors that only the execution shows, such as a missing interpreter of a script.
///
/// # Errors
/// The failure with which its execution would end.
pub(crate) fn check(words: &[OsString]) -> Result<(), Failure> {
    let command = untied(words);
    let program = command.get_program();
    if program.is_empty() || program.as_bytes().contains(&b'/') {
        return check_file(program.as_ref()).map_err(|error| exec_failure(&command, &error));
    }
    let path = env::var_os("PATH").unwrap_or(DEFAULT_PATH.into());
    let (mut error, mut is_denied) = (Errno::NOENT, false);
    for folder in env::split_paths(&path) {
        let Err(missing) = check_file(&folder.join(program)) else { return Ok(()) };
        // As the C library's search, which continues with the next folder after these errors.
        match Errno::from_io_error(&missing) {
            Some(Errno::ACCESS) => is_denied = true,
            Some(other @ (Errno::NOENT | Errno::NOTDIR | Errno::STALE | Errno::NODEV | Errno::TIMEDOUT)) => {
                error = other;
            }
            // Only the execution shows whether this is an error there too.
            _ => return Ok(()),
        }
    }
    let error = if is_denied { Errno::ACCESS } else { error };
    Err(exec_failure(&command, &error.into()))
}

/// Checks that this user may execute the file.
fn check_file(path: &Path) -> io::Result<()> {
    if !fs::metadata(path)?.is_file() {
        return Err(Errno::ACCESS.into());
    }
    Ok(access(path, Access::EXEC_OK)?)
}

/// Converts an error of spawning a [`tied`] command into a failure.
pub(crate) fn spawn_failure(command: &Command, error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::ArgumentListTooLong {
        // The exec step has more arguments than the command itself.
        let program = command.get_args().nth(2).unwrap_or(command.get_program());
        Failure::exec(&program.to_string_lossy(), error)
    } else if cfg!(target_os = "linux") {
        Failure::internal("cannot create a process for the command", error)
    } else {
        exec_failure(command, error)
    }
}

/// Runs the exec step with the arguments from [`tied`]. Returns only if the command cannot be
/// executed.
pub(crate) fn step(mut words: impl Iterator<Item = OsString>) -> Failure {
    let parent = words.next().and_then(|word| word.to_str()?.parse().ok());
    let words: Vec<_> = words.collect();
    let (Some(parent), false) = (parent, words.is_empty()) else {
        return Failure::usage(format!("`{STEP}` is internal to dlock; write `dlock run NAME -- CMD ARGS…`"));
    };
    match tie(parent) {
        Ok(true) => execute(untied(&words)),
        // The parent dlock has ended and no longer renews the lock.
        Ok(false) => Failure::orphaned(),
        Err(error) => Failure::internal("cannot bind the command to the life of dlock", &error),
    }
}

/// Requests to be killed with the parent. Returns `false` if the expected parent has already ended.
#[cfg(target_os = "linux")]
fn tie(parent: i32) -> io::Result<bool> {
    use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(getppid().map(Pid::as_raw_nonzero).is_some_and(|pid| pid.get() == parent))
}

#[cfg(not(target_os = "linux"))]
fn tie(_parent: i32) -> io::Result<bool> {
    Ok(true)
}

/// Executes the command in place of this process. Returns only if that fails.
pub(crate) fn replace(words: &[OsString], prepare: impl FnOnce(&mut Command)) -> Failure {
    let mut command = untied(words);
    prepare(&mut command);
    execute(command)
}

fn execute(mut command: Command) -> Failure {
    let error = command.exec();
    exec_failure(&command, &error)
}

fn untied(words: &[OsString]) -> Command {
    let (program, arguments) =
        words.split_first().map_or((OsStr::new(""), words), |(word, rest)| (word, rest));
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

fn exec_failure(command: &Command, error: &io::Error) -> Failure {
    Failure::exec(&command.get_program().to_string_lossy(), error)
}
