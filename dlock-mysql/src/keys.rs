//! How names and kinds are written in the tables, and what the tables and doorbells are called.

use dlock_core::{ClaimId, Error, Kind, LockName, Result};
use sha2::{Digest as _, Sha512};

use crate::{config::Names, error::STORE, sql::literal};

/// The kinds that the queue can hold.
pub(crate) const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit];

/// How many rows the fence has. Names that fall on one row wait for each other's commits.
const BUCKETS: u16 = 1024;

/// The names of the tables, quoted.
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

/// The rows of the fence, as `schema.sql` wants them.
pub(crate) fn buckets() -> String {
    let rows: Vec<_> = (0..BUCKETS).map(|bucket| format!("({bucket},0)")).collect();
    rows.join(",")
}

/// The kind's word in the table, as a literal.
///
/// # Errors
/// [`Error::Unsupported`] for a kind that the table cannot hold.
pub(crate) fn word(kind: Kind) -> Result<&'static str> {
    Ok(match kind {
        Kind::Mutex => "'mutex'",
        Kind::Fair => "'fair'",
        Kind::Read => "'read'",
        Kind::Write => "'write'",
        Kind::Permit => "'permit'",
        _ => return Err(Error::Unsupported { store: STORE.store(), what: format!("lock for {kind}") }),
    })
}

/// The kind of a word in the table.
pub(crate) fn kind(text: &str) -> Option<Kind> {
    KINDS.iter().copied().find(|kind| word(*kind).is_ok_and(|word| word.trim_matches('\'') == text))
}

/// The claim's id as a literal.
pub(crate) fn claim(id: ClaimId) -> String {
    literal(id.as_bytes())
}

/// What the named locks begin with that are no user's.
pub(crate) const BELL: &str = "dlock:";

/// The named lock that a claim's client has while the claim is in the queue, as a literal. Named locks are the server's, not the
/// database's; the id tells this one from all others.
pub(crate) fn bell(id: ClaimId) -> String {
    format!("'{BELL}{id}'")
}

/// The same of the claim in a row of the queue: the server makes it of the column.
pub(crate) fn bell_of_row() -> String {
    // The id has the shape of a UUID. The hyphens are put from behind.
    let id =
        [21, 17, 13, 9].iter().fold("HEX(claim)".to_owned(), |id, at| format!("INSERT({id}, {at}, 0, '-')"));
    format!("CONCAT('{BELL}', LOWER({id}))")
}

/// A named lock that tells a session from all others, those before a restart of the server too, as a literal.
pub(crate) fn tag() -> String {
    format!("'{BELL}session:{}'", ClaimId::random())
}

/// The least name that is greater than all names with `prefix`, in the order of bytes, as a literal. UTF-8 has no byte as great as
/// the one that stands for the end.
pub(crate) fn beyond(prefix: &str) -> String {
    let mut bytes = prefix.as_bytes().to_vec();
    match bytes.last_mut() {
        Some(last) => *last += 1,
        None => bytes.push(u8::MAX),
    }
    literal(&bytes)
}

/// The longest named lock that both servers take, in characters.
const LONGEST_LOCK: usize = 64;

/// The named lock that a name stands for: the name itself where both servers take it, and take no other name for it. For other
/// names the beginning in lower case, and 160 bits of a hash: the rule of the .NET library `DistributedLock`, here also for names
/// that are not ASCII.
///
/// # Errors
/// With [`Names::Exact`], for a name that would have to be changed.
pub(crate) fn named_lock(name: &LockName, names: Names) -> Result<String> {
    let text = name.as_str();
    let is_same_everywhere = |c: char| c.is_ascii_graphic() && !c.is_ascii_uppercase();
    if text.len() <= LONGEST_LOCK && text.chars().all(is_same_everywhere) {
        return Ok(text.to_owned());
    }
    if names == Names::Exact {
        let reason =
            "with `names=exact` a name has at most 64 visible ASCII characters, none of them in upper case"
                .to_owned();
        return Err(Error::InvalidName { name: text.to_owned(), reason });
    }
    let hash = base32(&Sha512::digest(text.as_bytes())[..20]);
    let room = LONGEST_LOCK - hash.len();
    let beginning: String =
        text.to_lowercase().chars().map(|c| if is_same_everywhere(c) { c } else { '_' }).take(room).collect();
    Ok(beginning + &hash)
}

/// The named lock as a text. One that could end its quotes, or looks like a doorbell, stands in hexadecimal digits, which the server
/// takes longer to read.
pub(crate) fn named_literal(lock: &str) -> String {
    if lock.contains(['\'', '\\']) || lock.starts_with(BELL) {
        return format!("CONVERT({} USING utf8mb3)", literal(lock.as_bytes()));
    }
    format!("'{lock}'")
}

/// Five bits a letter, the lowest bits of each byte first.
fn base32(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| usize::from(byte >> (at % 8) & 1));
    let letter = |at: usize| (0..5).fold(0, |letter, of| letter | bit(at * 5 + of) << of);
    (0..(bytes.len() * 8).div_ceil(5)).map(|at| char::from(LETTERS[letter(at)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_read_as_it_was_written() {
        for &each in KINDS {
            assert_eq!(kind(word(each).expect("the table can hold it").trim_matches('\'')), Some(each));
        }
        assert_eq!(kind("exclusive"), None);
    }

    #[test]
    fn the_name_beyond_a_prefix_is_the_next_that_does_not_begin_with_it() {
        assert_eq!(beyond("a/%_"), literal(b"a/%`"));
        assert_eq!(beyond("\u{10ffff}"), literal(&[0xf4, 0x8f, 0xbf, 0xc0]));
        assert_eq!(beyond(""), literal(&[0xff]));
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
        assert_eq!(locks.len(), names.len(), "two names are one lock");
        assert!(locks.iter().all(|lock| lock.len() <= 64 && lock.is_ascii()));
        let exact = named_lock(&LockName::new("ABC").unwrap(), Names::Exact);
        assert!(matches!(exact, Err(Error::InvalidName { .. })), "{exact:?}");
    }

    #[test]
    fn nothing_of_a_named_lock_ends_its_quotes() {
        assert_eq!(named_literal("a/b"), "'a/b'");
        for lock in ["a'b", "a\\", "dlock:job"] {
            assert_eq!(named_literal(lock), format!("CONVERT({} USING utf8mb3)", literal(lock.as_bytes())));
        }
    }

    #[test]
    fn doorbells_and_tags_fit_into_the_shortest_named_lock() {
        for lock in [bell(ClaimId::random()), tag()] {
            assert!(lock.trim_matches('\'').len() <= LONGEST_LOCK, "MySQL allows no more: {lock}");
        }
    }
}
