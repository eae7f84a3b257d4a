//! The record of a run. It has the acquisitions of all client processes, and the faults.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write},
};

use dlock_core::{Kind, Token};
use serde::Serialize;

use super::{
    clock::Nanos,
    event::{End, Event, Loss, Queued},
    faults::FaultKind,
};
use crate::history::Violation;

/// Identity of a client process, which consists of the client's number and of the number of its
/// earlier processes.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize)]
pub(super) struct ProcessId {
    pub(super) client: usize,
    pub(super) restarts: u32,
}

impl std::fmt::Display for ProcessId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.client, self.restarts)
    }
}

/// One acquisition of one task.
#[derive(Clone, Debug)]
pub(super) struct Acquisition {
    pub(super) process: ProcessId,
    /// Number of the acquisition in its process.
    pub(super) number: u64,
    /// Index of the lock's name.
    pub(super) name: usize,
    pub(super) kind: Kind,
    /// Wait limit of the caller. `None` if it waits forever.
    pub(super) wait: Option<Nanos>,
    pub(super) began: Nanos,
    pub(super) granted: Option<Nanos>,
    pub(super) token: Option<Token>,
    pub(super) queued: Option<Queued>,
    /// Latest time up to which the guard promised to hold.
    pub(super) valid_until: Nanos,
    /// Start of the last query that the guard answered with "held".
    pub(super) last_held: Option<Nanos>,
    pub(super) held_after_loss: Option<Nanos>,
    pub(super) releases: Option<Nanos>,
    pub(super) released: Option<Nanos>,
    pub(super) lost: Option<(Nanos, Loss)>,
    /// End without a hold, or failure of the release.
    pub(super) ended: Option<(Nanos, End)>,
    /// Time before the kill of the process.
    pub(super) killed: Option<Nanos>,
}

impl Acquisition {
    /// Returns the end of the wait. `None` if the task still waited when the record ended.
    pub(super) fn waited_until(&self) -> Option<Nanos> {
        let ended = self.ended.as_ref().map(|(at, _)| *at);
        self.granted.or(ended).or(self.killed)
    }

    /// Returns the end of the hold. `None` if the guard existed when the record ended.
    pub(super) fn held_until(&self) -> Option<Nanos> {
        let ends = [self.releases, self.lost.map(|(at, _)| at), self.killed];
        ends.into_iter().flatten().min()
    }
}

/// A fault, from before it was injected until after it had ended.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    /// The client that it affects. `None` if it affects all.
    pub(super) client: Option<usize>,
    pub(super) from: Nanos,
    pub(super) until: Nanos,
    pub(super) what: String,
}

impl Fault {
    /// Returns whether the fault affected this client at any time between `from` and `until`.
    pub(super) fn affects(&self, client: usize, from: Nanos, until: Nanos) -> bool {
        self.client.is_none_or(|affected| affected == client) && self.from <= until && from <= self.until
    }
}

#[derive(Default)]
pub(super) struct Record {
    pub(super) acquisitions: Vec<Acquisition>,
    pub(super) faults: Vec<Fault>,
    /// Transient errors, and how often each occurred.
    pub(super) errors: BTreeMap<String, usize>,
    /// Violations that were found by other means than the record.
    pub(super) noted: Vec<Violation>,
    pub(super) grants: usize,
    pub(super) losses: usize,
    /// Acquisitions of processes that still run.
    open: HashMap<(ProcessId, u64), usize>,
    log: Option<Box<dyn Write + Send>>,
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Record").field("acquisitions", &self.acquisitions.len()).finish_non_exhaustive()
    }
}

impl Record {
    /// Creates an empty record, which copies every line to `log`.
    pub(super) fn new(log: Option<Box<dyn Write + Send>>) -> Self {
        Self { log, ..Self::default() }
    }

