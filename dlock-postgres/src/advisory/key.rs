//! Keys of advisory locks, derived from names by the rules of other programs.

use dlock_core::{Error, LockName, Result};
use hkdf::Hkdf;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::{config::KeyRule, keys::crc32, sql::hex};

/// The key of an advisory lock. Keys of one number and keys of two numbers are never equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    BigInt(i64),
    Pair(i32, i32),
    /// The number that the server's function `hashtext` returns for this text.
    Hashtext(String),
}

impl Key {
    /// Returns the key for a lock's name.
    ///
    /// # Errors
    /// With [`KeyRule::Number`], for a name that is no key.
    pub(super) fn of(name: &LockName, key_rule: KeyRule) -> Result<Self> {
        let text = name.as_str();
        Ok(match key_rule {
            KeyRule::Dotnet => dotnet(text),
            KeyRule::Ruby => Self::Pair(non_negative(crc32(text.as_bytes())), 0),
            KeyRule::Sqlx => Self::BigInt(sqlx(text)),
            KeyRule::Pglock => Self::BigInt(little_endian(&Sha256::digest(text))),
            KeyRule::Hashtext => Self::Hashtext(text.to_owned()),
            KeyRule::Number => number(text).ok_or_else(|| Error::InvalidName {
                name: text.to_owned(),
                reason: "with `names=number` a name is a key: `42`, or two numbers of 32 bits, `42,7`"
                    .to_owned(),
            })?,
        })
    }

    /// Returns the arguments of the lock functions, as SQL.
    pub(super) fn arguments(&self) -> String {
        match self {
            Self::BigInt(key) => format!("'{key}'::bigint"),
            Self::Pair(first, second) => format!("'{first}'::integer, '{second}'::integer"),
            // The text is converted to the encoding of the database, as for any client.
            Self::Hashtext(text) => format!(
                "pg_catalog.hashtext(pg_catalog.convert_from(pg_catalog.decode('{}', 'hex'), 'UTF8'))::bigint",
                hex(text)
            ),
        }
    }

    /// Returns the SQL condition for the rows of this lock in `pg_locks l`.
    pub(super) fn condition(&self) -> String {
        let arguments = self.arguments();
        match self {
            Self::BigInt(_) | Self::Hashtext(_) => format!(
                "l.objsubid = 1 AND l.classid = (({arguments} >> 32) & 4294967295)::oid \
                 AND l.objid = ({arguments} & 4294967295)::oid"
            ),
            Self::Pair(first, second) => format!(
                "l.objsubid = 2 AND l.classid = '{}'::oid AND l.objid = '{}'::oid",
                first.cast_unsigned(),
                second.cast_unsigned()
            ),
        }
    }

    /// Returns the name that this key has with [`KeyRule::Number`].
    pub(super) fn name(&self) -> Option<String> {
        match self {
            Self::BigInt(key) => Some(key.to_string()),
            Self::Pair(first, second) => Some(format!("{first},{second}")),
            Self::Hashtext(_) => None,
        }
    }

    /// Returns the key in the columns `classid`, `objid` and `objsubid` of `pg_locks`.
    pub(super) fn of_columns(classid: u32, objid: u32, objsubid: u32) -> Self {
        match objsubid {
            1 => Self::BigInt((i64::from(classid.cast_signed()) << 32) | i64::from(objid)),
            _ => Self::Pair(classid.cast_signed(), objid.cast_signed()),
        }
    }
}

/// `PostgresAdvisoryLockKey(name, allowHashing: true)` of the .NET library `DistributedLock`.
fn dotnet(name: &str) -> Key {
    /// Maximum length of an ASCII name that is a key itself, with seven bits a character.
    const LONGEST_ASCII: usize = 9;
    let hex_digits = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_number.then(|| u64::from_str_radix(text, 16).ok()).flatten()
    };
    if name.is_ascii() && name.len() <= LONGEST_ASCII {
        let bits = name.bytes().fold(0, |bits: u64, byte| bits << 7 | u64::from(byte)) << 1;
        let key = (name.len()..LONGEST_ASCII).fold(bits, |bits, _| bits << 7 | 0x7f);
        return pair(key);
    }
    if name.len() == 17
        && let Some((first, second)) = name.split_once(',')
        && first.len() == 8
        && let (Some(first), Some(second)) = (hex_digits(first), hex_digits(second))
    {
        return pair(first << 32 | second);
    }
    if name.len() == 16
        && let Some(key) = hex_digits(name)
    {
        return Key::BigInt(key.cast_signed());
    }
    Key::BigInt(little_endian(&Sha1::digest(name)))
}

