//! Encoding of names, kinds, ids and times for the columns of the queue.

use std::time::Duration;

use dlock_core::{ClaimId, Error, Kind, LockName, Result};
use uuid::Uuid;

use crate::error::STORE;

/// The kinds of locks that the queue supports.
pub(crate) const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit];

/// Number of buckets. The queues of names in one bucket are locked together, so their attempts wait
/// for each other's commits.
const BUCKETS: u32 = 1024;

/// Returns the bucket of a name: its CRC-32, modulo the number of buckets. All clients must compute
/// the same bucket, because it is what they lock.
pub(crate) fn bucket(name: &LockName) -> i32 {
    let bucket = crc32(name.as_str().as_bytes()) % BUCKETS;
    i32::try_from(bucket).unwrap_or_default()
}

/// First key of the advisory locks of buckets and of the schema, as in `schema.sql`.
const BUCKET_LOCKS: u32 = 1_145_851_715;

/// Returns the SQL condition for rows of `pg_locks` that are not locks of buckets or of the schema.
/// `rows` is the alias of the table.
pub(crate) fn is_no_bucket(rows: &str) -> String {
    format!("({rows}.objsubid = 1 OR {rows}.classid <> '{BUCKET_LOCKS}'::oid)")
}

/// Returns the CRC-32 of zlib and PNG.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let shift = |crc: u32| (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg());
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| shift(crc)))
}

/// Returns the code of a kind in the column `kind`.
///
/// # Errors
/// [`Error::Unsupported`] for a kind that the queue does not support.
pub(crate) fn kind_code(kind: Kind) -> Result<i16> {
    Ok(match kind {
        Kind::Mutex => 1,
        Kind::Fair => 2,
        Kind::Read => 3,
        Kind::Write => 4,
        Kind::Permit => 5,
        _ => return Err(Error::Unsupported { store: STORE.store(), what: format!("lock for {kind}") }),
    })
}

/// Returns the kind with this code.
pub(crate) fn parse_kind(code: i16) -> Option<Kind> {
    KINDS.iter().copied().find(|kind| kind_code(*kind).is_ok_and(|known| known == code))
}

pub(crate) fn uuid(id: ClaimId) -> Uuid {
    Uuid::from_bytes(*id.as_bytes())
}

pub(crate) fn claim_id(uuid: Uuid) -> ClaimId {
    ClaimId::from_bytes(*uuid.as_bytes())
}

/// Returns a duration in microseconds.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Returns the duration of a column in microseconds. A negative number counts as zero.
pub(crate) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

/// Returns the first bytes, in the order of bytes, behind all names that begin with `prefix`.
///
/// The last byte of UTF-8 is at most 0xf4, so it can be increased.
pub(crate) fn upper_bound(prefix: &str) -> Vec<u8> {
    let mut bytes = prefix.as_bytes().to_vec();
    match bytes.last_mut() {
        Some(last) => *last += 1,
        None => bytes.push(u8::MAX),
    }
    bytes
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_read_as_it_was_written() {
        for &kind in KINDS {
            assert_eq!(parse_kind(kind_code(kind).expect("the queue supports it")), Some(kind));
        }
        assert_eq!(parse_kind(0), None);
    }

    #[test]
    fn a_bucket_is_the_checksum_that_other_programs_compute() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926, "the check value of CRC-32");
        let name = LockName::new("orders").unwrap();
        assert_eq!(bucket(&name), 1_697_644_014 % 1024, "CRC-32 of `orders`, without its highest bit");
    }

    #[test]
    fn the_upper_bound_of_a_prefix_is_the_next_name_that_does_not_begin_with_it() {
        assert_eq!(upper_bound("a/%_"), b"a/%`");
        assert_eq!(upper_bound("\u{10ffff}"), [0xf4, 0x8f, 0xbf, 0xc0]);
        assert_eq!(upper_bound(""), [0xff]);
    }
}
