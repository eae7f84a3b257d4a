//! The ids of the claims on the members. They are derived from the id of the RedLock claim.

use crate::model::ClaimId;

/// Length in bytes of the id's prefix that the members' claims of one RedLock claim share. The last
/// three bytes differ for each member and attempt: the member's index and a counter are combined
/// with them by XOR.
const COMMON_BYTES: usize = 13;

/// Returns the id of the claim with this number on the member with this index.
pub(super) fn of_member(id: ClaimId, index: u8, number: u16) -> ClaimId {
    let mut id = *id.as_bytes();
    let [high, low] = number.to_be_bytes();
    for (byte, own) in id[COMMON_BYTES..].iter_mut().zip([index, high, low]) {
        *byte ^= own;
    }
    ClaimId::from_bytes(id)
}

/// Returns whether the ids that two members report belong to one RedLock claim. Such ids differ
/// only in the bytes after the first [`COMMON_BYTES`]. Text after the id, as in ids of other
/// programs, must be equal.
pub(super) fn is_same_claim(one: &str, other: &str) -> bool {
    let parts =
        |id: &str| Some((id.get(..ClaimId::COMMON_CHARS)?.to_owned(), id.get(ID_CHARS..)?.to_owned()));
    one == other || parts(one).is_some_and(|one| Some(one) == parts(other))
}

/// Number of characters of a [`ClaimId`].
const ID_CHARS: usize = 36;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_different_claims_are_distinguished() {
        let (one, other) = (ClaimId::random().to_string(), ClaimId::random().to_string());
        assert!(!is_same_claim(&one, &other));
        assert!(
            !is_same_claim(&format!("{one}:1"), &format!("{one}:2")),
            "two threads of one Redisson client are taken for one claim"
        );
        assert!(
            is_same_claim("x", "x") && !is_same_claim("x", "y"),
            "short ids, as other programs have, are not compared as they are"
        );
    }
}
