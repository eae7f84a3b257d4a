//! What a session says of itself in a comment of the statement that it is at, for those who look at the server's sessions.

use std::{fmt::Write as _, time::Duration};

use dlock_core::driver::Request;

/// What stands before a mark in a statement.
const BEGIN: &str = "/*dlock ";

/// Who has a lock or waits for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) id: String,
    /// The least time that the session may be silent.
    pub(super) ttl: Duration,
    pub(super) who: String,
    pub(super) name: String,
}

impl Mark {
    pub(super) fn of(request: &Request) -> Self {
        let name = request.name.as_str().to_owned();
        Self { id: request.id.to_string(), ttl: request.ttl, who: request.who.text().to_owned(), name }
    }

    /// As the statement has it: nothing of a user's text can end the comment.
    pub(super) fn text(&self) -> String {
        format!("{} {} {} {}", self.id, self.ttl.as_millis(), hex(&self.who), hex(&self.name))
    }

    /// The mark of a statement, if it has one. Anybody may write one: it is believed as far as the text that it shows.
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
        // Writing into a text cannot fail.
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
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let [id, who, name] = ["4711", "*/ é '", "invoice/42"].map(str::to_owned);
        let mark = Mark { id, ttl: Duration::from_secs(3), who, name };
        let statement = format!("SELECT 1 {BEGIN}{}*/; SELECT 2", mark.text());
        assert_eq!(Mark::find(&statement), Some(mark));
    }

    #[test]
    fn what_is_no_mark_is_none() {
        for statement in [
            "SELECT 1",
            "/*dlock */",
            "/*dlock a b*/",
            "/*dlock a 6 61*/",
            "/*dlock a 61 6",
            "/*dlock a ff 61*/",
        ] {
            assert_eq!(Mark::find(statement), None, "{statement}");
        }
    }
}
