//! Encoding of names, kinds and ids for the tables and for named locks.

use dlock_core::{ClaimId, Error, Kind, LockName, Result};
use sha2::{Digest as _, Sha512};

use crate::{config::Names, error::STORE, sql::literal};

/// The kinds of locks that the queue supports.
pub(crate) const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit];

/// Number of rows of the fence. Attempts for names that share a row wait for each other's commits.
const FENCE_ROWS: u16 = 1024;

/// The names of the tables, in back-quotes.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) store: String,
    pub(crate) fence: String,
    pub(crate) queue: String,
}

impl Tables {
    pub(crate) fn new(prefix: &str) -> Self {
        let table = |name| format!("`{prefix}{name}`");
        Self { store: table("store"), fence: table("fence"), queue: table("queue") }
    }
}

/// Returns the rows of the fence for the `INSERT` of `schema.sql`.
pub(crate) fn fence_rows() -> String {
    let rows: Vec<_> = (0..FENCE_ROWS).map(|bucket| format!("({bucket},0)")).collect();
    rows.join(",")
}

/// Returns the kind as an SQL literal.
///
/// # Errors
/// [`Error::Unsupported`] for a kind that the queue does not support.
pub(crate) fn kind_literal(kind: Kind) -> Result<&'static str> {
    Ok(match kind {
        Kind::Mutex => "'mutex'",
        Kind::Fair => "'fair'",
        Kind::Read => "'read'",
        Kind::Write => "'write'",
        Kind::Permit => "'permit'",
        _ => return Err(Error::Unsupported { store: STORE.store(), what: format!("lock for {kind}") }),
    })
}

/// Returns the kind that a row of the queue names.
pub(crate) fn parse_kind(text: &str) -> Option<Kind> {
    let is_named = |kind: &Kind| kind_literal(*kind).is_ok_and(|literal| literal.trim_matches('\'') == text);
    KINDS.iter().copied().find(is_named)
}

/// Returns the claim's id as an SQL literal.
pub(crate) fn claim_literal(id: ClaimId) -> String {
    literal(id.as_bytes())
}

/// The beginning of all named locks that dlock uses for itself.
pub(crate) const RESERVED: &str = "dlock:";

/// Returns the name of the claim's doorbell as an SQL literal. The doorbell is a named lock that
/// the claim's client owns while the claim is in the queue. In session mode it is the anchor of the
/// claim's watch.
///
/// Named locks belong to the server and not to a database. The id makes the name unique.
pub(crate) fn bell_literal(id: ClaimId) -> String {
    format!("'{RESERVED}{id}'")
}

/// Returns the SQL expression for the doorbell of the claim in a row of the queue. The server
/// computes the name from the column `claim`.
pub(crate) fn bell_of_row() -> String {
    // The id has the form of a UUID. The hyphens are inserted from the end to the beginning.
    let id =
        [21, 17, 13, 9].iter().fold("HEX(claim)".to_owned(), |id, at| format!("INSERT({id}, {at}, 0, '-')"));
    format!("CONCAT('{RESERVED}', LOWER({id}))")
}

/// Returns the name of a new named lock that identifies a session, as an SQL literal. The name is
/// unique, also among sessions from before a restart of the server.
pub(crate) fn session_tag() -> String {
    format!("'{RESERVED}session:{}'", ClaimId::random())
}

/// Returns the least name, in the order of bytes, that is greater than all names with `prefix`, as
/// an SQL literal. For an empty prefix that is a byte greater than any byte of UTF-8.
pub(crate) fn upper_bound(prefix: &str) -> String {
    let mut bytes = prefix.as_bytes().to_vec();
    match bytes.last_mut() {
        Some(last) => *last += 1,
        None => bytes.push(u8::MAX),
    }
    literal(&bytes)
}

/// Maximum length of a named lock that both servers accept, in characters.
const LONGEST_NAMED_LOCK: usize = 64;

