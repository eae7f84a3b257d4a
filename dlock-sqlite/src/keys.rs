//! How names and kinds are written in the file, and which paths are refused.

use std::{num::NonZeroU32, path::Path};

use dlock_core::{Error, Kind, Result};

use crate::error::STORE;

/// The kinds that the file can hold.
pub(crate) const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit];

/// The kind's word in the file. A permit is a mutex with a limit: a dlock that does not know permits takes it for a mutex,
/// and waits for it.
///
/// # Errors
/// [`Error::Unsupported`] for a kind that the file cannot hold.
pub(crate) fn word(kind: Kind) -> Result<&'static str> {
    Ok(match kind {
        Kind::Mutex | Kind::Permit => "mutex",
        Kind::Fair => "fair",
        Kind::Read => "read",
        Kind::Write => "write",
        _ => return Err(Error::Unsupported { store: STORE.store(), what: format!("lock for {kind}") }),
    })
}

/// The kind of a word in the file, and of the limit beside it.
pub(crate) fn kind(text: &str, limit: Option<NonZeroU32>) -> Option<Kind> {
    let of = |kind: &Kind| word(*kind).is_ok_and(|word| word == text);
    KINDS.iter().copied().find(|kind| of(kind) && limit.is_some() == (*kind == Kind::Permit))
}

/// The least name that is greater than all names with `prefix`, in the order of the file; `None` if there is none.
pub(crate) fn beyond(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // A range of chars leaves out the surrogates, which no text holds.
        if let Some(next) = (last..=char::MAX).nth(1) {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

/// Refuses a path that SQLite cannot open or people cannot read.
pub(crate) fn check_path(path: &Path) -> Result<()> {
    let what = match path.to_str() {
        None => "is not UTF-8",
        Some(path) if path.contains(char::is_control) => "has a control character",
        Some(_) => return Ok(()),
    };
    let reason = format!("the path {path:?} {what}; choose another");
    Err(Error::InvalidConfig { reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_read_as_it_was_written() {
        for &each in KINDS {
            let limit = (each == Kind::Permit).then_some(NonZeroU32::MIN);
            assert_eq!(kind(word(each).expect("the file can hold it"), limit), Some(each));
        }
    }

    #[test]
    fn the_name_beyond_a_prefix_is_the_next_that_does_not_begin_with_it() {
        for (prefix, next) in [
            ("", None),
            ("a", Some("b")),
            ("a/%_", Some("a/%`")),
            ("\u{d7ff}", Some("\u{e000}")),
            ("a\u{10ffff}", Some("b")),
            ("\u{10ffff}", None),
        ] {
            assert_eq!(beyond(prefix).as_deref(), next, "{prefix:?}");
        }
    }
}
