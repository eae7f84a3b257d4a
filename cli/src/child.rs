//! The command while it runs. dlock forwards signals to it, waits for its end, and stops it when
//! the lock is lost.

use std::{
    fs::File,
    io::{self, ErrorKind, IsTerminal},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Command, ExitStatus},
    time::Duration,
};

use dlock::Guard;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use rustix::{
    io::Errno,
    process::{
        Pid, Signal, getpgid, getpgrp, getpid, kill_process, kill_process_group, test_kill_process_group,
    },
    termios::tcgetpgrp,
};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    descendants, exec,
    exit::{self, Failure, Outcome},
    output,
    signals::Signals,
};

/// Interval at which the processes of a command that is being terminated are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum number of times that KILL is sent to the remaining processes, once per
/// [`CHECK_INTERVAL`].
const MAX_KILLS: u32 = 100;

/// Upper bound of the grace period. Prevents an overflow of the clock.
const LONGEST_GRACE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A running command.
pub(crate) struct Child {
    process: tokio::process::Child,
    pid: Pid,
    target: Target,
    /// Whether the orphans of the command become children of dlock.
    adopts: bool,
    /// Children of this process that are older than the command, such as those of a shell that
    /// executed dlock in its place.
    others: Vec<Pid>,
}

/// Processes that forwarded signals are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// The process group of the command, which also contains the processes that it has started.
    Group,
    /// The command only. It shares dlock's process group, so that it can read from the terminal, as
    /// a pager and a password prompt do even if stdin is a file. The terminal would suspend a
    /// background group that reads. Signals of the terminal (Ctrl-C) reach the command directly.
    Process,
}

impl Child {
    /// Starts a command. If it has a process group of its own, `signals` also receives the signals that
    /// a terminal would send to that group.
    pub(crate) fn spawn(mut command: Command, signals: &mut Signals) -> Outcome<Self> {
        let others = descendants::all();
        let adopts = descendants::adopt() || is_first();
        let target =
            if io::stdin().is_terminal() || is_in_foreground() { Target::Process } else { Target::Group };
        if target == Target::Group {
            signals.listen_to(&[Signal::WINCH, Signal::TSTP, Signal::CONT])?;
            command.process_group(0);
        }
        // Kill the command on drop, because a panicking dlock no longer renews the lock.
        let mut command = tokio::process::Command::from(command);
        let process = command.kill_on_drop(true).spawn();
        let process = process.map_err(|error| exec::spawn_failure(command.as_std(), &error))?;
        let pid = process.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let pid = pid.ok_or_else(|| exec::spawn_failure(command.as_std(), &ErrorKind::NotFound.into()))?;
        Ok(Self { process, pid, target, adopts, others })
    }

    /// Forwards signals to the command until it ends, and returns its exit status. Leaves a
    /// suspended command suspended if its lock is lost.
    pub(crate) async fn wait(&mut self, signals: &mut Signals, guard: &Guard) -> Outcome<ExitStatus> {
        // After a pause this dlock may receive CONT before its keeper has detected the loss. The
        // caller sends TERM first, so that the command does not run beside the next holder.
        self.forward_until_end(signals, |signal| signal != Signal::CONT || !guard.is_lost()).await
    }

    /// Forwards the signals for which `is_forwarded` returns `true`, until the command ends.
    async fn forward_until_end(
        &mut self,
        signals: &mut Signals,
        is_forwarded: impl Fn(Signal) -> bool,
    ) -> Outcome<ExitStatus> {
        loop {
            tokio::select! {
                biased;
                status = self.process.wait() => {
                    return status.map_err(|error| Failure::internal("cannot wait for the command", &error));
                }
                event = signals.next_or_child() => match event {
                    Some(signal) if is_forwarded(signal) => self.forward(signal),
                    Some(_) => {}
                    None => self.reap_others(),
                },
            }
        }
    }

    /// Reaps the orphans of the command that have ended. dlock is their parent, so no other process
    /// would reap them.
    fn reap_others(&self) {
        let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
        // `WNOWAIT` leaves the status of the command itself to `wait`.
        let next = || waitid(Id::All, ended | WaitPidFlag::WNOWAIT).ok().and_then(|status| status.pid());
        let is_other =
            |pid: &nix::unistd::Pid| self.adopts && pid.as_raw() != self.pid.as_raw_nonzero().get();
        while let Some(pid) = next().filter(is_other) {
            waitid(Id::Pid(pid), ended).ok();
        }
    }

