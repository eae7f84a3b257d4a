//! Locks and tickets in JSON. `docs/json.md` explains each field, and a test compares that page with what is printed.

use std::{
    fmt::Write,
    time::{Duration, SystemTime},
};

use dlock::{Contender, LockName, LockState, Ticket, Token};
use serde::Serialize;

use crate::{
    exit::{Failure, Outcome},
    show,
};

/// Grows when a field changes its meaning or goes. New fields do not change it.
const VERSION: u32 = 1;

/// The answer of `ls`.
pub(crate) fn locks(states: &[LockState]) -> Outcome<String> {
    let now = now();
    let locks: Vec<_> = states.iter().map(|state| Lock::new(&state.name, Some(state), now)).collect();
    #[derive(Serialize)]
    struct Locks<'a> {
        locks: Vec<Lock<'a>>,
    }
    text(Locks { locks })
}

/// The answer of `inspect`.
pub(crate) fn lock(name: &LockName, state: Option<&LockState>) -> Outcome<String> {
    text(Lock::new(name, state, now()))
}

/// The answer of `acquire`. `since` is a moment before the hold was detached.
pub(crate) fn acquired(ticket: &Ticket, lasting: Duration, since: SystemTime) -> Outcome<String> {
    #[derive(Serialize)]
    struct Acquired<'a> {
        ticket: String,
        #[serde(flatten)]
        hold: Hold<'a>,
        ttl_left: f64,
        expires_at: Option<String>,
    }
    let expires_at = rfc3339(since.checked_add(lasting));
    text(Acquired {
        ticket: ticket.to_string(),
        hold: Hold::new(ticket),
        ttl_left: lasting.as_secs_f64(),
        expires_at,
    })
}

/// The answer of `release`: whether the ticket had its lock until now.
pub(crate) fn released(ticket: &Ticket, released: bool) -> Outcome<String> {
    #[derive(Serialize)]
    struct Released<'a> {
        released: bool,
        #[serde(flatten)]
        hold: Hold<'a>,
    }
    text(Released { released, hold: Hold::new(ticket) })
}

/// What a ticket stands for.
#[derive(Serialize)]
struct Hold<'a> {
    name: &'a str,
    kind: String,
    token: Option<u64>,
    id: String,
}

impl<'a> Hold<'a> {
    fn new(ticket: &'a Ticket) -> Self {
        let (kind, id) = (ticket.kind().to_string(), ticket.id().to_string());
        Self { name: ticket.name().as_str(), kind, token: ticket.token().map(Token::get), id }
    }
}

#[derive(Serialize)]
struct Lock<'a> {
    name: &'a str,
    holders: Vec<Stake<'a>>,
    queue: Vec<Stake<'a>>,
}

/// A holder or a waiter. What the store does not tell is null.
#[derive(Serialize)]
struct Stake<'a> {
    position: Option<usize>,
    id: &'a str,
    kind: String,
    token: Option<u64>,
    who: Option<&'a str>,
    since: Option<f64>,
    since_at: Option<String>,
    ttl_left: Option<f64>,
    expires_at: Option<String>,
}

impl<'a> Lock<'a> {
    fn new(name: &'a LockName, state: Option<&'a LockState>, now: SystemTime) -> Self {
        let stakes = |held: bool| {
            let places = state.into_iter().flat_map(show::places);
            let places = places.filter(|(place, _)| place.is_none() == held);
            places.map(|(place, of)| Stake::new(place, of, now)).collect()
        };
        Self { name: name.as_str(), holders: stakes(true), queue: stakes(false) }
    }
}

impl<'a> Stake<'a> {
    fn new(position: Option<usize>, of: &'a Contender, now: SystemTime) -> Self {
        Self {
            position,
            id: &of.id,
            kind: of.kind.to_string(),
            token: of.token.map(Token::get),
            who: of.who.as_deref(),
            since: of.since.map(|since| since.as_secs_f64()),
            since_at: rfc3339(of.since.and_then(|since| now.checked_sub(since))),
            ttl_left: of.ttl_left.map(|left| left.as_secs_f64()),
            expires_at: rfc3339(of.ttl_left.and_then(|left| now.checked_add(left))),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "people and their tools read times; no lock is decided by them"
)]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// `None` also for a time that the format cannot say: before 1970, or after 9999.
fn rfc3339(time: Option<SystemTime>) -> Option<String> {
    let time = time.filter(|time| *time >= SystemTime::UNIX_EPOCH)?;
    let mut text = String::new();
    write!(text, "{}", humantime::format_rfc3339_millis(time)).ok()?;
    Some(text)
}

/// The answer with its version, as text.
pub(crate) fn text(answer: impl Serialize) -> Outcome<String> {
    #[derive(Serialize)]
    struct Answer<T> {
        version: u32,
        #[serde(flatten)]
        answer: T,
    }
    let text = serde_json::to_string_pretty(&Answer { version: VERSION, answer });
    let text = text.map_err(|error| Failure::internal("cannot write the answer as JSON", &error))?;
    Ok(escaped(&text) + "\n")
}

/// The same JSON, in which no text can fool a terminal. Only strings have characters beyond ASCII, and the ASCII ones that could
/// are escaped already, but for one.
fn escaped(json: &str) -> String {
    let mut shown = String::new();
    for c in json.chars() {
        if c >= '\u{7f}' && show::fools(c) {
            shown.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock::Kind;

    #[test]
    fn a_text_that_could_fool_a_terminal_reads_back_from_escapes() {
        let mut state = LockState::new(LockName::new("gnp.\u{202e}evil").unwrap());
        let who = "a\u{1b}[2J \u{9b}31m \u{7f} \u{e0001} J\u{fc}rgen";
        state.holders.push(Contender::new("1", Kind::Mutex).who(who));
        let text = lock(&state.name.clone(), Some(&state)).unwrap();
        assert!(!text.chars().any(|c| c != '\n' && show::fools(c)), "{text:?}");
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&read["name"], &read["holders"][0]["who"]), (&state.name.as_str().into(), &who.into()));
    }

    #[test]
    fn times_are_those_of_the_ages() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let contender = Contender::new("1", Kind::Mutex)
            .since(Duration::from_millis(1500))
            .ttl_left(Duration::from_secs(30));
        let stake = Stake::new(None, &contender, now);
        assert_eq!((stake.since, stake.since_at.as_deref()), (Some(1.5), Some("2027-01-15T07:59:58.500Z")));
        assert_eq!(
            (stake.ttl_left, stake.expires_at.as_deref()),
            (Some(30.0), Some("2027-01-15T08:00:30.000Z"))
        );
        let ages = contender.since(Duration::MAX / 4).ttl_left(Duration::MAX / 4);
        let stake = Stake::new(None, &ages, now);
        assert_eq!((stake.since_at, stake.expires_at), (None, None), "a time that has no text");
    }
}
