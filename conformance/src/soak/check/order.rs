//! Order of arrival. A place in a queue is known only from the replies to its claim, so the check
//! compares a waiter whose store had replied "busy" with a claim whose first request was sent later.

use std::collections::BTreeMap;

use dlock_core::Kind;

use super::{
    super::{
        clock::{Nanos, nanos},
        record::{Acquisition, Record},
    },
    Facts, Violation,
};
use crate::history::{AcquisitionId, Rule};

/// A waiter that was granted its lock at last, with the time at which it was known to be queued.
struct Waiter<'a> {
    acquisition: &'a Acquisition,
    index: usize,
    queued: Nanos,
    granted: Nanos,
}

/// Returns a violation for each waiter that was overtaken by a claim that excludes it, although both
/// were to be granted in order of arrival, and no fault can have cost the waiter its place.
pub(super) fn overtaken(record: &Record, facts: &Facts) -> Vec<Violation> {
    let mut by_name = BTreeMap::<usize, (Vec<Waiter<'_>>, Vec<(usize, &Acquisition)>)>::new();
    for (index, acquisition) in record.acquisitions.iter().enumerate() {
        let (Some(granted), Some(queued)) = (acquisition.granted, acquisition.queued) else { continue };
        if !is_ordered(acquisition.kind) {
            continue;
        }
        let (waiters, granted_claims) = by_name.entry(acquisition.name).or_default();
        granted_claims.push((index, acquisition));
        if let Some(waits) = queued.waits.filter(|_| queued.gap < nanos(facts.ttl)) {
            waiters.push(Waiter { acquisition, index, queued: waits, granted });
        }
    }
    let mut violations = Vec::new();
    for (waiters, mut claims) in by_name.into_values() {
        claims.sort_by_key(|(_, claim)| claim.granted);
        for waiter in waiters {
            let first = claims.partition_point(|(_, claim)| claim.granted <= Some(waiter.queued));
            let earlier =
                claims[first..].iter().take_while(|(_, claim)| claim.granted < Some(waiter.granted));
            let overtaking = earlier.into_iter().find(|(_, claim)| {
                let sent = claim.queued.map(|queued| queued.sent);
                sent > Some(waiter.queued) && excludes(claim.kind, waiter.acquisition.kind)
            });
            if let Some((index, claim)) = overtaking
                && !may_have_lost_its_place(record, facts, &waiter)
            {
                let what = format!(
                    "{} #{index} of `{}` was granted before {} #{}, which had waited in the queue before the other's \
                     first request was sent",
                    claim.kind, facts.names[claim.name].name, waiter.acquisition.kind, waiter.index,
                );
                let both = [*index, waiter.index].map(AcquisitionId::new);
                violations.push(Violation::new(Rule::Order, what, both.to_vec()));
            }
        }
    }
    violations
}

fn is_ordered(kind: Kind) -> bool {
    matches!(kind, Kind::Fair | Kind::Read | Kind::Write | Kind::Permit)
}

/// Returns whether two claims never hold together. Permits do, and so do readers, so
/// their grants may be received in any order.
fn excludes(one: Kind, other: Kind) -> bool {
    one != other || !matches!(one, Kind::Read | Kind::Permit)
}

/// Returns whether a fault of the waiter's client, or a loss of one of its locks, fell into the wait.
/// The store may then have forgotten the waiting claim, which joins again at the end of the queue.
fn may_have_lost_its_place(record: &Record, facts: &Facts, waiter: &Waiter<'_>) -> bool {
    let (from, until) = (waiter.acquisition.began.saturating_sub(nanos(facts.memory)), waiter.granted);
    let process = waiter.acquisition.process;
    let had_fault = record.faults.iter().any(|fault| fault.affects(process.client, from, until));
    let lost = |acquisition: &Acquisition| {
        acquisition.process == process && acquisition.lost.is_some_and(|(at, _)| from <= at && at <= until)
    };
    had_fault || record.acquisitions.iter().any(lost)
}
