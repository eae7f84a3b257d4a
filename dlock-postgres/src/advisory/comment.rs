//! The comment in a statement by which a session names its claim. Users who list the server's
//! sessions see it.

use std::time::Duration;

use dlock_core::{Kind, driver::Request};

use super::backend::KINDS;
use crate::sql::{hex, unhex};

const BEGIN: &str = "/*dlock ";
const END: &str = "*/";

/// Length of a statement of which the server's list of sessions shows everything, in bytes. The default
/// of `track_activity_query_size` is one byte more.
pub(super) const SHOWN_LENGTH: usize = 1023;

/// Mark of a text that is not encoded.
const PLAIN: char = '=';

/// The claim of a session that owns a lock or waits for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClaimComment {
    pub(super) id: String,
    pub(super) kind: Kind,
    /// Time of permitted silence of the session.
    pub(super) ttl: Duration,
    pub(super) who: String,
    /// Name of the lock. `None` if it is too long for the server's list of sessions.
    pub(super) name: Option<String>,
}

impl ClaimComment {
    pub(super) fn of(request: &Request) -> Self {
        Self {
            id: request.id.to_string(),
            kind: request.kind,
            ttl: request.ttl,
            who: request.who.text().to_owned(),
            name: Some(request.name.as_str().to_owned()),
        }
    }

    /// Returns the comment. Users' texts are encoded if they could end it, or if the encoding of the
    /// database may lack their characters.
    pub(super) fn text(&self) -> String {
        let Self { id, kind, ttl, who, name } = self;
        let name = encode(name.as_deref().unwrap_or_default());
        format!("{BEGIN}{id} {kind} {} {} {name}{END}", ttl.as_millis(), encode(who))
    }

    /// Returns the comment of a statement, if it has one. Any program can write such a comment, so
    /// it is used for display only. The server keeps only the beginning of a statement, so the end of a
    /// long name is missing.
    pub(super) fn find(statement: &str) -> Option<Self> {
        let (_, rest) = statement.split_once(BEGIN)?;
        let (comment, is_whole) = match rest.split_once(END) {
            Some((comment, _)) => (comment, true),
            None => (rest, false),
        };
        let mut words = comment.split(' ');
        let mut word = || words.next();
        let (id, kind) = (word()?.to_owned(), parse_kind(word()?)?);
        let ttl = Duration::from_millis(word()?.parse().ok()?);
        let (who, name) = (decode(word()?)?, word()?);
        let name = if is_whole { Some(decode(name)?) } else { None };
        word().is_none().then_some(Self { id, kind, ttl, who, name })
    }
}

fn parse_kind(word: &str) -> Option<Kind> {
    KINDS.iter().copied().find(|kind| kind.to_string() == word)
}

fn encode(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.,:;@-+".contains(&byte);
    if text.bytes().all(is_plain) { format!("{PLAIN}{text}") } else { hex(text) }
}

fn decode(word: &str) -> Option<String> {
    match word.strip_prefix(PLAIN) {
        Some(text) => Some(text.to_owned()),
        None => unhex(word),
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_read_as_it_was_written() {
        for (who, name) in [("*/ é '", "invoice/42"), ("anna@web-3", "a:b"), ("=", " ")] {
            let [id, who, name] = ["4711", who, name].map(str::to_owned);
            let comment =
                ClaimComment { id, kind: Kind::Read, ttl: Duration::from_secs(3), who, name: Some(name) };
            let statement = format!("{} SELECT 1", comment.text());
            assert!(statement.is_ascii() && statement.matches("*/").count() == 1, "{statement}");
            assert_eq!(ClaimComment::find(&statement).as_ref(), Some(&comment));
            let cut = &statement[..comment.text().len() - 1];
            assert_eq!(ClaimComment::find(cut), Some(ClaimComment { name: None, ..comment }));
        }
    }

    #[test]
    fn a_statement_without_a_whole_comment_has_none() {
        for statement in [
            "SELECT 1",
            "/*dlock */",
            "/*dlock a b*/",
            "/*dlock a mutex 6 61*/",
            "/*dlock a mutex 61 6 61*/",
            "/*dlock a mutex 6 =a",
            "/*dlock a pair 6 =a =b*/",
            "/*dlock a mutex 6 ff 61*/",
        ] {
            assert_eq!(ClaimComment::find(statement), None, "{statement}");
        }
    }
}
