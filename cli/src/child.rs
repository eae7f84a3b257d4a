//! The command while it runs: signals to it, its end, and its stop when the lock is lost.

use std::{
    fs::File,
    io::{self, ErrorKind, IsTerminal},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Command, ExitStatus},
    time::Duration,
};

use nix::sys::wait::{Id, WaitPidFlag, waitid};
use rustix::{
    process::{
        Pid, Signal, getpgid, getpgrp, getpid, kill_process, kill_process_group, test_kill_process_group,
    },
    termios::tcgetpgrp,
};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    descendants, exec,
    exit::{self, Failure, Outcome},
    signals::Signals,
};

/// How often to look whether a process group that was told to stop has stopped.
const GLANCE: Duration = Duration::from_millis(20);

/// How often KILL is sent to what is left, with a [`GLANCE`] between.
const KILLS: u32 = 100;

/// The longest time that a clock can count without an overflow.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A running command.
pub(crate) struct Child {
    process: tokio::process::Child,
    pid: Pid,
    reach: Reach,
    /// Whether dlock is the parent of the processes whose parents are gone.
    adopts: bool,
    /// Children that this process had before it was dlock, such as those of a shell that became dlock.
    others: Vec<Pid>,
}

/// Where signals are passed on to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// The command and all processes that it has started. They are a process group of their own.
    Group,
    /// The command only. It shares our group, so that it may read from the terminal. What the terminal sends (Ctrl-C)
    /// reaches it without us. In another group the terminal would stop it when it reads from there, as it does for a
    /// password, or as a pager, whatever its stdin is.
    One,
}

impl Child {
    /// Starts a command. From then on `signals` also listens to all signals that are passed on.
    pub(crate) fn spawn(mut command: Command, signals: &mut Signals) -> Outcome<Self> {
        signals.and_to(&[Signal::USR1, Signal::USR2])?;
        let others = descendants::all_but(&[]);
        let adopts = descendants::adopt() || is_first();
        let reach = if io::stdin().is_terminal() || is_in_foreground() { Reach::One } else { Reach::Group };
        if reach == Reach::Group {
            signals.and_to(&[Signal::WINCH, Signal::TSTP, Signal::CONT])?;
            command.process_group(0);
        }
        // Kill the command on drop: if dlock panics, nobody renews the lock.
        let mut command = tokio::process::Command::from(command);
        let process = command.kill_on_drop(true).spawn();
        let process = process.map_err(|error| exec::unspawned(command.as_std(), &error))?;
        let pid = process.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let pid = pid.ok_or_else(|| exec::unspawned(command.as_std(), &ErrorKind::NotFound.into()))?;
        Ok(Self { process, pid, reach, adopts, others })
    }

    /// Waits until the command ends, and returns how it ended. Passes on signals meanwhile.
    pub(crate) async fn ended(&mut self, signals: &mut Signals) -> Outcome<ExitStatus> {
        loop {
            tokio::select! {
                biased;
                status = self.process.wait() => {
                    return status.map_err(|error| Failure::internal("cannot wait for the command", &error));
                }
                event = signals.next_or_child() => match event {
                    Some(signal) => self.pass_on(signal),
                    None => self.reap_others(),
                },
            }
        }
    }

    /// Reaps what has ended beside the command: dlock is the parent of the processes whose parents are gone, and nobody else
    /// would reap them.
    fn reap_others(&self) {
        let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
        // Only looked at: how the command ended is for whoever waits for it.
        let next = || waitid(Id::All, ended | WaitPidFlag::WNOWAIT).ok().and_then(|status| status.pid());
        let is_other =
            |pid: &nix::unistd::Pid| self.adopts && pid.as_raw() != self.pid.as_raw_nonzero().get();
        while let Some(pid) = next().filter(is_other) {
            waitid(Id::Pid(pid), ended).ok();
        }
    }

    /// Sends TERM to the command and all that it has started.
    pub(crate) fn terminate(&self) {
        self.send_to_all(Signal::TERM);
        // A stopped process would not react to TERM, so continue it.
        self.send_to_all(Signal::CONT);
    }

    /// Waits for the end of the command and all that it has started, after [`terminate`](Self::terminate). Sends KILL to the
    /// processes that are left after `grace`. Returns when all have ended, or cannot be killed.
    pub(crate) async fn stop(&mut self, grace: Duration, signals: &mut Signals) -> Outcome<ExitStatus> {
        let limit = Instant::now() + grace.min(FOR_EVER);
        let status = match timeout_at(limit, self.ended(signals)).await {
            Ok(status) => status,
            Err(_) => {
                self.send_to_all(Signal::KILL);
                self.ended(signals).await
            }
        };
        while self.are_left() && Instant::now() < limit {
            sleep(GLANCE).await;
            self.reap_others();
        }
        // More than once: a process that is killed may just have started another one.
        for _ in 0..KILLS {
            if !self.are_left() {
                break;
            }
            self.send_to_all(Signal::KILL);
            sleep(GLANCE).await;
            self.reap_others();
        }
        status
    }

    /// Whether processes are left that the command has started.
    fn are_left(&self) -> bool {
        let in_group = self.reach == Reach::Group && test_kill_process_group(self.pid).is_ok();
        in_group || self.adopts && !descendants::all_but(&self.others).is_empty()
    }

    /// Sends a signal to the command and all that it has started, also in process groups and sessions of their own.
    fn send_to_all(&self, signal: Signal) {
        if !self.adopts || self.reach == Reach::Group {
            self.send(signal);
        }
        if self.adopts {
            let has_it = |pid: &Pid| self.reach == Reach::Group && getpgid(Some(*pid)) == Ok(self.pid);
            for pid in descendants::all_but(&self.others).into_iter().filter(|pid| !has_it(pid)) {
                kill_process(pid, signal).ok();
            }
        }
    }

    fn pass_on(&self, signal: Signal) {
        let by_itself = self.reach == Reach::One && [Signal::INT, Signal::QUIT].contains(&signal);
        if !by_itself {
            self.send(signal);
        }
        if signal == Signal::TSTP {
            // dlock and the command stop together: otherwise the command would go on while nobody renews its lock. CONT
            // comes through `signals`.
            kill_process(getpid(), Signal::STOP).ok();
        }
    }

    /// Failures are ignored: a process that is gone needs no signal.
    fn send(&self, signal: Signal) {
        match self.reach {
            Reach::Group => kill_process_group(self.pid, signal).ok(),
            Reach::One => kill_process(self.pid, signal).ok(),
        };
    }
}

/// Whether dlock is the first process of a container.
fn is_first() -> bool {
    std::process::id() == 1
}

/// Whether dlock runs in the foreground of a terminal.
fn is_in_foreground() -> bool {
    File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
}

/// An exit status as a shell would give it.
pub(crate) fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, signal) => exit::killed(signal.unwrap_or_default()),
    }
}

/// The end of dlock after a command that ended like this.
pub(crate) fn likewise(status: ExitStatus) -> Outcome {
    match status.signal() {
        Some(signal) if signal == Signal::INT.as_raw() => Err(Failure::stopped(Signal::INT)),
        _ => Ok(code(status)),
    }
}
