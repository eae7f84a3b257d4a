//! The descendants of the command, which are its children, their children, and so on.

use nix::{
    errno::Errno,
    sys::wait::{Id, WaitPidFlag, waitid},
};
use rustix::process::Pid;

/// Makes orphaned descendants children of dlock, so that it finds all of them. Returns whether this
/// succeeded.
#[cfg(target_os = "linux")]
pub(crate) fn adopt() -> bool {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).is_ok()
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn adopt() -> bool {
    false
}

/// Returns the running descendants of this process. Takes a time that does not depend on the other
/// processes of the host, if there are no descendants.
pub(crate) fn all() -> Vec<Pid> {
    // Reaps no child.
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    // Also finds children that send another signal than SIGCHLD when they end.
    #[cfg(target_os = "linux")]
    let flags = flags | WaitPidFlag::__WALL;
    let has_no_child = waitid(Id::All, flags) == Err(Errno::ECHILD);
    if has_no_child { Vec::new() } else { all_but(&[]) }
}

/// Returns the running descendants of this process, except `others` and their descendants. Empty if
/// the system does not list processes.
pub(crate) fn all_but(others: &[Pid]) -> Vec<Pid> {
    let processes = table();
    let mut found = vec![rustix::process::getpid()];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(
            processes
                .iter()
                .filter(|(pid, its_parent)| *its_parent == parent && !others.contains(pid))
                .map(|(pid, _)| *pid),
        );
        at += 1;
    }
    found.split_off(1)
}

/// Returns all running processes, each with its parent.
fn table() -> Vec<(Pid, Pid)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let status = Status::of(pid)?;
        (!status.has_ended).then_some((Pid::from_raw(pid)?, Pid::from_raw(status.parent)?))
    })
    .collect()
}

/// Status of a process, from `/proc`.
pub(crate) struct Status {
    parent: i32,
    /// Whether the process is a zombie, which has ended but whose parent has not read the exit
    /// status.
    pub(crate) has_ended: bool,
    /// Start time in clock ticks since boot. It distinguishes a process from a later process with
    /// the same number.
    pub(crate) started: u64,
}

impl Status {
    /// Reads the status. `None` if the process does not exist, or if the system has no `/proc`.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name of the program is in parentheses, and may contain parentheses itself.
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        // A process whose main thread has ended is shown as a zombie while its other threads run.
        let has_ended = match *fields.first()? {
            "Z" => number(17)? <= 1,
            state => state == "X",
        };
        Some(Self { parent: fields.get(1)?.parse().ok()?, has_ended, started: number(19)? })
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_a_descendant_until_it_has_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        assert!(all_but(&[]).contains(&pid));
        assert!(!all_but(&[pid]).contains(&pid));
        assert!(all().contains(&pid));
        assert!(Status::of(pid.as_raw_nonzero().get()).unwrap().started > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!all_but(&[]).contains(&pid));
    }
}
