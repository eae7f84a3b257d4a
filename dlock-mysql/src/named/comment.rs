//! The comment in a statement by which a session names its claim. Users who list the server's
//! sessions see it.

use std::{fmt::Write as _, time::Duration};

use dlock_core::driver::Request;

const BEGIN: &str = "/*dlock ";

/// The claim of a session that owns a lock or waits for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClaimComment {
    pub(super) id: String,
    /// The session's minimum time of permitted silence.
    pub(super) ttl: Duration,
    pub(super) who: String,
    pub(super) name: String,
}

impl ClaimComment {
    pub(super) fn of(request: &Request) -> Self {
        let name = request.name.as_str().to_owned();
        Self { id: request.id.to_string(), ttl: request.ttl, who: request.who.text().to_owned(), name }
    }

    /// Returns the text of the comment. Users' texts are encoded, so that they cannot end it.
    pub(super) fn text(&self) -> String {
        format!("{} {} {} {}", self.id, self.ttl.as_millis(), hex(&self.who), hex(&self.name))
    }

    /// Returns the comment of a statement, if it has one. Any program can write such a comment, so
    /// it is used for display only.
    pub(super) fn find(statement: &str) -> Option<Self> {
        let (_, rest) = statement.split_once(BEGIN)?;
        let mut words = rest.split_once("*/")?.0.split(' ');
        let (id, ttl) = (words.next()?.to_owned(), Duration::from_millis(words.next()?.parse().ok()?));
        let (who, name) = (unhex(words.next()?)?, unhex(words.next()?)?);
        words.next().is_none().then_some(Self { id, ttl, who, name })
    }
}

fn hex(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len() * 2), |mut hex, byte| {
        // Writing to a `String` cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn unhex(hex: &str) -> Option<String> {
    let digits = hex.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8));
    let digits: Vec<u8> = digits.collect::<Option<_>>()?;
    let bytes = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some(high << 4 | low),
        _ => None,
    });
    String::from_utf8(bytes.collect::<Option<_>>()?).ok()
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_read_as_it_was_written() {
        let [id, who, name] = ["4711", "*/ é '", "invoice/42"].map(str::to_owned);
        let comment = ClaimComment { id, ttl: Duration::from_secs(3), who, name };
        let statement = format!("SELECT 1 {BEGIN}{}*/; SELECT 2", comment.text());
        assert_eq!(ClaimComment::find(&statement), Some(comment));
    }

    #[test]
    fn a_statement_without_a_whole_comment_has_none() {
        for statement in [
            "SELECT 1",
            "/*dlock */",
            "/*dlock a b*/",
            "/*dlock a 6 61*/",
            "/*dlock a 61 6",
            "/*dlock a ff 61*/",
        ] {
            assert_eq!(ClaimComment::find(statement), None, "{statement}");
        }
    }
}
