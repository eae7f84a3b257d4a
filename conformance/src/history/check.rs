//! Checks of the rules. Each check passes once over the events in order of time.

use std::{collections::BTreeMap, fmt};

use dlock_core::{Kind, LostReason};
use tokio::time::Instant;

use super::{Acquisition, Counts, Log, Rule, Stamp, Violation, Write};

/// Way in which a guard claims its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Exclusive,
    Read,
    /// One of several permits.
    Permit,
}

impl Mode {
    fn may_overlap(self, other: Self) -> bool {
        self == other && self != Self::Exclusive
    }
}

/// Claim of one guard in one mode, from `from` up to but excluding `until`.
#[derive(Clone, Copy)]
struct Claim<'a> {
    acquisition: &'a Acquisition,
    mode: Mode,
    from: Stamp,
    until: Stamp,
}

pub(super) fn all(log: &Log, least: &Counts) -> Vec<Violation> {
    let mut violations = Violations(log.violations.clone());
    let claims = claims(log);
    for claims in claims.values() {
        exclusive(claims, &mut violations);
        limits(claims, &mut violations);
        tokens_grow_from_claim_to_claim(claims, &mut violations);
    }
    tokens_grow_from_grant_to_request(log, &mut violations);
    tokens_are_distinct(log, &mut violations);
    updates_are_kept(log, &mut violations);
    claiming_guards_are_not_refused(log, &claims, &mut violations);
    losses_are_reported(log, &mut violations);
    losses_are_true(log, &mut violations);
    potency(&counts(log), least, &mut violations);
    violations.0
}

struct Violations(Vec<Violation>);

impl Violations {
    fn add<const N: usize>(&mut self, rule: Rule, of: [&Acquisition; N], what: impl fmt::Display) {
        let acquisitions = of.iter().map(|acquisition| acquisition.id).collect();
        self.0.push(Violation::new(rule, what.to_string(), acquisitions));
    }
}

/// Returns the claims of each lock in order of their start.
fn claims(log: &Log) -> BTreeMap<&str, Vec<Claim<'_>>> {
    let mut by_name = BTreeMap::<_, Vec<_>>::new();
    for acquisition in &log.acquisitions {
        let Some(granted) = acquisition.granted else { continue };
        let end = force_released(log, acquisition)
            .map_or(acquisition.end(), |broken| broken.min(acquisition.end()));
        let downgraded = acquisition.downgrades.map_or(end, |at| at.min(end));
        let mode = match acquisition.kind {
            Kind::Read => Mode::Read,
            Kind::Permit => Mode::Permit,
            _ => Mode::Exclusive,
        };
        let phases = if mode == Mode::Exclusive {
            [(mode, granted, downgraded), (Mode::Read, downgraded, end)]
        } else {
            [(mode, granted, end), (mode, end, end)]
        };
        let phases = phases.into_iter().filter(|(_, from, until)| from < until);
        let phases = phases.map(|(mode, from, until)| Claim { acquisition, mode, from, until });
        by_name.entry(acquisition.name.as_str()).or_default().extend(phases);
    }
    by_name.values_mut().for_each(|claims| claims.sort_by_key(|claim| claim.from));
    by_name
}

/// Returns the earliest time at which the lock of this acquisition may have been force-released.
fn force_released(log: &Log, acquisition: &Acquisition) -> Option<Stamp> {
    let after = |until: Option<Stamp>| until.is_none_or(|until| acquisition.invoked < until);
    let breaks = log.breaks.iter().filter(|broken| broken.name == acquisition.name && after(broken.until));
    breaks.map(|broken| broken.from).min()
}

