//! The rules, each a sweep over what happened in order of time.

use std::{collections::BTreeMap, fmt};

use dlock_core::{Kind, LostReason};
use tokio::time::Instant;

use super::{Counts, Life, Log, Rule, Stamp, Violation, Write};

/// How a guard claims its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Alone,
    Reads,
    /// One of several permits.
    Permit,
}

impl Mode {
    fn may_meet(self, other: Self) -> bool {
        self == other && self != Self::Alone
    }
}

/// What one guard claims, as one kind: until `until`, exclusively.
#[derive(Clone, Copy)]
struct Claim<'a> {
    life: &'a Life,
    number: usize,
    mode: Mode,
    from: Stamp,
    until: Stamp,
}

pub(super) fn all(log: &Log, least: &Counts) -> Vec<Violation> {
    let mut found = Found(log.noted.clone());
    let claims = claims(log);
    for claims in claims.values() {
        exclusive(claims, &mut found);
        limits(claims, &mut found);
        tokens_grow_from_claim_to_claim(claims, &mut found);
    }
    tokens_grow_from_grant_to_request(log, &mut found);
    tokens_are_distinct(log, &mut found);
    updates_are_kept(log, &mut found);
    claimants_are_not_refused(log, &claims, &mut found);
    the_robbed_are_told(log, &mut found);
    losses(log, &mut found);
    potency(&counts(log), least, &mut found);
    found.0
}

struct Found(Vec<Violation>);

impl Found {
    fn add(&mut self, rule: Rule, what: impl fmt::Display) {
        self.0.push(Violation { rule, what: what.to_string() });
    }
}

/// The claims of each lock, in order of their beginnings.
fn claims(log: &Log) -> BTreeMap<&str, Vec<Claim<'_>>> {
    let mut by_name = BTreeMap::<_, Vec<_>>::new();
    for (number, life) in log.lives.iter().enumerate() {
        let Some(granted) = life.granted else { continue };
        let end = broken(log, life).map_or(life.end(), |broken| broken.min(life.end()));
        let turn = life.downgrades.map_or(end, |at| at.min(end));
        let mode = match life.kind {
            Kind::Read => Mode::Reads,
            Kind::Permit => Mode::Permit,
            _ => Mode::Alone,
        };
        let parts = if mode == Mode::Alone {
            [(mode, granted, turn), (Mode::Reads, turn, end)]
        } else {
            [(mode, granted, end), (mode, end, end)]
        };
        let parts = parts.into_iter().filter(|(_, from, until)| from < until);
        let parts = parts.map(|(mode, from, until)| Claim { life, number, mode, from, until });
        by_name.entry(life.name.as_str()).or_default().extend(parts);
    }
    by_name.values_mut().for_each(|claims| claims.sort_by_key(|claim| claim.from));
    by_name
}

/// The first moment at which this lock may have been taken by force.
fn broken(log: &Log, life: &Life) -> Option<Stamp> {
    let after = |until: Option<Stamp>| until.is_none_or(|until| life.invoked < until);
    let breaks = log.breaks.iter().filter(|broken| broken.name == life.name && after(broken.until));
    breaks.map(|broken| broken.from).min()
}

