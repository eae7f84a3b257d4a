//! Excerpts of a record: the events that a violation consists of.

use std::collections::BTreeMap;

use super::{
    clock::{Nanos, seconds},
    plan::Name,
    record::{Acquisition, Record},
};
use crate::history::{Rule, Violation};

/// Maximum number of lines of an excerpt.
const MOST_LINES: usize = 40;

/// Returns the violations of each rule, the one with the shortest excerpt first.
pub(super) fn by_rule<'a>(
    violations: &'a [Violation],
    record: &Record,
) -> BTreeMap<Rule, Vec<&'a Violation>> {
    let mut rules = BTreeMap::<_, Vec<_>>::new();
    for violation in violations {
        rules.entry(violation.rule).or_default().push(violation);
    }
    for violations in rules.values_mut() {
        violations.sort_by_cached_key(|violation| {
            let (from, until) = range(&involved(violation, record));
            (violation.acquisitions.len(), until.saturating_sub(from))
        });
    }
    rules
}

/// Returns the events of the acquisitions of a violation, and the faults of their clients at that
/// time, one line each, in order of time.
pub(super) fn of(violation: &Violation, record: &Record, names: &[Name], start: Nanos) -> Vec<String> {
    let involved = involved(violation, record);
    let (from, until) = range(&involved);
    let mut lines = Vec::new();
    for (index, acquisition) in &involved {
        let process = acquisition.process;
        let events = events(acquisition, names).into_iter();
        lines.extend(events.map(|(at, what)| (at, format!("client {process} #{index} {what}"))));
    }
    for fault in &record.faults {
        let affects =
            |(_, acquisition): &(usize, &Acquisition)| fault.affects(acquisition.process.client, from, until);
        if involved.iter().any(affects) {
            let client = fault.client.map_or("all clients".to_owned(), |client| format!("client {client}"));
            let what = format!("{client} {} begins: {}", fault.kind, fault.what);
            lines.push((fault.from, what));
            lines.push((fault.until, format!("{client} {} has ended", fault.kind)));
        }
    }
    lines.sort();
    let more = lines.len().saturating_sub(MOST_LINES);
    let shown = lines.into_iter().take(MOST_LINES);
    let mut lines: Vec<_> = shown.map(|(at, what)| format!("{:>12} s  {what}", seconds(at, start))).collect();
    if more > 0 {
        lines.push(format!("{more} further lines"));
    }
    lines
}

fn involved<'a>(violation: &Violation, record: &'a Record) -> Vec<(usize, &'a Acquisition)> {
    let indexes = violation.acquisitions.iter().map(|id| id.index());
    indexes.filter_map(|index| Some((index, record.acquisitions.get(index)?))).collect()
}

/// Returns the times between which the acquisitions had events.
fn range(involved: &[(usize, &Acquisition)]) -> (Nanos, Nanos) {
    let from = involved.iter().map(|(_, acquisition)| acquisition.began).min();
    let until = involved.iter().map(|(_, acquisition)| {
        let ends = [acquisition.held_until(), acquisition.waited_until(), acquisition.granted];
        ends.into_iter().flatten().max().unwrap_or(acquisition.began)
    });
    (from.unwrap_or_default(), until.max().unwrap_or_default())
}

fn events(acquisition: &Acquisition, names: &[Name]) -> Vec<(Nanos, String)> {
    let Acquisition { kind, token, .. } = acquisition;
    let name = names.get(acquisition.name).map_or("?", |name| name.name.as_str());
    let number = acquisition.number;
    let mut events =
        vec![(acquisition.began, format!("requests {kind} `{name}` (of {number} in the history)"))];
    if let Some(queued) = acquisition.queued {
        events.push((queued.sent, "sends its first attempt".to_owned()));
        events.extend(queued.waits.map(|at| (at, "is busy, so it waits in the queue".to_owned())));
    }
    if let Some(at) = acquisition.granted {
        let token = token.map_or(String::new(), |token| format!(" with token {token}"));
        events.push((at, format!("is granted{token}")));
        events
            .push((acquisition.valid_until, "reaches the last deadline that its guard promised".to_owned()));
    }
    events.extend(acquisition.last_held.map(|at| (at, "is held, according to its guard".to_owned())));
    events.extend(acquisition.held_after_loss.map(|at| (at, "is held again".to_owned())));
    events.extend(acquisition.lost.map(|(at, reason)| (at, format!("is lost: {reason:?}"))));
    events.extend(acquisition.releases.map(|at| (at, "is about to be released".to_owned())));
    events.extend(acquisition.released.map(|at| (at, "is released".to_owned())));
    events.extend(acquisition.ended.as_ref().map(|(at, how)| (*at, format!("ends: {how:?}"))));
    events.extend(acquisition.killed.map(|at| (at, "ends with its process".to_owned())));
    events
}