fn exclusive(claims: &[Claim<'_>], violations: &mut Violations) {
    // The claim with the latest end so far, for each mode.
    let mut furthest = Vec::<Claim<'_>>::new();
    for claim in claims {
        let conflicting = furthest.iter().filter(|other| !other.mode.may_overlap(claim.mode));
        for other in conflicting.filter(|other| claim.from < other.until) {
            let both = [claim.acquisition, other.acquisition];
            violations.add(Rule::Exclusive, both, format_args!("{claim} although {other}"));
        }
        match furthest.iter_mut().find(|other| other.mode == claim.mode) {
            Some(other) if other.until < claim.until => *other = *claim,
            Some(_) => {}
            None => furthest.push(*claim),
        }
    }
}

fn limits(claims: &[Claim<'_>], violations: &mut Violations) {
    let mut open = Vec::<Claim<'_>>::new();
    for claim in claims.iter().filter(|claim| claim.mode == Mode::Permit) {
        open.retain(|other| claim.from < other.until);
        open.push(*claim);
        let narrowest = open.iter().min_by_key(|claim| claim.acquisition.limit).unwrap_or(claim);
        if usize::try_from(narrowest.acquisition.limit).is_ok_and(|limit| limit < open.len()) {
            let (count, limit) = (open.len(), narrowest.acquisition.limit);
            violations.add(
                Rule::Limit,
                [claim.acquisition, narrowest.acquisition],
                format_args!("{claim} as number {count} although {narrowest} with a limit of {limit}"),
            );
        }
    }
}

fn tokens_grow_from_claim_to_claim(claims: &[Claim<'_>], violations: &mut Violations) {
    // The claim with the highest token so far, for each mode.
    let mut highest = Vec::<Claim<'_>>::new();
    for claim in claims.iter().filter(|claim| claim.acquisition.token.is_some()) {
        let conflicting = highest.iter().filter(|other| !other.mode.may_overlap(claim.mode));
        // A downgraded hold keeps its token.
        let conflicting = conflicting.filter(|other| other.acquisition.id != claim.acquisition.id);
        for other in conflicting.filter(|other| claim.acquisition.token <= other.acquisition.token) {
            let both = [claim.acquisition, other.acquisition];
            violations.add(Rule::TokenOrder, both, format_args!("{claim} after {other}"));
        }
        match highest.iter_mut().find(|other| other.mode == claim.mode) {
            Some(other) if other.acquisition.token < claim.acquisition.token => *other = *claim,
            Some(_) => {}
            None => highest.push(*claim),
        }
    }
}

fn tokens_grow_from_grant_to_request(log: &Log, violations: &mut Violations) {
    let mut requested: Vec<_> =
        log.acquisitions.iter().filter(|acquisition| acquisition.token.is_some()).collect();
    let mut granted = requested.clone();
    requested.sort_by_key(|acquisition| acquisition.invoked);
    granted.sort_by_key(|acquisition| acquisition.granted);
    let mut granted = granted.into_iter().peekable();
    let mut highest = BTreeMap::<&str, &Acquisition>::new();
    for acquisition in requested {
        while let Some(before) = granted.next_if(|before| before.granted < Some(acquisition.invoked)) {
            let highest = highest.entry(&before.name).or_insert(before);
            if highest.token < before.token {
                *highest = before;
            }
        }
        if let Some(before) =
            highest.get(acquisition.name.as_str()).filter(|before| acquisition.token <= before.token)
        {
            violations.add(
                Rule::TokenOrder,
                [acquisition, before],
                format_args!("{acquisition} was requested after {before} was granted"),
            );
        }
    }
}

fn tokens_are_distinct(log: &Log, violations: &mut Violations) {
    let mut tokens = BTreeMap::new();
    for acquisition in log.acquisitions.iter().filter(|acquisition| acquisition.token.is_some()) {
        if let Some(other) = tokens.insert((acquisition.name.as_str(), acquisition.token), acquisition) {
            let what = format_args!("{acquisition} and {other} have the same token");
            violations.add(Rule::TokenOrder, [acquisition, other], what);
        }
    }
}

/// Checks that the accepted writes of a counter build on each other, and that their tokens do not
/// decrease.
fn updates_are_kept(log: &Log, violations: &mut Violations) {
    let mut by_name = BTreeMap::<&str, Vec<(u64, &Acquisition, &Write)>>::new();
    for write in log.writes.iter().filter(|write| write.accepted) {
        let acquisition = &log.acquisitions[write.acquisition];
        by_name.entry(acquisition.name.as_str()).or_default().push((write.base, acquisition, write));
    }
    for writes in by_name.values_mut() {
        writes.sort_by_key(|(base, acquisition, _)| (*base, acquisition.token));
        for pair in writes.windows(2) {
            let ((base, before, first), (next, acquisition, second)) = (pair[0], pair[1]);
            if base.checked_add(1) != Some(next) {
                violations.add(
                    Rule::Fence,
                    [acquisition, before],
                    format_args!(
                        "lost update: {acquisition} wrote on top of {next} after {before} wrote on \
                         top of {base}"
                    ),
                );
            } else if acquisition.token < before.token
                || (acquisition.token == before.token && first.acquisition != second.acquisition)
            {
                let what = format_args!("{acquisition} wrote after {before}");
                violations.add(Rule::Fence, [acquisition, before], what);
            }
        }
    }
}

fn claiming_guards_are_not_refused(
    log: &Log,
    claims: &BTreeMap<&str, Vec<Claim<'_>>>,
    violations: &mut Violations,
) {
    let exclusive = claims.values().flatten().filter(|claim| claim.mode == Mode::Exclusive);
    let until: BTreeMap<_, _> = exclusive.map(|claim| (claim.acquisition.id.0, claim)).collect();
    for write in log.writes.iter().filter(|write| !write.accepted) {
        if let Some(claim) = until.get(&write.acquisition).filter(|claim| write.at < claim.until) {
            violations.add(Rule::Fence, [claim.acquisition], format_args!("refused although {claim}"));
        }
    }
}

fn losses_are_reported(log: &Log, violations: &mut Violations) {
    for broken in log.breaks.iter().filter(|broken| broken.had_holder) {
        let Some(until) = broken.until else { continue };
        let held = |acquisition: &&Acquisition| {
            acquisition.name == broken.name
                && !acquisition.detached
                && acquisition.granted.is_some_and(|granted| granted < broken.from)
                && until < acquisition.end()
        };
        for acquisition in log
            .acquisitions
            .iter()
            .filter(held)
            .filter(|acquisition| until.0 + acquisition.ttl < acquisition.end().0)
        {
            violations.add(
                Rule::LossReported,
                [acquisition],
                format_args!(
                    "{acquisition} was force-released, and its guard claims it for more than {:?}",
                    acquisition.ttl
                ),
            );
        }
    }
}

fn losses_are_true(log: &Log, violations: &mut Violations) {
    for acquisition in &log.acquisitions {
        let Some((at, reason)) = acquisition.lost else { continue };
        if acquisition.claimed_after_loss.is_some() {
            violations.add(Rule::LostForGood, [acquisition], acquisition);
        }
        // The runtime of the guard ended early, so its promise no longer applied.
        let was_abandoned = reason == LostReason::Abandoned;
        let promised = (acquisition.valid_until, 0);
        if acquisition.released.is_some_and(|released| released < at) {
            let what = format_args!("{acquisition} is lost after its release was confirmed");
            violations.add(Rule::FalseAlarm, [acquisition], what);
        } else if at < promised
            && !was_abandoned
            && force_released(log, acquisition).is_none_or(|broken| at < broken)
        {
            let early = promised.0 - at.0;
            violations.add(
                Rule::FalseAlarm,
                [acquisition],
                format_args!("{acquisition} is lost ({reason}) {early:?} before its time"),
            );
        }
    }
}

pub(super) fn counts(log: &Log) -> Counts {
    let mut counts = Counts {
        grants: log.acquisitions.iter().filter(|acquisition| acquisition.granted.is_some()).count(),
        losses: log.acquisitions.iter().filter(|acquisition| acquisition.lost.is_some()).count(),
        accepted_writes: log.writes.iter().filter(|write| write.accepted).count(),
        ..Counts::default()
    };
    counts.refused_writes = log.writes.len() - counts.accepted_writes;
    for claims in claims(log).values() {
        counts.shared_reads += shared(claims, Mode::Read);
        counts.shared_permits += shared(claims, Mode::Permit);
    }
    counts
}

/// Returns the number of claims in this mode that started during another claim in this mode.
fn shared(claims: &[Claim<'_>], mode: Mode) -> usize {
    let (mut count, mut furthest) = (0, None);
    for claim in claims.iter().filter(|claim| claim.mode == mode) {
        count += usize::from(Some(claim.from) < furthest);
        furthest = furthest.max(Some(claim.until));
    }
    count
}

fn potency(counts: &Counts, least: &Counts, violations: &mut Violations) {
    if counts.shared_reads < least.shared_reads {
        violations.add(
            Rule::SharedReads,
            [],
            format_args!("{} of {}", counts.shared_reads, least.shared_reads),
        );
    }
    for (what, count, least) in [
        ("grants", counts.grants, least.grants),
        ("shared permits", counts.shared_permits, least.shared_permits),
        ("losses", counts.losses, least.losses),
        ("accepted writes", counts.accepted_writes, least.accepted_writes),
        ("refused writes", counts.refused_writes, least.refused_writes),
    ] {
        if count < least {
            violations.add(Rule::Potency, [], format_args!("{count} of {least} {what}"));
        }
    }
}

impl fmt::Display for Claim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = |at: Instant| at - self.acquisition.invoked.0;
        let (from, until) = (since(self.from.0), since(self.until.0));
        let word = if self.mode == Mode::Read { "reads" } else { "holds" };
        write!(f, "{} {word} from {from:?} to {until:?} after its request", self.acquisition)
    }
}
