//! Waits: each ends at its limit, and a free lock is granted.

use std::time::Duration;

use super::{
    super::{
        clock::{Nanos, nanos},
        event::End,
        faults::FaultKind,
        record::{Acquisition, Record},
    },
    Facts, Violation,
    spans::{Span, common, union, without},
};
use crate::history::{AcquisitionId, Rule};

/// Returns a violation for each wait that ended later than its limit. The time for which the process
/// was stopped does not count.
pub(super) fn too_long(record: &Record, facts: &Facts) -> Vec<Violation> {
    let late = |(index, acquisition): (usize, &Acquisition)| {
        // The duration of a try is not limited by its caller.
        let limit = acquisition.wait.filter(|wait| *wait > 0)?;
        let ended = acquisition.waited_until()?;
        let stopped = record.faults.iter().filter(|fault| fault.kind == FaultKind::Pause);
        let stopped = stopped.filter(|fault| fault.client == Some(acquisition.process.client));
        let stopped = stopped.map(|fault| overlap((fault.from, fault.until), (acquisition.began, ended)));
        let waited = (ended - acquisition.began).saturating_sub(stopped.sum());
        (waited > limit.saturating_add(nanos(facts.slack))).then(|| {
            let (waited, limit) = (Duration::from_nanos(waited), Duration::from_nanos(limit));
            let what = format!("#{index} waited for {waited:.1?} with a limit of {limit:.1?}");
            Violation::new(Rule::Progress, what, vec![AcquisitionId::new(index)])
        })
    };
    record.acquisitions.iter().enumerate().filter_map(late).collect()
}

fn overlap(a: Span, b: Span) -> Nanos {
    a.1.min(b.1).saturating_sub(a.0.max(b.0))
}

/// Returns a violation for each lock that stayed free for longer than the slack while a task waited
/// for it. The time of a fault and of the store's memory after it does not count, because a claim that
/// no task knows may hold the lock then.
pub(super) fn of_free_locks(record: &Record, facts: &Facts) -> Vec<Violation> {
    let mut names = vec![Vec::new(); facts.names.len()];
    for (index, acquisition) in record.acquisitions.iter().enumerate() {
        names[acquisition.name].push((index, acquisition));
    }
    let faults = record.faults.iter();
    let disturbed = union(faults.map(|fault| (fault.from, fault.until + nanos(facts.memory))).collect());
    let calm = without(&[(facts.start, facts.end)], &disturbed);
    let mut violations = Vec::new();
    for (name, acquisitions) in names.iter().enumerate() {
        let spans = |span: &dyn Fn(&Acquisition) -> Option<Span>| {
            union(acquisitions.iter().filter_map(|(_, acquisition)| span(acquisition)).collect())
        };
        let held = spans(&|acquisition| Some((acquisition.granted?, may_hold_until(acquisition, facts))));
        // A client with many tasks sends a bounded number of requests at once, so a task may wait inside
        // of its client first.
        let waited = spans(&|acquisition| {
            Some((acquisition.queued?.sent, acquisition.waited_until().unwrap_or(facts.end)))
        });
        for (from, until) in common(&without(&calm, &held), &waited) {
            if until - from <= nanos(facts.slack) {
                continue;
            }
            let waits = |acquisition: &Acquisition| {
                acquisition.queued.is_some_and(|queued| queued.sent < until)
                    && acquisition.waited_until().is_none_or(|ended| from < ended)
            };
            let waiting = acquisitions.iter().filter(|(_, acquisition)| waits(acquisition));
            let waiting = waiting.map(|(index, _)| AcquisitionId::new(*index)).collect();
            let what = format!(
                "`{}` was free for {:.1?} while tasks waited for it",
                facts.names[name].name,
                Duration::from_nanos(until - from)
            );
            violations.push(Violation::new(Rule::Progress, what, waiting));
        }
    }
    violations
}

/// Returns the time up to which the store may keep the claim of this hold.
fn may_hold_until(acquisition: &Acquisition, facts: &Facts) -> Nanos {
    match (acquisition.released, acquisition.held_until()) {
        (Some(released), _) => released,
        // The keeper releases in the background.
        (None, Some(end)) => end + nanos(facts.memory),
        (None, None) => Nanos::MAX,
    }
}

/// Returns a violation for each request that the store refused for good. No fault justifies it.
pub(super) fn refused(record: &Record) -> Vec<Violation> {
    let refused = |(index, acquisition): (usize, &Acquisition)| match &acquisition.ended {
        Some((_, End::Refused(error))) => {
            let what = format!("#{index} failed with an error that no retry overcomes: {error}");
            Some(Violation::new(Rule::Refusal, what, vec![AcquisitionId::new(index)]))
        }
        _ => None,
    };
    record.acquisitions.iter().enumerate().filter_map(refused).collect()
}