fn exclusive(claims: &[Claim<'_>], found: &mut Found) {
    // Of each mode the claim so far that ends last.
    let mut furthest = Vec::<Claim<'_>>::new();
    for claim in claims {
        let foes = furthest.iter().filter(|foe| !foe.mode.may_meet(claim.mode));
        for foe in foes.filter(|foe| claim.from < foe.until) {
            found.add(Rule::Exclusive, format_args!("{claim} though {foe}"));
        }
        match furthest.iter_mut().find(|other| other.mode == claim.mode) {
            Some(other) if other.until < claim.until => *other = *claim,
            Some(_) => {}
            None => furthest.push(*claim),
        }
    }
}

fn limits(claims: &[Claim<'_>], found: &mut Found) {
    let mut open = Vec::<Claim<'_>>::new();
    for claim in claims.iter().filter(|claim| claim.mode == Mode::Permit) {
        open.retain(|other| claim.from < other.until);
        open.push(*claim);
        let narrowest = open.iter().min_by_key(|claim| claim.life.limit).unwrap_or(claim);
        if usize::try_from(narrowest.life.limit).is_ok_and(|limit| limit < open.len()) {
            let (count, limit) = (open.len(), narrowest.life.limit);
            found.add(
                Rule::Limit,
                format_args!("{claim} as number {count} though {narrowest} with a limit of {limit}"),
            );
        }
    }
}

fn tokens_grow_from_claim_to_claim(claims: &[Claim<'_>], found: &mut Found) {
    // Of each mode the claim so far with the highest token.
    let mut highest = Vec::<Claim<'_>>::new();
    for claim in claims.iter().filter(|claim| claim.life.token.is_some()) {
        let foes = highest.iter().filter(|foe| !foe.mode.may_meet(claim.mode));
        // A hold that was turned into a read hold keeps its token.
        let foes = foes.filter(|foe| foe.number != claim.number);
        for foe in foes.filter(|foe| claim.life.token <= foe.life.token) {
            found.add(Rule::TokenOrder, format_args!("{claim} after {foe}"));
        }
        match highest.iter_mut().find(|other| other.mode == claim.mode) {
            Some(other) if other.life.token < claim.life.token => *other = *claim,
            Some(_) => {}
            None => highest.push(*claim),
        }
    }
}

fn tokens_grow_from_grant_to_request(log: &Log, found: &mut Found) {
    let mut asked: Vec<_> = log.lives.iter().filter(|life| life.token.is_some()).collect();
    let mut granted = asked.clone();
    asked.sort_by_key(|life| life.invoked);
    granted.sort_by_key(|life| life.granted);
    let mut granted = granted.into_iter().peekable();
    let mut highest = BTreeMap::<&str, &Life>::new();
    for life in asked {
        while let Some(before) = granted.next_if(|before| before.granted < Some(life.invoked)) {
            let highest = highest.entry(&before.name).or_insert(before);
            if highest.token < before.token {
                *highest = before;
            }
        }
        if let Some(before) = highest.get(life.name.as_str()).filter(|before| life.token <= before.token) {
            found.add(Rule::TokenOrder, format_args!("{life} was asked for after {before} was granted"));
        }
    }
}

fn tokens_are_distinct(log: &Log, found: &mut Found) {
    let mut seen = BTreeMap::new();
    for life in log.lives.iter().filter(|life| life.token.is_some()) {
        if let Some(other) = seen.insert((life.name.as_str(), life.token), life) {
            found.add(Rule::TokenOrder, format_args!("{life} and {other} have the same token"));
        }
    }
}

/// The accepted writes of a counter build on each other, and their tokens do not go back.
fn updates_are_kept(log: &Log, found: &mut Found) {
    let mut by_name = BTreeMap::<&str, Vec<(u64, &Life, &Write)>>::new();
    for write in log.writes.iter().filter(|write| write.accepted) {
        let life = &log.lives[write.stake];
        by_name.entry(life.name.as_str()).or_default().push((write.base, life, write));
    }
    for writes in by_name.values_mut() {
        writes.sort_by_key(|(base, life, _)| (*base, life.token));
        for pair in writes.windows(2) {
            let ((base, before, first), (next, life, second)) = (pair[0], pair[1]);
            if base.checked_add(1) != Some(next) {
                found.add(
                    Rule::Fence,
                    format_args!("lost update: {life} wrote upon {next} after {before} wrote upon {base}"),
                );
            } else if life.token < before.token || (life.token == before.token && first.stake != second.stake)
            {
                found.add(Rule::Fence, format_args!("{life} wrote after {before}"));
            }
        }
    }
}

fn claimants_are_not_refused(log: &Log, claims: &BTreeMap<&str, Vec<Claim<'_>>>, found: &mut Found) {
    let exclusive = claims.values().flatten().filter(|claim| claim.mode == Mode::Alone);
    let until: BTreeMap<_, _> = exclusive.map(|claim| (claim.number, claim)).collect();
    for write in log.writes.iter().filter(|write| !write.accepted) {
        if let Some(claim) = until.get(&write.stake).filter(|claim| write.at < claim.until) {
            found.add(Rule::Fence, format_args!("refused although {claim}"));
        }
    }
}

fn the_robbed_are_told(log: &Log, found: &mut Found) {
    for broken in log.breaks.iter().filter(|broken| broken.robbed) {
        let Some(until) = broken.until else { continue };
        let held = |life: &&Life| {
            life.name == broken.name
                && !life.detached
                && life.granted.is_some_and(|granted| granted < broken.from)
                && until < life.end()
        };
        for life in log.lives.iter().filter(held).filter(|life| until.0 + life.ttl < life.end().0) {
            found.add(
                Rule::Told,
                format_args!("{life} was robbed, and claims it for more than {:?}", life.ttl),
            );
        }
    }
}

fn losses(log: &Log, found: &mut Found) {
    for life in &log.lives {
        let Some((at, reason)) = life.lost else { continue };
        if life.revived.is_some() {
            found.add(Rule::LostForGood, life);
        }
        // Its runtime ended early, so nothing more was promised.
        let told = reason == LostReason::Abandoned;
        let promised = (life.valid_until, 0);
        if life.released.is_some_and(|released| released < at) {
            found.add(Rule::FalseAlarm, format_args!("{life} is lost after its release was confirmed"));
        } else if at < promised && !told && broken(log, life).is_none_or(|broken| at < broken) {
            let early = promised.0 - at.0;
            found.add(Rule::FalseAlarm, format_args!("{life} is lost ({reason}) {early:?} before its time"));
        }
    }
}

pub(super) fn counts(log: &Log) -> Counts {
    let mut counts = Counts {
        grants: log.lives.iter().filter(|life| life.granted.is_some()).count(),
        losses: log.lives.iter().filter(|life| life.lost.is_some()).count(),
        accepted_writes: log.writes.iter().filter(|write| write.accepted).count(),
        ..Counts::default()
    };
    counts.refused_writes = log.writes.len() - counts.accepted_writes;
    for claims in claims(log).values() {
        counts.shared_reads += shared(claims, Mode::Reads);
        counts.shared_permits += shared(claims, Mode::Permit);
    }
    counts
}

/// How many claims of this mode began while another was open.
fn shared(claims: &[Claim<'_>], mode: Mode) -> usize {
    let (mut count, mut furthest) = (0, None);
    for claim in claims.iter().filter(|claim| claim.mode == mode) {
        count += usize::from(Some(claim.from) < furthest);
        furthest = furthest.max(Some(claim.until));
    }
    count
}

fn potency(counts: &Counts, least: &Counts, found: &mut Found) {
    if counts.shared_reads < least.shared_reads {
        found.add(Rule::SharedReads, format_args!("{} of {}", counts.shared_reads, least.shared_reads));
    }
    for (what, count, least) in [
        ("grants", counts.grants, least.grants),
        ("shared permits", counts.shared_permits, least.shared_permits),
        ("losses", counts.losses, least.losses),
        ("accepted writes", counts.accepted_writes, least.accepted_writes),
        ("refused writes", counts.refused_writes, least.refused_writes),
    ] {
        if count < least {
            found.add(Rule::Potency, format_args!("{count} of {least} {what}"));
        }
    }
}

impl fmt::Display for Claim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = |at: Instant| at - self.life.invoked.0;
        let (from, until) = (since(self.from.0), since(self.until.0));
        let word = if self.mode == Mode::Reads { "reads" } else { "holds" };
        write!(f, "{} {word} from {from:?} to {until:?} after its request", self.life)
    }
}
