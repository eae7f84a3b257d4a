//! The checks of a record. Overlaps, tokens and false losses are checked as in every
//! [history](crate::history). Order and waits are checked here.

mod order;
mod spans;
#[cfg(test)]
mod tests;
mod waits;

use std::time::Duration;

use tokio::time::Instant;

use super::{
    clock::Nanos,
    plan::{Name, PERMITS},
    record::{Acquisition, Record},
};
use crate::history::{Counts, History, Recorded, Violation};
use dlock_core::Kind;

/// The parameters of a run that the checks need.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) names: Vec<Name>,
    pub(super) ttl: Duration,
    /// Time after which the store forgets a claim whose client sends nothing: the ttl, or the timeout
    /// of the client's session if that is longer.
    pub(super) memory: Duration,
    /// Time by which a busy machine may be late.
    pub(super) slack: Duration,
    pub(super) start: Nanos,
    pub(super) end: Nanos,
}

/// Returns every violation. [`Violation::acquisitions`] are positions in the record.
pub(super) fn all(record: &Record, facts: &Facts) -> Vec<Violation> {
    let mut violations = record.noted.clone();
    violations.extend(history(record, facts).check(&Counts { grants: 1, ..Counts::default() }));
    violations.extend(order::overtaken(record, facts));
    violations.extend(waits::too_long(record, facts));
    violations.extend(waits::of_free_locks(record, facts));
    violations.extend(waits::refused(record));
    violations
}

fn history(record: &Record, facts: &Facts) -> History {
    // The times of a history have no absolute meaning.
    let base = Instant::now();
    let first = record.acquisitions.iter().map(|acquisition| acquisition.began).min().unwrap_or_default();
    let instant = |at: Nanos| base + Duration::from_nanos(at.saturating_sub(first));
    let recorded = |acquisition: &Acquisition| Recorded {
        name: facts.names[acquisition.name].name.clone(),
        kind: acquisition.kind,
        limit: if acquisition.kind == Kind::Permit { PERMITS } else { 1 },
        ttl: facts.ttl,
        invoked: instant(acquisition.began),
        granted: acquisition.granted.map(instant),
        token: acquisition.token,
        valid_until: instant(acquisition.valid_until),
        ends: acquisition.releases.into_iter().chain(acquisition.killed).min().map(instant),
        released: acquisition.released.map(instant),
        lost: acquisition.lost.map(|(at, reason)| (instant(at), reason.into())),
        claimed_after_loss: acquisition.held_after_loss.map(instant),
    };
    record.acquisitions.iter().map(recorded).collect()
}