/// Returns the named lock for a lock's name.
///
/// A name is used unchanged if both servers accept it and distinguish it from every other name.
/// Other names are cut, written in lower case, and followed by 160 bits of a hash. The .NET library
/// `DistributedLock` uses the same rule for ASCII names.
///
/// # Errors
/// With [`Names::Exact`], for a name that would have to be changed.
pub(crate) fn named_lock(name: &LockName, names: Names) -> Result<String> {
    let text = name.as_str();
    let is_same_everywhere = |c: char| c.is_ascii_graphic() && !c.is_ascii_uppercase();
    if text.len() <= LONGEST_NAMED_LOCK && text.chars().all(is_same_everywhere) {
        return Ok(text.to_owned());
    }
    if names == Names::Exact {
        let reason =
            "with `names=exact` a name has at most 64 visible ASCII characters, none of them in upper case"
                .to_owned();
        return Err(Error::InvalidName { name: text.to_owned(), reason });
    }
    let hash = base32(&Sha512::digest(text.as_bytes())[..20]);
    let room = LONGEST_NAMED_LOCK - hash.len();
    let beginning: String =
        text.to_lowercase().chars().map(|c| if is_same_everywhere(c) { c } else { '_' }).take(room).collect();
    Ok(beginning + &hash)
}

/// Returns a named lock as an SQL literal. A lock with a quote or a backslash, or with the prefix
/// of a doorbell, is written in hexadecimal digits. Other locks are written in quotes, which the
/// server parses faster.
pub(crate) fn named_literal(lock: &str) -> String {
    if lock.contains(['\'', '\\']) || lock.starts_with(RESERVED) {
        return format!("CONVERT({} USING utf8mb3)", literal(lock.as_bytes()));
    }
    format!("'{lock}'")
}

/// Encodes five bits as one letter. The lowest bits of each byte come first.
fn base32(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| usize::from(byte >> (at % 8) & 1));
    let letter = |at: usize| (0..5).fold(0, |letter, shift| letter | bit(at * 5 + shift) << shift);
    (0..(bytes.len() * 8).div_ceil(5)).map(|at| char::from(LETTERS[letter(at)])).collect()
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_read_as_it_was_written() {
        for &each in KINDS {
            assert_eq!(
                parse_kind(kind_literal(each).expect("the queue supports it").trim_matches('\'')),
                Some(each)
            );
        }
        assert_eq!(parse_kind("exclusive"), None);
    }

    #[test]
    fn the_upper_bound_of_a_prefix_is_the_next_name_that_does_not_begin_with_it() {
        assert_eq!(upper_bound("a/%_"), literal(b"a/%`"));
        assert_eq!(upper_bound("\u{10ffff}"), literal(&[0xf4, 0x8f, 0xbf, 0xc0]));
        assert_eq!(upper_bound(""), literal(&[0xff]));
    }

    #[test]
    fn a_name_that_both_servers_take_is_its_own_named_lock_and_others_are_hashed_as_dot_net_does() {
        let lock = |name: &str| named_lock(&LockName::new(name).unwrap(), Names::Hashed).unwrap();
        assert_eq!(lock("invoice/42"), "invoice/42");
        assert_eq!(lock("ABC"), "abczj4qr6tvn4a3kmgq4bukhowqyfrlxsb3", "the test vector of DistributedLock");
        let names = [
            "\u{e9}",
            "e",
            "E",
            "job ",
            "job",
            "\u{1f512}",
            &"a".repeat(64),
            &"a".repeat(65),
            &"a".repeat(193),
        ];
        let locks: std::collections::HashSet<_> = names.map(lock).into_iter().collect();
        assert_eq!(locks.len(), names.len(), "two names have the same named lock");
        assert!(locks.iter().all(|lock| lock.len() <= 64 && lock.is_ascii()));
        let exact = named_lock(&LockName::new("ABC").unwrap(), Names::Exact);
        assert!(matches!(exact, Err(Error::InvalidName { .. })), "{exact:?}");
    }

    #[test]
    fn no_part_of_a_named_lock_ends_its_quotes() {
        assert_eq!(named_literal("a/b"), "'a/b'");
        for lock in ["a'b", "a\\", "dlock:job"] {
            assert_eq!(named_literal(lock), format!("CONVERT({} USING utf8mb3)", literal(lock.as_bytes())));
        }
    }

    #[test]
    fn doorbells_and_tags_fit_into_the_shortest_named_lock() {
        for lock in [bell_literal(ClaimId::random()), session_tag()] {
            assert!(lock.trim_matches('\'').len() <= LONGEST_NAMED_LOCK, "longer than MySQL allows: {lock}");
        }
    }
}