/// Returns a key of two numbers from their bits.
fn pair(bits: u64) -> Key {
    let half = |bits: u64| (bits as u32).cast_signed();
    Key::Pair(half(bits >> 32), half(bits))
}

/// `PgAdvisoryLock::new(name)` of sqlx.
fn sqlx(name: &str) -> i64 {
    let mut key = [0; 8];
    // Fails only for more than 255 times the length of the hash.
    let expanded =
        Hkdf::<Sha256>::new(None, name.as_bytes()).expand(b"SQLx (Rust) Postgres advisory lock", &mut key);
    debug_assert!(expanded.is_ok());
    i64::from_le_bytes(key)
}

fn number(name: &str) -> Option<Key> {
    let key = match name.split_once(',') {
        Some((first, second)) => Key::Pair(first.parse().ok()?, second.parse().ok()?),
        None => Key::BigInt(name.parse().ok()?),
    };
    // `+42` and `042` are not names, so that one key has one name.
    (key.name().as_deref() == Some(name)).then_some(key)
}

fn little_endian(hash: &[u8]) -> i64 {
    hash.iter().take(8).rev().fold(0, |key, byte| key << 8 | i64::from(*byte))
}

/// Removes the sign.
fn non_negative(number: u32) -> i32 {
    (number & 0x7fff_ffff).cast_signed()
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, key_rule: KeyRule) -> Key {
        Key::of(&LockName::new(name).unwrap(), key_rule).unwrap()
    }

    #[test]
    fn a_key_is_that_of_distributed_lock_in_dot_net() {
        for (name, expected) in [
            ("a", Key::Pair(-1_023_410_177, -1)),
            ("orders", Key::Pair(-540_334_498, 1_558_183_935)),
            ("123456789", Key::Pair(1_657_379_654, -1_382_303_630)),
            ("00000003,ffffffff", Key::Pair(3, -1)),
            ("00000003ffffffff", Key::BigInt(17_179_869_183)),
            ("FFFFFFFFffffffff", Key::BigInt(-1)),
            ("Orders/42!", Key::BigInt(1_909_825_527_885_244_575)),
            (&"漢".repeat(18), Key::BigInt(-5_707_277_204_051_710_361)),
        ] {
            assert_eq!(key(name, KeyRule::Dotnet), expected, "{name}");
        }
        assert_eq!(dotnet(""), Key::Pair(i32::MAX, -1), "the empty name, which dlock does not have");
        let hashed = ["\u{e9}", "00000003;ffffffff", "0000000g,ffffffff", "+000000000000001"];
        assert!(hashed.iter().all(|name| matches!(key(name, KeyRule::Dotnet), Key::BigInt(_))));
    }

    #[test]
    fn a_key_is_that_of_with_advisory_lock_in_ruby() {
        assert_eq!(key("orders", KeyRule::Ruby), Key::Pair(1_697_644_014, 0));
    }

    #[test]
    fn a_key_is_that_of_sqlx() {
        let names = [
            ("my first Postgres advisory lock!", -5_560_419_505_042_474_287),
            ("orders", -8_016_963_209_069_940_494),
        ];
        for (name, expected) in names {
            assert_eq!(key(name, KeyRule::Sqlx), Key::BigInt(expected));
        }
    }

    #[test]
    fn a_key_is_that_of_pglock_in_django() {
        assert_eq!(key("orders", KeyRule::Pglock), Key::BigInt(-2_015_129_932_123_204_068));
    }

    #[test]
    fn a_number_is_its_own_key_and_other_names_are_refused() {
        assert_eq!(key("-42", KeyRule::Number), Key::BigInt(-42));
        assert_eq!(key("42,-7", KeyRule::Number), Key::Pair(42, -7));
        for name in ["orders", "+42", "042", "42, 7", "9223372036854775808", "2147483648,0", "1,2,3"] {
            let refused = Key::of(&LockName::new(name).unwrap(), KeyRule::Number);
            assert!(matches!(refused, Err(Error::InvalidName { .. })), "{name}: {refused:?}");
        }
    }

    #[test]
    fn a_key_is_read_from_the_columns_of_pg_locks() {
        assert_eq!(Key::of_columns(u32::MAX, 0xffff_fffe, 1), Key::BigInt(-2));
        assert_eq!(Key::of_columns(3, u32::MAX, 1), Key::BigInt(17_179_869_183));
        assert_eq!(Key::of_columns(3, u32::MAX, 2), Key::Pair(3, -1));
    }

    #[test]
    fn no_name_ends_the_quotes_of_an_argument() {
        let arguments = key("a'); DROP", KeyRule::Hashtext).arguments();
        assert!(arguments.contains("'6127293b2044524f50'"), "{arguments}");
    }
}