    /// Adds a line of a client process.
    ///
    /// # Errors
    /// If the line is no event, or cannot be copied to the log.
    pub(super) fn line(&mut self, process: ProcessId, line: &str) -> io::Result<()> {
        let event: Event = serde_json::from_str(line)?;
        if let Some(log) = &mut self.log
            && let Some(rest) = line.strip_prefix('{')
        {
            writeln!(log, r#"{{"process":"{process}",{rest}"#)?;
        }
        self.event(process, event);
        Ok(())
    }

    /// Adds an event of a client process. An event of an unknown acquisition has no effect.
    pub(super) fn event(&mut self, process: ProcessId, event: Event) {
        match event {
            Event::Ready { .. } | Event::Failed { .. } | Event::Closed { .. } => {}
            Event::Attempt { of, at, name, kind, wait } => self.begin(process, of, at, name, kind, wait),
            Event::Grant { of, at, token, left, queued } => {
                self.grants += 1;
                self.change(process, of, |acquisition| {
                    (acquisition.granted, acquisition.token, acquisition.queued) = (Some(at), token, queued);
                    acquisition.promise(at, left);
                });
            }
            Event::Check { of, at, held, left, .. } => self.change(process, of, |acquisition| {
                if held {
                    acquisition.last_held = Some(at);
                    acquisition.promise(at, left);
                    if acquisition.lost.is_some() {
                        acquisition.held_after_loss = Some(at);
                    }
                }
            }),
            Event::Release { of, at, dropped } => {
                self.change(process, of, |acquisition| acquisition.releases = Some(at));
                if dropped {
                    self.open.remove(&(process, of));
                }
            }
            Event::Released { of, at } => {
                self.change(process, of, |acquisition| acquisition.released = Some(at));
                self.open.remove(&(process, of));
            }
            Event::Lost { of, at, reason } => {
                self.losses += 1;
                self.change(process, of, |acquisition| acquisition.lost = Some((at, reason)));
            }
            Event::Ended { of, at, how, queued } => {
                if let End::Failed(error) = &how {
                    *self.errors.entry(error.clone()).or_default() += 1;
                }
                self.change(process, of, |acquisition| {
                    (acquisition.ended, acquisition.queued) = (Some((at, how)), queued);
                });
                self.open.remove(&(process, of));
            }
        }
    }

    /// Records that a process was killed. `at` is a time before the kill.
    pub(super) fn killed(&mut self, process: ProcessId, at: Nanos) {
        for ((_, _), index) in self.open.iter().filter(|((open, _), _)| *open == process) {
            self.acquisitions[*index].killed = Some(at);
        }
        self.open.retain(|(open, _), _| *open != process);
    }

    /// Adds a fault that has ended.
    ///
    /// # Errors
    /// If it cannot be copied to the log.
    pub(super) fn fault(&mut self, fault: Fault) -> io::Result<()> {
        if let Some(log) = &mut self.log {
            writeln!(log, r#"{{"fault":{}}}"#, serde_json::to_string(&fault)?)?;
        }
        self.faults.push(fault);
        Ok(())
    }

    /// Writes what the log has buffered.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.log.as_mut().map_or(Ok(()), |log| log.flush())
    }

    fn begin(
        &mut self,
        process: ProcessId,
        number: u64,
        at: Nanos,
        name: usize,
        kind: Kind,
        wait: Option<Nanos>,
    ) {
        self.open.insert((process, number), self.acquisitions.len());
        self.acquisitions.push(Acquisition {
            process,
            number,
            name,
            kind,
            wait,
            began: at,
            granted: None,
            token: None,
            queued: None,
            valid_until: at,
            last_held: None,
            held_after_loss: None,
            releases: None,
            released: None,
            lost: None,
            ended: None,
            killed: None,
        });
    }

    fn change(&mut self, process: ProcessId, of: u64, change: impl FnOnce(&mut Acquisition)) {
        if let Some(acquisition) = self.open.get(&(process, of)).map(|index| &mut self.acquisitions[*index]) {
            change(acquisition);
        }
    }
}

impl Acquisition {
    fn promise(&mut self, at: Nanos, left: Nanos) {
        if left > 0 {
            self.valid_until = self.valid_until.max(at.saturating_add(left));
        }
    }
}
