//! The names and kinds of locks in the file, and the check of paths.

use std::{num::NonZeroU32, path::Path};

use dlock_core::{Error, Kind, Result};

use crate::error::STORE;

/// The kinds of locks that the file supports.
pub(crate) const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit];

/// Returns the word for a kind in the file. A permit is stored as a mutex with a limit, so that a
/// dlock that does not support permits treats it as a mutex and waits for it.
///
/// # Errors
/// [`Error::Unsupported`] for a kind that the file does not support.
pub(crate) fn word(kind: Kind) -> Result<&'static str> {
    Ok(match kind {
        Kind::Mutex | Kind::Permit => "mutex",
        Kind::Fair => "fair",
        Kind::Read => "read",
        Kind::Write => "write",
        _ => return Err(Error::Unsupported { store: STORE.store(), what: format!("lock for {kind}") }),
    })
}

/// Returns the kind for a word in the file and the limit beside it.
pub(crate) fn kind(text: &str, limit: Option<NonZeroU32>) -> Option<Kind> {
    let has_word = |kind: &Kind| word(*kind).is_ok_and(|word| word == text);
    KINDS.iter().copied().find(|kind| has_word(kind) && limit.is_some() == (*kind == Kind::Permit))
}

/// Returns the least name that is greater than all names with `prefix`, in the order of the file.
/// `None` if there is no such name.
pub(crate) fn end_of_prefix(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // A range of chars omits the surrogates, which cannot occur in a text.
        if let Some(next) = (last..=char::MAX).nth(1) {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

/// Refuses a path that SQLite cannot open or that cannot be displayed.
pub(crate) fn check_path(path: &Path) -> Result<()> {
    let problem = match path.to_str() {
        None => "is not UTF-8",
        Some(path) if path.contains(char::is_control) => "has a control character",
        Some(_) => return Ok(()),
    };
    let reason = format!("the path {path:?} {problem}; choose another");
    Err(Error::InvalidConfig { reason })
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_read_as_it_was_written() {
        for &written in KINDS {
            let limit = (written == Kind::Permit).then_some(NonZeroU32::MIN);
            assert_eq!(kind(word(written).expect("a supported kind"), limit), Some(written));
        }
    }

    #[test]
    fn the_end_of_a_prefix_is_the_next_name_without_it() {
        for (prefix, next) in [
            ("", None),
            ("a", Some("b")),
            ("a/%_", Some("a/%`")),
            ("\u{d7ff}", Some("\u{e000}")),
            ("a\u{10ffff}", Some("b")),
            ("\u{10ffff}", None),
        ] {
            assert_eq!(end_of_prefix(prefix).as_deref(), next, "{prefix:?}");
        }
    }
}
