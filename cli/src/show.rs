//! Text output of locks: phrases and tables.

use std::{fmt::Write, time::Duration};

use dlock::{Contender, LockName, LockState, Mark};

/// Describes the holders: `held by anna@web-3 pid 4711 dlock run report for 12s`. `None` if the
/// lock is free.
pub(crate) fn holders(state: &LockState) -> Option<String> {
    let (first, rest) = state.holders.split_first()?;
    let since = first.since.map(|since| format!(" for {}", rough(since))).unwrap_or_default();
    let others = match rest.len() {
        0 => String::new(),
        1 => " and another".to_owned(),
        n => format!(" and {n} others"),
    };
    Some(format!("held by {}{since}{others}", who(first)))
}

/// Returns a header and one line for each lock. Empty if there are no locks.
pub(crate) fn table(states: &[LockState]) -> String {
    let row = |state: &LockState| {
        let first = state.holders.first();
        [
            printable(state.name.as_str()),
            first.map_or("-".to_owned(), |holder| holder.kind.to_string()),
            state.holders.len().to_string(),
            state.queue.len().to_string(),
            first.map_or("-".to_owned(), |holder| optional(holder.since.map(rough))),
            first.map_or("-".to_owned(), who),
        ]
    };
    aligned(["NAME", "KIND", "HOLDERS", "WAITING", "SINCE", "WHO"], states.iter().map(row).collect())
}

/// Returns a header and one line for each mark. Empty if there are no marks.
pub(crate) fn marks(marks: &[Mark]) -> String {
    let row = |mark: &Mark| {
        [
            printable(mark.name.as_str()),
            printable(&mark.key),
            optional(mark.since.map(rough)),
            optional(mark.ttl_left.map(rough)),
            printable(mark.who.as_deref().unwrap_or("-")),
        ]
    };
    aligned(["NAME", "KEY", "SINCE", "TTL LEFT", "WHO"], marks.iter().map(row).collect())
}

/// Returns all information about one lock.
pub(crate) fn page(name: &LockName, state: Option<&LockState>) -> String {
    let name = printable(name.as_str());
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

/// Returns the holders, and then the waiters with their queue positions.
pub(crate) fn places(state: &LockState) -> impl Iterator<Item = (Option<usize>, &Contender)> {
    let holders = state.holders.iter().map(|holder| (None, holder));
    holders.chain((1..).map(Some).zip(&state.queue))
}

/// Returns the label of a contender, or else its id.
fn who(contender: &Contender) -> String {
    printable(contender.who.as_deref().unwrap_or(&contender.id))
}

/// Escapes the characters of a text from another program that could mislead the reader of a
/// terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if is_misleading(c) { escaped.extend(c.escape_unicode()) } else { escaped.push(c) }
    }
    escaped
}

/// Returns whether a character moves the cursor, changes the direction of the text, or is
/// invisible.
pub(crate) fn is_misleading(c: char) -> bool {
    // `escape_debug` escapes these characters. It also escapes quotes, backslashes, and a combining
    // mark without a letter before it.
    !matches!(c, '"' | '\'' | '\\') && format!("a{c}").escape_debug().nth(2).is_some()
}

fn optional(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Formats a duration in whole seconds.
fn rough(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}

/// Formats a table with aligned columns. Empty if there are no rows.
fn aligned<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = std::iter::once(header.map(str::to_owned)).chain(rows).collect();
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

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_could_fool_a_terminal_is_escaped_and_others_are_not() {
        for harmless in [
            "anna@web-3 pid 4711 dlock run report",
            "\"it's\" C:\\x",
            "J\u{fc}rgen e\u{301}",
            "हिन्दी 日本 🦀",
        ] {
            assert_eq!(printable(harmless), harmless);
        }
        for (text, escaped) in [
            ("a\u{1b}[2J\n", "a\\u{1b}[2J\\u{a}"),
            ("\u{9b}31m\u{7f}", "\\u{9b}31m\\u{7f}"),
            ("gnp.\u{202e}evil\u{2066}", "gnp.\\u{202e}evil\\u{2066}"),
            ("a\u{200b}b\u{feff}\u{2028}", "a\\u{200b}b\\u{feff}\\u{2028}"),
        ] {
            assert_eq!(printable(text), escaped);
        }
    }
}
