//! Locks in words, as tables, and as JSON.

use std::{fmt::Write, time::Duration};

use serde::Serialize;

use super::exit::{Failure, Outcome};
use crate::{Contender, LockName, LockState, Token};

/// `held by pid 4711 on web-3 for 12s`; `None` if nobody holds it.
pub(super) fn holders(state: &LockState) -> Option<String> {
    let (first, rest) = state.holders.split_first()?;
    let since = first.since.map(|since| format!(" for {}", rough(since))).unwrap_or_default();
    let others = match rest.len() {
        0 => String::new(),
        1 => " and another".to_owned(),
        n => format!(" and {n} others"),
    };
    Some(format!("held by {}{since}{others}", who(first)))
}

/// A headline and one line for each lock. Empty if there are no locks.
pub(super) fn table(states: &[LockState]) -> String {
    let row = |state: &LockState| {
        let first = state.holders.first();
        [
            state.name.to_string(),
            first.map_or("-".to_owned(), |holder| holder.kind.to_string()),
            state.holders.len().to_string(),
            state.queue.len().to_string(),
            first.map_or("-".to_owned(), |holder| optional(holder.since.map(rough))),
            first.map_or("-".to_owned(), who),
        ]
    };
    aligned(["NAME", "KIND", "HOLDERS", "WAITING", "SINCE", "WHO"], states.iter().map(row).collect())
}

/// All about one lock.
pub(super) fn page(name: &LockName, state: Option<&LockState>) -> String {
    let Some(state) = state else { return format!("{name} is free\n") };
    let rows = places(state).map(|(place, contender)| {
        [
            place.map_or("holds".to_owned(), |place| format!("waits {place}")),
            contender.kind.to_string(),
            optional(contender.token),
            optional(contender.since.map(rough)),
            optional(contender.ttl_left.map(rough)),
            who(contender),
        ]
    });
    let table = aligned(["", "KIND", "TOKEN", "SINCE", "TTL LEFT", "WHO"], rows.collect());
    format!("{name}\n{table}")
}

pub(super) fn all_json(states: &[LockState]) -> Outcome<String> {
    json(&states.iter().map(|state| Lock::new(&state.name, Some(state))).collect::<Vec<_>>())
}

pub(super) fn one_json(name: &LockName, state: Option<&LockState>) -> Outcome<String> {
    json(&Lock::new(name, state))
}

/// A lock in JSON.
#[derive(Serialize)]
struct Lock<'a> {
    name: &'a str,
    holders: Vec<Stake<'a>>,
    queue: Vec<Stake<'a>>,
}

/// A holder or a waiter in JSON; what the store does not tell is null. Durations are in seconds.
#[derive(Serialize)]
struct Stake<'a> {
    /// From 1, in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<usize>,
    id: &'a str,
    kind: String,
    token: Option<u64>,
    since: Option<f64>,
    ttl_left: Option<f64>,
    who: Option<&'a str>,
}

impl<'a> Lock<'a> {
    fn new(name: &'a LockName, state: Option<&'a LockState>) -> Self {
        let stakes = |held: bool| {
            let places = state.into_iter().flat_map(places);
            places
                .filter(|(place, _)| place.is_none() == held)
                .map(|(place, of)| Stake::new(place, of))
                .collect()
        };
        Self { name: name.as_str(), holders: stakes(true), queue: stakes(false) }
    }
}

impl<'a> Stake<'a> {
    fn new(position: Option<usize>, of: &'a Contender) -> Self {
        Self {
            position,
            id: &of.id,
            kind: of.kind.to_string(),
            token: of.token.map(Token::get),
            since: of.since.map(|since| since.as_secs_f64()),
            ttl_left: of.ttl_left.map(|left| left.as_secs_f64()),
            who: of.who.as_deref(),
        }
    }
}

fn json(answer: &impl Serialize) -> Outcome<String> {
    let text = serde_json::to_string_pretty(answer);
    text.map(|text| text + "\n").map_err(|error| Failure::internal("cannot write the answer as JSON", &error))
}

/// The holders, then those who wait with their places.
fn places(state: &LockState) -> impl Iterator<Item = (Option<usize>, &Contender)> {
    let holders = state.holders.iter().map(|holder| (None, holder));
    holders.chain((1..).map(Some).zip(&state.queue))
}

/// Who it is. Another program may have written this text, so control characters that could move the cursor are not printed
/// as they are.
fn who(contender: &Contender) -> String {
    let who = contender.who.as_deref().unwrap_or(&contender.id);
    who.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn optional(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A duration for people: whole seconds are enough.
fn rough(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}

/// Columns as wide as they need to be.
fn aligned<const N: usize>(headline: [&str; N], rows: Vec<[String; N]>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = std::iter::once(headline.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<_> = (0..N).map(width).collect();
    let mut table = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a String cannot fail.
            write!(line, "{cell:width$}  ").ok();
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}