    /// Sends TERM to the command and all its descendants.
    pub(crate) fn terminate(&self) {
        self.send_to_all(Signal::TERM).ok();
        // A suspended process would not react to TERM, so continue it.
        self.send_to_all(Signal::CONT).ok();
    }

    /// Waits for the end of the command and its descendants after [`terminate`](Self::terminate).
    /// Sends KILL to the processes that still run after `grace`. Waits without a limit for a command
    /// that runs as another user and cannot be killed, and says so. Does not wait for its
    /// descendants of that kind.
    pub(crate) async fn stop(&mut self, grace: Duration, signals: &mut Signals) -> Outcome<ExitStatus> {
        let limit = Instant::now() + grace.min(LONGEST_GRACE);
        let all = |_| true;
        let status = match timeout_at(limit, self.forward_until_end(signals, all)).await {
            Ok(status) => status,
            Err(_) => {
                if self.send_to_all(Signal::KILL).is_err() {
                    let pid = self.pid.as_raw_nonzero();
                    output::say(&format!(
                        "cannot stop the command (process {pid}), which runs as another user; it may run beside the next holder"
                    ));
                }
                self.forward_until_end(signals, all).await
            }
        };
        while self.has_processes() && Instant::now() < limit {
            sleep(CHECK_INTERVAL).await;
            self.reap_others();
        }
        // More than once, because a killed process may have started another one just before.
        for _ in 0..MAX_KILLS {
            if !self.has_processes() {
                break;
            }
            self.send_to_all(Signal::KILL).ok();
            sleep(CHECK_INTERVAL).await;
            self.reap_others();
        }
        if self.has_processes() {
            output::say(
                "processes of the command cannot be stopped, for example because they run as another user; they may run \
                 beside the next holder",
            );
        }
        status
    }

    /// Returns whether the command or a descendant of it still runs.
    fn has_processes(&self) -> bool {
        let in_group = self.target == Target::Group && test_kill_process_group(self.pid) != Err(Errno::SRCH);
        in_group || self.adopts && !descendants::all_but(&self.others).is_empty()
    }

    /// Sends a signal to the command and its descendants, also to those in other process groups and
    /// sessions.
    ///
    /// # Errors
    /// This user may not send signals to the command.
    fn send_to_all(&self, signal: Signal) -> Result<(), Denied> {
        // Whether or not `/proc` lists the command. A command whose main thread has ended looks as if
        // it had ended.
        let sent = self.send(signal);
        if self.adopts {
            let has_it = |pid: &Pid| match self.target {
                Target::Group => getpgid(Some(*pid)) == Ok(self.pid),
                Target::Process => *pid == self.pid,
            };
            for pid in descendants::all_but(&self.others).into_iter().filter(|pid| !has_it(pid)) {
                kill_process(pid, signal).ok();
            }
        }
        sent
    }

    fn forward(&self, signal: Signal) {
        let comes_from_terminal =
            self.target == Target::Process && [Signal::INT, Signal::QUIT].contains(&signal);
        if !comes_from_terminal {
            self.send(signal).ok();
        }
        if signal == Signal::TSTP {
            // dlock is suspended together with the command. Otherwise the command would continue
            // without renewals of its lock. `signals` receives CONT.
            kill_process(getpid(), Signal::STOP).ok();
        }
    }

    /// Sends a signal to the target. A process that has ended needs none.
    ///
    /// # Errors
    /// This user may not send signals to the command, for example because it is a set-user-id program.
    fn send(&self, signal: Signal) -> Result<(), Denied> {
        let sent = match self.target {
            Target::Group => kill_process_group(self.pid, signal),
            // Its process id may belong to another process once its status was read.
            Target::Process if self.process.id().is_none() => Ok(()),
            Target::Process => kill_process(self.pid, signal),
        };
        if sent == Err(Errno::PERM) { Err(Denied) } else { Ok(()) }
    }
}

/// This user may not send signals to the command.
struct Denied;

/// Returns whether dlock is the first process of a container.
fn is_first() -> bool {
    std::process::id() == 1
}

/// Returns whether dlock runs in the foreground of a terminal.
fn is_in_foreground() -> bool {
    File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
}

/// Returns the status that a shell would report.
pub(crate) fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, signal) => exit::killed(signal.unwrap_or_default()),
    }
}

/// Returns the outcome of dlock after a command with this status. After INT dlock ends by INT too.
pub(crate) fn outcome_of(status: ExitStatus) -> Outcome {
    match status.signal() {
        Some(signal) if signal == Signal::INT.as_raw() => Err(Failure::stopped(Signal::INT)),
        _ => Ok(code(status)),
    }
}
