//! The SQL statements, with placeholders for values.

mod row;

use std::{fmt::Write as _, time::Duration};

pub(crate) use row::{bad_row, claim_id, column, expect, flag, text};

/// Several statements that are sent in one call. A placeholder `:name` is replaced by a value as a
/// literal, because the text protocol executes several statements in one round trip but does not
/// bind values.
pub(crate) struct Batch(&'static str);

pub(crate) const SCHEMA: Batch = Batch(include_str!("schema.sql"));
pub(crate) const VERSION: Batch = Batch(include_str!("version.sql"));
pub(crate) const PREPARE: Batch = Batch(include_str!("prepare.sql"));
const READ_ONLY: Batch = Batch(include_str!("read_only.sql"));
const REFUSAL: Batch = Batch(include_str!("refusal.sql"));
const WRITABLE: Batch = Batch(include_str!("writable.sql"));
pub(crate) const CLOCK: Batch = Batch(include_str!("clock.sql"));
pub(crate) const ATTEMPT: Batch = Batch(include_str!("queue/attempt.sql"));
pub(crate) const TRY_LOOK: Batch = Batch(include_str!("queue/try_look.sql"));
pub(crate) const TRY_CLEAN: Batch = Batch(include_str!("queue/try_clean.sql"));
pub(crate) const TRY_CONDITION: Batch = Batch(include_str!("queue/try_condition.sql"));
pub(crate) const AGAIN: Batch = Batch(include_str!("queue/again.sql"));
pub(crate) const RENEW: Batch = Batch(include_str!("queue/renew.sql"));
pub(crate) const TAKE_BELLS: Batch = Batch(include_str!("queue/take_bells.sql"));
pub(crate) const RESUME: Batch = Batch(include_str!("queue/resume.sql"));
pub(crate) const PRESENT: Batch = Batch(include_str!("queue/present.sql"));
pub(crate) const DETACH: Batch = Batch(include_str!("queue/detach.sql"));
pub(crate) const RELEASE: Batch = Batch(include_str!("queue/release.sql"));
pub(crate) const SWEEP: Batch = Batch(include_str!("queue/sweep.sql"));
pub(crate) const RING_AGAIN: Batch = Batch(include_str!("queue/ring_again.sql"));
pub(crate) const AWAIT_BELL: Batch = Batch(include_str!("queue/await_bell.sql"));
pub(crate) const LOOK: Batch = Batch(include_str!("queue/look.sql"));
pub(crate) const BREAK: Batch = Batch(include_str!("queue/break.sql"));
pub(crate) const NAMED_TAKE: Batch = Batch(include_str!("named/take.sql"));
pub(crate) const NAMED_RENEW: Batch = Batch(include_str!("named/renew.sql"));
pub(crate) const NAMED_RELEASE: Batch = Batch(include_str!("named/release.sql"));
pub(crate) const NAMED_WATCH: Batch = Batch(include_str!("named/watch.sql"));
pub(crate) const NAMED_TAKE_ANCHOR: Batch = Batch(include_str!("named/take_anchor.sql"));
pub(crate) const NAMED_RELEASE_ANCHOR: Batch = Batch(include_str!("named/release_anchor.sql"));
pub(crate) const NAMED_OWNS: Batch = Batch(include_str!("named/owns.sql"));
pub(crate) const NAMED_IS_ALIVE: Batch = Batch(include_str!("named/is_alive.sql"));
pub(crate) const NAMED_LOOK: Batch = Batch(include_str!("named/look.sql"));
pub(crate) const NAMED_LIST_MARIADB: Batch = Batch(include_str!("named/list_mariadb.sql"));
pub(crate) const NAMED_LIST_MYSQL: Batch = Batch(include_str!("named/list_mysql.sql"));
pub(crate) const NAMED_STOP: Batch = Batch(include_str!("named/stop.sql"));
pub(crate) const NAMED_KILL: Batch = Batch(include_str!("named/kill.sql"));
pub(crate) const NAMED_BREAK: Batch = Batch(include_str!("named/break.sql"));

/// The SQL expression that takes and releases no named lock.
pub(crate) const NO_LOCK: &str = "0";

/// Placeholder for the time on the server's clock after which a batch must change nothing. The time
/// is known only when a session is free for the batch.
pub(crate) const DEADLINE: &str = "@dlock_deadline";

impl Batch {
    /// Returns the text of a placeholder that means the same in every batch.
    fn part(name: &str) -> Option<Self> {
        match name {
            "read_only" => Some(READ_ONLY),
            "refusal" => Some(REFUSAL),
            "writable" => Some(WRITABLE),
            _ => None,
        }
    }

    /// Returns the text with these values, which are literals, numbers and identifiers made by this
    /// crate. Removes the comments.
    ///
    /// # Panics
    /// If a placeholder has no value, which is a bug of this crate. Any test of the batch detects
    /// it.
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

/// Returns bytes as a literal. It is hexadecimal, so no text of a user can end it.
pub(crate) fn literal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2 + 3);
    text.push_str("x'");
    for byte in bytes {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\'');
    text
}

/// Returns a duration in microseconds.
pub(crate) fn micros(duration: Duration) -> String {
    duration.as_micros().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_replace_their_placeholders_and_comments_are_removed() {
        assert!(WRITABLE.with(&[]).contains("(~0 + (CAST(@@global.read_only"), "parts may contain parts");
        let text = RING_AGAIN.with(&[("bell", "'b'")]);
        assert_eq!(text, "DO RELEASE_LOCK('b');\nDO GET_LOCK('b', 1)\n");
    }

    #[test]
    fn a_literal_holds_any_bytes() {
        assert_eq!(literal(b"a'\\\0"), "x'61275c00'");
        assert_eq!(literal(b""), "x''");
    }
}
