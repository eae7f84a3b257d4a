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

/// Returns a violation for each claim that waited for a free lock for longer than the slack.
///
/// The time of a fault and of the store's memory after it does not count, because a claim that no task
/// knows may hold the lock then. A client sends a bounded number of attempts at once. So the bound also
/// includes the longest time that a request spent inside of the waiter's client.
pub(super) fn of_free_locks(record: &Record, facts: &Facts) -> Vec<Violation> {
    let mut names = vec![Vec::new(); facts.names.len()];
    for (index, acquisition) in record.acquisitions.iter().enumerate() {
        names[acquisition.name].push((index, acquisition));
    }
    let faults = record.faults.iter();
    let disturbed = union(faults.map(|fault| (fault.from, fault.until + nanos(facts.memory))).collect());
    let calm = without(&[(facts.start, facts.end)], &disturbed);
    let slack = nanos(facts.slack);
    let mut violations = Vec::new();
    for (name, acquisitions) in names.iter().enumerate() {
        let holds = acquisitions
            .iter()
            .filter_map(|(_, acquisition)| Some((acquisition.granted?, may_hold_until(acquisition, facts))));
        let mut free = without(&calm, &union(holds.collect()));
        free.retain(|(from, until)| until - from > slack);
        for (index, waiter) in acquisitions {
            let Some(queued) = waiter.queued else { continue };
            let waits = (queued.sent, waiter.waited_until().unwrap_or(facts.end));
            let longest = common(&free, &[waits]).into_iter().max_by_key(|(from, until)| until - from);
            let Some((from, until)) = longest else { continue };
            if until - from <= slack.saturating_add(longest_delay(record, waiter, until)) {
                continue;
            }
            let what = format!(
                "#{index} waited for {:.1?} while `{}` was free",
                Duration::from_nanos(until - from),
                facts.names[name].name,
            );
            violations.push(Violation::new(Rule::Progress, what, vec![AcquisitionId::new(*index)]));
        }
    }
    violations
}

/// Returns the longest time that a request of the waiter's process spent inside of the client.
/// Counts the requests that began between one length of the wait before the wait and `until`, its
/// end.
fn longest_delay(record: &Record, waiter: &Acquisition, until: Nanos) -> Nanos {
    let from = waiter.began.saturating_sub(until - waiter.began);
    let requests = record.acquisitions.iter().filter(|request| request.process == waiter.process);
    let requests = requests.filter(|request| from <= request.began && request.began <= until);
    requests.filter_map(|request| Some(request.queued?.sent.saturating_sub(request.began))).max().unwrap_or(0)
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
