//! The comment in a statement by which a session names its claim. Users who list the server's
//! sessions see it.

use std::time::Duration;

use dlock_core::{Kind, driver::Request};

use super::backend::KINDS;
use crate::sql::{hex, unhex};

const BEGIN: &str = "/*dlock ";
const END: &str = "*/";

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
    pub(super) name: String,
}

impl ClaimComment {
    pub(super) fn of(request: &Request) -> Self {
        Self {
            id: request.id.to_string(),
            kind: request.kind,
            ttl: request.ttl,
            who: request.who.text().to_owned(),
            name: request.name.as_str().to_owned(),
        }
    }

    /// Returns the comment. Users' texts are encoded if they could end it, or if the encoding of the
    /// database may lack their characters.
    pub(super) fn text(&self) -> String {
        let Self { id, kind, ttl, who, name } = self;
        format!("{BEGIN}{id} {kind} {} {} {}{END}", ttl.as_millis(), encode(who), encode(name))
    }

    /// Returns the comment of a statement, if it has one. Any program can write such a comment, so
    /// it is used for display only. The server keeps the first kilobyte of a statement, so a long name
    /// may be cut, and such a comment is ignored.
    pub(super) fn find(statement: &str) -> Option<Self> {
        let (_, rest) = statement.split_once(BEGIN)?;
        let mut words = rest.split_once(END)?.0.split(' ');
        let mut word = || words.next();
        let comment = Self {
            id: word()?.to_owned(),
            kind: parse_kind(word()?)?,
            ttl: Duration::from_millis(word()?.parse().ok()?),
            who: decode(word()?)?,
            name: decode(word()?)?,
        };
        word().is_none().then_some(comment)
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
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_read_as_it_was_written() {
        for (who, name) in [("*/ é '", "invoice/42"), ("anna@web-3", "a:b"), ("=", " ")] {
            let [id, who, name] = ["4711", who, name].map(str::to_owned);
            let comment = ClaimComment { id, kind: Kind::Read, ttl: Duration::from_secs(3), who, name };
            let statement = format!("{} SELECT 1", comment.text());
            assert!(statement.is_ascii() && statement.matches("*/").count() == 1, "{statement}");
            assert_eq!(ClaimComment::find(&statement), Some(comment));
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
            "/*dlock a mutex 6 =a =b",
            "/*dlock a pair 6 =a =b*/",
            "/*dlock a mutex 6 ff 61*/",
        ] {
            assert_eq!(ClaimComment::find(statement), None, "{statement}");
        }
    }
}
