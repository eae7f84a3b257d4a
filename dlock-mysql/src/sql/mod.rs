//! What the server is asked: statements with names in place of values.

use std::fmt::Write as _;

/// Several statements, sent in one call. A value stands as `:name` in the text, and is filled in as a literal: the text
/// protocol takes many statements in one round trip, and binds none.
pub(crate) struct Batch(&'static str);

pub(crate) const SCHEMA: Batch = Batch(include_str!("schema.sql"));
pub(crate) const VERSION: Batch = Batch(include_str!("version.sql"));
pub(crate) const PREPARE: Batch = Batch(include_str!("prepare.sql"));
const READ_ONLY: Batch = Batch(include_str!("read_only.sql"));
const REFUSAL: Batch = Batch(include_str!("refusal.sql"));
const WRITABLE: Batch = Batch(include_str!("writable.sql"));
pub(crate) const CLOCK: Batch = Batch(include_str!("clock.sql"));
pub(crate) const ATTEMPT: Batch = Batch(include_str!("attempt.sql"));
pub(crate) const TRY_CLEAN: Batch = Batch(include_str!("try_clean.sql"));
pub(crate) const TRY_CONDITION: Batch = Batch(include_str!("try_condition.sql"));
pub(crate) const AGAIN: Batch = Batch(include_str!("again.sql"));
pub(crate) const RENEW: Batch = Batch(include_str!("renew.sql"));
pub(crate) const TAKE_BELLS: Batch = Batch(include_str!("take_bells.sql"));
pub(crate) const RESUME: Batch = Batch(include_str!("resume.sql"));
pub(crate) const PRESENT: Batch = Batch(include_str!("present.sql"));
pub(crate) const DETACH: Batch = Batch(include_str!("detach.sql"));
pub(crate) const RELEASE: Batch = Batch(include_str!("release.sql"));
pub(crate) const SWEEP: Batch = Batch(include_str!("sweep.sql"));
pub(crate) const RING_AGAIN: Batch = Batch(include_str!("ring_again.sql"));
pub(crate) const AWAIT_BELL: Batch = Batch(include_str!("await_bell.sql"));
pub(crate) const LOOK: Batch = Batch(include_str!("look.sql"));
pub(crate) const BREAK: Batch = Batch(include_str!("break.sql"));
pub(crate) const NAMED_TAKE: Batch = Batch(include_str!("named_take.sql"));
pub(crate) const NAMED_RENEW: Batch = Batch(include_str!("named_renew.sql"));
pub(crate) const NAMED_RELEASE: Batch = Batch(include_str!("named_release.sql"));
pub(crate) const NAMED_WATCH: Batch = Batch(include_str!("named_watch.sql"));
pub(crate) const NAMED_KEEP: Batch = Batch(include_str!("named_keep.sql"));
pub(crate) const NAMED_ASK: Batch = Batch(include_str!("named_ask.sql"));
pub(crate) const NAMED_OWNS: Batch = Batch(include_str!("named_owns.sql"));
pub(crate) const NAMED_LIVES: Batch = Batch(include_str!("named_lives.sql"));
pub(crate) const NAMED_LOOK: Batch = Batch(include_str!("named_look.sql"));
pub(crate) const NAMED_LIST_MARIADB: Batch = Batch(include_str!("named_list_mariadb.sql"));
pub(crate) const NAMED_LIST_MYSQL: Batch = Batch(include_str!("named_list_mysql.sql"));
pub(crate) const NAMED_STOP: Batch = Batch(include_str!("named_stop.sql"));
pub(crate) const NAMED_KILL: Batch = Batch(include_str!("named_kill.sql"));
pub(crate) const NAMED_BREAK: Batch = Batch(include_str!("named_break.sql"));

/// What takes or rings no named lock.
pub(crate) const NOTHING: &str = "0";

/// Stands in a batch for the time until which it may act, by the server's clock: known only once a session is free for the batch.
pub(crate) const UNTIL: &str = "@dlock_until";

impl Batch {
    /// What stands for the same text in every batch.
    fn part(name: &str) -> Option<Self> {
        match name {
            "read_only" => Some(READ_ONLY),
            "refusal" => Some(REFUSAL),
            "writable" => Some(WRITABLE),
            _ => None,
        }
    }

    /// The text with these values: literals, numbers and identifiers that this crate made.
    ///
    /// # Panics
    /// For a name without a value: a mistake of this crate, which each test of the batch would show.
    pub(crate) fn with(&self, values: &[(&str, &str)]) -> String {
        let mut text = String::with_capacity(self.0.len() * 2);
        for line in self.0.lines().filter(|line| !line.starts_with("--")) {
            let mut parts = line.split(':');
            text.push_str(parts.next().unwrap_or_default());
            for part in parts {
                let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(part.len());
                let name = &part[..end];
                match (values.iter().find(|(known, _)| *known == name), Self::part(name)) {
                    (Some((_, value)), _) => text.push_str(value),
                    (None, Some(part)) => text.push_str(part.with(&[]).trim_end()),
                    (None, None) => panic!("no value for `{name}`"),
                }
                text.push_str(&part[end..]);
            }
            text.push('\n');
        }
        text
    }
}

/// Bytes as a literal, whatever they are: nothing of a user's text can end it.
pub(crate) fn literal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2 + 3);
    text.push_str("x'");
    for byte in bytes {
        // Writing into a text cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\'');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_where_their_names_stood_and_comments_are_left_out() {
        assert!(WRITABLE.with(&[]).contains("(~0 + (CAST(@@global.read_only"), "parts have parts");
        let text = RING_AGAIN.with(&[("bell", "'b'")]);
        assert_eq!(text, "DO RELEASE_LOCK('b');\nDO GET_LOCK('b', 1)\n");
    }

    #[test]
    fn a_literal_holds_any_bytes() {
        assert_eq!(literal(b"a'\\\0"), "x'61275c00'");
        assert_eq!(literal(b""), "x''");
    }
}
