//! JSON output of locks and tickets. `docs/json.md` describes each field, and a test compares that
//! page with the output.

use std::{
    fmt::Write,
    time::{Duration, SystemTime},
};

use dlock::{Contender, LockName, LockState, Mark, Ticket, Token};
use serde::Serialize;

use crate::{
    exit::{Failure, Outcome},
    show,
};

/// Version of the format. Grows when a field changes its meaning or is removed. New fields do not
/// change it.
const VERSION: u32 = 1;

/// Returns the output of `ls`.
pub(crate) fn locks(states: &[LockState]) -> Outcome<String> {
    let now = now();
    let locks: Vec<_> = states.iter().map(|state| Lock::new(&state.name, Some(state), now)).collect();
    #[derive(Serialize)]
    struct Locks<'a> {
        locks: Vec<Lock<'a>>,
    }
    text(Locks { locks })
}

/// Returns the output of `ls --marks`.
pub(crate) fn marks(marks: &[Mark]) -> Outcome<String> {
    #[derive(Serialize)]
    struct Fields<'a> {
        name: &'a str,
        key: &'a str,
        who: Option<&'a str>,
        since: Option<f64>,
        since_at: Option<String>,
        ttl_left: Option<f64>,
        expires_at: Option<String>,
    }
    #[derive(Serialize)]
    struct Marks<'a> {
        marks: Vec<Fields<'a>>,
    }
    let now = now();
    let fields = marks.iter().map(|mark| Fields {
        name: mark.name.as_str(),
        key: &mark.key,
        who: mark.who.as_deref(),
        since: mark.since.map(|since| since.as_secs_f64()),
        since_at: rfc3339(mark.since.and_then(|since| now.checked_sub(since))),
        ttl_left: mark.ttl_left.map(|left| left.as_secs_f64()),
        expires_at: rfc3339(mark.ttl_left.and_then(|left| now.checked_add(left))),
    });
    text(Marks { marks: fields.collect() })
}

/// Returns the output of `inspect`.
pub(crate) fn lock(name: &LockName, state: Option<&LockState>) -> Outcome<String> {
    text(Lock::new(name, state, now()))
}

/// Returns the output of `acquire`. `since` is a time before the hold was detached.
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

/// Returns the output of `release`. `released` says whether the ticket held its lock until now.
pub(crate) fn released(ticket: &Ticket, released: bool) -> Outcome<String> {
    #[derive(Serialize)]
    struct Released<'a> {
        released: bool,
        #[serde(flatten)]
        hold: Hold<'a>,
    }
    text(Released { released, hold: Hold::new(ticket) })
}

/// The hold of a ticket.
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
    holders: Vec<ContenderFields<'a>>,
    queue: Vec<ContenderFields<'a>>,
}

/// A holder or a waiter. Values that the store does not provide are null.
#[derive(Serialize)]
struct ContenderFields<'a> {
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
        let contenders = |are_holders: bool| {
            let places = state.into_iter().flat_map(show::places);
            let places = places.filter(|(place, _)| place.is_none() == are_holders);
            places.map(|(place, contender)| ContenderFields::new(place, contender, now)).collect()
        };
        Self { name: name.as_str(), holders: contenders(true), queue: contenders(false) }
    }
}

impl<'a> ContenderFields<'a> {
    fn new(position: Option<usize>, contender: &'a Contender, now: SystemTime) -> Self {
        Self {
            position,
            id: &contender.id,
            kind: contender.kind.to_string(),
            token: contender.token.map(Token::get),
            who: contender.who.as_deref(),
            since: contender.since.map(|since| since.as_secs_f64()),
            since_at: rfc3339(contender.since.and_then(|since| now.checked_sub(since))),
            ttl_left: contender.ttl_left.map(|left| left.as_secs_f64()),
            expires_at: rfc3339(contender.ttl_left.and_then(|left| now.checked_add(left))),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "only for output; no decision about a lock depends on it")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// Formats a time. `None` also for a time before 1970 or after 9999, which the format cannot
/// express.
fn rfc3339(time: Option<SystemTime>) -> Option<String> {
    let time = time.filter(|time| *time >= SystemTime::UNIX_EPOCH)?;
    let mut text = String::new();
    write!(text, "{}", humantime::format_rfc3339_millis(time)).ok()?;
    Some(text)
}

#[derive(Serialize)]
struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    result: T,
}

/// Returns a result with the version, as JSON text.
pub(crate) fn text(result: impl Serialize) -> Outcome<String> {
    finished(serde_json::to_string_pretty(&Versioned { version: VERSION, result }))
}

/// Returns a result with the version, as JSON text in one line.
pub(crate) fn line(result: impl Serialize) -> Outcome<String> {
    finished(serde_json::to_string(&Versioned { version: VERSION, result }))
}

fn finished(text: serde_json::Result<String>) -> Outcome<String> {
    let text = text.map_err(|error| Failure::internal("cannot write the result as JSON", &error))?;
    Ok(escaped(&text) + "\n")
}

/// Escapes the characters of a JSON text that could mislead the reader of a terminal. Only strings
/// have characters beyond ASCII, and JSON escapes all ASCII control characters except DEL.
fn escaped(json: &str) -> String {
    let mut escaped = String::new();
    for c in json.chars() {
        if c >= '\u{7f}' && show::is_misleading(c) {
            escaped.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

#[cfg(test)]
mod fuzz;

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
        assert!(!text.chars().any(|c| c != '\n' && show::is_misleading(c)), "{text:?}");
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&read["name"], &read["holders"][0]["who"]), (&state.name.as_str().into(), &who.into()));
    }

    #[test]
    fn times_are_those_of_the_ages() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let contender = Contender::new("1", Kind::Mutex)
            .since(Duration::from_millis(1500))
            .ttl_left(Duration::from_secs(30));
        let fields = ContenderFields::new(None, &contender, now);
        assert_eq!((fields.since, fields.since_at.as_deref()), (Some(1.5), Some("2027-01-15T07:59:58.500Z")));
        assert_eq!(
            (fields.ttl_left, fields.expires_at.as_deref()),
            (Some(30.0), Some("2027-01-15T08:00:30.000Z"))
        );
        let ages = contender.since(Duration::MAX / 4).ttl_left(Duration::MAX / 4);
        let fields = ContenderFields::new(None, &ages, now);
        assert_eq!(
            (fields.since_at, fields.expires_at),
            (None, None),
            "a time outside of the format has a text"
        );
    }
}
