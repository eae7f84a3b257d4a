//! The processes that a command has started, and those that they have started.

use rustix::process::Pid;

/// Makes dlock the parent of descendants whose own parents have ended, so that it finds them all. Returns whether it has.
#[cfg(target_os = "linux")]
pub(crate) fn adopt() -> bool {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).is_ok()
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn adopt() -> bool {
    false
}

/// All descendants of this process that have not ended, but for these and their own descendants. None where the system does not
/// tell.
pub(crate) fn all_but(others: &[Pid]) -> Vec<Pid> {
    let processes = table();
    let mut found = vec![rustix::process::getpid()];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(
            processes.iter().filter(|(pid, of)| *of == parent && !others.contains(pid)).map(|(pid, _)| *pid),
        );
        at += 1;
    }
    found.split_off(1)
}

/// All processes that have not ended, each with its parent.
fn table() -> Vec<(Pid, Pid)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let status = Status::of(pid)?;
        (!status.has_ended).then_some((Pid::from_raw(pid)?, Pid::from_raw(status.parent)?))
    })
    .collect()
}

/// What the system tells about a process.
pub(crate) struct Status {
    parent: i32,
    /// Whether only its exit status is left, which its parent has not read.
    pub(crate) has_ended: bool,
    /// Start time, in clock ticks since the system was booted. With it, a process is not taken for a later one of its number.
    pub(crate) started: u64,
}

impl Status {
    /// `None` if there is no such process, or the system does not tell.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name of the program is in parentheses, and may contain some itself.
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let has_ended = matches!(*fields.first()?, "Z" | "X");
        Some(Self { parent: fields.get(1)?.parse().ok()?, has_ended, started: number(19)? })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_a_descendant_until_it_has_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        assert!(all_but(&[]).contains(&pid));
        assert!(!all_but(&[pid]).contains(&pid));
        assert!(Status::of(pid.as_raw_nonzero().get()).unwrap().started > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!all_but(&[]).contains(&pid));
    }
}
