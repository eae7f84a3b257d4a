//! Cost of `dlock run`, in system calls. They are counted by `strace`, so that a test does not
//! depend on the speed of the machine.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "the tests start processes, not tasks")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "cli/place.rs"]
mod place;

use std::{
    collections::HashSet,
    process::{Child, Command, Stdio},
};

use dlock_conformance::{Unreachable, or_ignore};
use place::{Ended, Place};

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_run_reads_no_process_other_than_its_own on no runtime,
        a_run_creates_two_threads_and_waits_for_few_disk_writes on no runtime,
    }])
}

/// Number of processes of the host that a run must not read. Enough to be seen among the few files
/// that a run opens.
const STRANGERS: usize = 20;

/// System calls of `dlock run x -- true`, one in each line, after the first run has created the
/// store. `None` if `strace` is missing and not required.
fn trace(calls: &str) -> Option<Vec<String>> {
    let place = Place::new();
    assert_eq!(place.run(["run", "x", "--", "true"]).status, 0);
    let dlock = place.dlock(["run", "x", "--", "true"]);
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e"]).arg(format!("trace={calls}")).arg("-o").arg(place.path("calls"));
    strace.arg(dlock.get_program()).args(dlock.get_args()).stdin(Stdio::null());
    for (variable, value) in dlock.get_envs() {
        match value {
            Some(value) => strace.env(variable, value),
            None => strace.env_remove(variable),
        };
    }
    let traced = match strace.output() {
        Ok(output) => Ok(Ended::from(output)),
        Err(error) => Err(format!("strace cannot be started: {error}")),
    };
    // Containers may forbid tracing.
    let traced = traced.and_then(|ended| match ended.err.contains("ptrace") {
        true => Err(format!("strace cannot trace: {}", ended.err)),
        false => Ok(ended),
    });
    let ended = or_ignore(traced.map_err(|reason| Unreachable { name: "strace".to_owned(), reason }))?;
    assert_eq!(ended.status, 0, "{}", ended.err);
    Some(place.read("calls").lines().map(str::to_owned).collect())
}

/// Stops its processes when it is dropped.
struct Strangers(Vec<Child>);

impl Strangers {
    fn start() -> Self {
        let start = |_| Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        Self((0..STRANGERS).map(start).collect())
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        for stranger in &mut self.0 {
            stranger.kill().ok();
            stranger.wait().ok();
        }
    }
}

/// A host may have thousands of processes, and a cron job that starts every minute would read them
/// all.
fn a_run_reads_no_process_other_than_its_own() {
    let strangers = Strangers::start();
    let Some(calls) = trace("open,openat,execve") else { return };
    let strangers: HashSet<_> =
        strangers.0.iter().map(|stranger| format!("/proc/{}/", stranger.id())).collect();
    let read: Vec<_> =
        calls.iter().filter(|call| strangers.iter().any(|stranger| call.contains(stranger))).collect();
    assert!(calls.iter().any(|call| call.contains("locks.db")), "the trace is incomplete: {calls:#?}");
    assert!(read.is_empty(), "{} of {STRANGERS} other processes were read: {read:#?}", read.len());
}

/// The threads are those of the store's client and of sqlx. A release waits for no disk, but SQLite
/// writes its log back to the file when its last user closes it.
fn a_run_creates_two_threads_and_waits_for_few_disk_writes() {
    let Some(calls) = trace("clone,clone3,vfork,fork,fsync,fdatasync") else { return };
    let count = |word: &str| calls.iter().filter(|call| call.contains(word)).count();
    let (threads, writes) = (count("CLONE_THREAD"), count("fsync(") + count("fdatasync("));
    assert_eq!(threads, 2, "{calls:#?}");
    assert!(writes <= 4, "{writes} disk writes were waited for: {calls:#?}");
}
