//! The exec step: a second dlock process asks to be killed with the first, and then becomes the command.
//!
//! A command must not outlive the dlock that renews its lock. Only the command's own process can ask the kernel to be
//! killed with its parent. So dlock starts itself once more; the new process asks for that, and then executes the command
//! in its place.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::process::CommandExt,
    process::Command,
};

use crate::exit::Failure;

/// The first argument that selects this step.
pub(crate) const STEP: &str = "__exec";

/// A command that is about to be spawned.
#[cfg(target_os = "linux")]
pub(crate) fn tied(words: &[OsString]) -> Command {
    // Not the path of the program: a new version may have replaced dlock while it waited.
    let mut step = Command::new("/proc/self/exe");
    step.arg0("dlock").arg(STEP).arg(std::process::id().to_string()).args(words);
    step
}

/// A command that is about to be spawned. Nothing ties it to us here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn tied(words: &[OsString]) -> Command {
    bare(words)
}

/// What a failure to spawn a [`tied`] command means.
pub(crate) fn unspawned(command: &Command, error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::ArgumentListTooLong {
        // The step before the command has one argument more than the command itself.
        let program = command.get_args().nth(2).unwrap_or(command.get_program());
        Failure::exec(&program.to_string_lossy(), error)
    } else if cfg!(target_os = "linux") {
        Failure::internal("cannot start the command: no new process", error)
    } else {
        unexecuted(command, error)
    }
}

/// The step itself, with the words that [`tied`] gave it. Returns only if the command cannot be executed.
pub(crate) fn step(mut words: impl Iterator<Item = OsString>) -> Failure {
    let parent = words.next().and_then(|word| word.to_str()?.parse().ok());
    let words: Vec<_> = words.collect();
    let (Some(parent), false) = (parent, words.is_empty()) else {
        return Failure::usage(format!("`{STEP}` is for dlock itself; write `dlock run NAME -- CMD ARGS…`"));
    };
    match tie(parent) {
        Ok(true) => become_it(bare(&words)),
        // The dlock that started us is dead, so nobody renews its lock any more.
        Ok(false) => Failure::orphaned(),
        Err(error) => Failure::internal("cannot tie the command to its lock", &error),
    }
}

/// Asks to be killed with the parent. `false` if the expected parent is gone already.
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

/// Turns this process into the command. Returns only if it cannot.
pub(crate) fn replace(words: &[OsString], prepare: impl FnOnce(&mut Command)) -> Failure {
    let mut command = bare(words);
    prepare(&mut command);
    become_it(command)
}

fn become_it(mut command: Command) -> Failure {
    let error = command.exec();
    unexecuted(&command, &error)
}

fn bare(words: &[OsString]) -> Command {
    let (program, arguments) =
        words.split_first().map_or((OsStr::new(""), words), |(word, rest)| (word, rest));
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

fn unexecuted(command: &Command, error: &io::Error) -> Failure {
    Failure::exec(&command.get_program().to_string_lossy(), error)
}
