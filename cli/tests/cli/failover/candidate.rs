//! One candidate of an election, and the faults of its processes and its link.

use std::{
    fs::{self, File},
    process::Child,
    thread::panicking,
    time::Duration,
};

use dlock_conformance::Proxy;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::{Fault, terms::Term};
use crate::place::{Place, until};

/// Options of each candidate, in addition to the ttl and a margin of half of it. After KILL, at
/// least a second of the margin is left for the end of the command.
const OPTIONS: [&str; 6] = ["--kill-after", "500ms", "--cooldown", "100ms..500ms", "--restart", "always"];

/// The command of a leader. Each line has the number of the term, the process of the command, the
/// process of dlock, and the state of the previous command.
const COMMAND: &str = r#"
    read -r previous <previous; echo $$ >previous
    { read -r stat </proc/$previous/stat; } 2>/dev/null
    stat=${stat##*) }; state=${stat%% *}
    while echo "$DLOCK_TERM $$ $PPID ${state:-ended}"; do sleep 0.01; done"#;

/// First part of a command that ignores TERM until the file `over` exists.
const IGNORE_TERM: &str = "trap 'test ! -e over || exit 143' TERM";

/// A `dlock lead`. Its command has a process group of its own.
pub(super) struct Candidate<'a> {
    place: &'a Place,
    pub(super) number: usize,
    store: String,
    link: Option<Proxy>,
    ttl: Duration,
    /// Whether its command ignores TERM.
    pub(super) ignores_term: bool,
    process: Child,
}

impl<'a> Candidate<'a> {
    pub(super) fn new(
        place: &'a Place,
        number: usize,
        store: String,
        link: Option<Proxy>,
        ttl: Duration,
    ) -> Self {
        let ignores_term = number % 2 == 1;
        let process = start(place, number, &store, ttl, ignores_term);
        Self { place, number, store, link, ttl, ignores_term, process }
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Returns the exit status. `None` if the process runs, or if a signal has ended it.
    pub(super) fn status(&mut self) -> Option<i32> {
        self.process.try_wait().unwrap()?.code()
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Injects a fault. `count` is the number of earlier faults.
    pub(super) fn inject(&self, fault: Fault, term: &Term, count: usize) {
        match (fault, &self.link) {
            (Fault::Kill, _) => self.signal(Signal::KILL),
            (Fault::Stop, _) => self.stop(term.command),
            // The store receives the requests of this time when the next candidate leads.
            (Fault::CutOff, Some(link)) if count.is_multiple_of(2) => link.stall(),
            (Fault::CutOff, Some(link)) => link.hang_up(),
            (Fault::CutOff, None) => panic!("a candidate without a link cannot be cut off"),
        }
    }

    /// Undoes a fault. A candidate that was killed starts again, as a service does.
    pub(super) fn recover(&mut self, fault: Fault) {
        match fault {
            Fault::Kill => {
                self.process.wait().unwrap();
                self.process = start(self.place, self.number, &self.store, self.ttl, self.ignores_term);
            }
            Fault::Stop => self.signal(Signal::CONT),
            Fault::CutOff => self.link.iter().for_each(Proxy::pass),
        }
    }

    /// Stops dlock and its command.
    fn stop(&self, command: Pid) {
        until("dlock is stopped outside a transaction", || {
            kill_process_group(command, Signal::STOP).ok();
            self.signal(Signal::STOP);
            until("dlock is stopped", || is_stopped(self.pid()));
            let is_in_transaction = self.link.is_none() && has_write_lock(self.pid());
            if is_in_transaction {
                // It would block all writers of the SQLite file, as the README of dlock-sqlite says.
                // dlock continues its command too.
                self.signal(Signal::CONT);
            }
            !is_in_transaction
        });
    }
}

impl Drop for Candidate<'_> {
    /// Kills the process, so that a failed test leaves no process behind. Prints the messages of
    /// the process in that case.
    #[expect(clippy::print_stderr, reason = "the directory with the messages is deleted")]
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
        if panicking() {
            eprintln!("candidate {}:\n{}", self.number, self.place.read(&stderr_of(self.number)));
        }
    }
}

fn start(place: &Place, number: usize, store: &str, ttl: Duration, ignores_term: bool) -> Child {
    let append = |name: &str| File::options().create(true).append(true).open(place.path(name)).unwrap();
    let command = if ignores_term { format!("{IGNORE_TERM}{COMMAND}") } else { COMMAND.to_owned() };
    let [ttl, margin] = [ttl, ttl / 2].map(|time| format!("{}ms", time.as_millis()));
    let args = ["lead", "--store", store, "--ttl", &ttl, "--margin", &margin];
    let mut dlock = place.dlock([&args[..], &OPTIONS, &["x", "-c", &command]].concat());
    dlock.stdout(append("terms")).stderr(append(&stderr_of(number))).spawn().unwrap()
}

fn stderr_of(number: usize) -> String {
    format!("{number}.err")
}

/// Returns whether all threads of a process are suspended.
fn is_stopped(pid: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap();
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
    })
}

/// Returns whether a process has an exclusive lock of a file, or waits for one.
fn has_write_lock(pid: Pid) -> bool {
    let pid = pid.as_raw_nonzero().to_string();
    let locks = fs::read_to_string("/proc/locks").unwrap();
    locks.lines().any(|line| line.contains(" WRITE ") && line.split_whitespace().any(|field| field == pid))
}
