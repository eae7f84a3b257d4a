//! The id of a claim, and its fencing token.

use std::{
    fmt,
    num::{NonZeroU64, TryFromIntError},
    str::FromStr,
};

use uuid::{Builder, Uuid};

use super::{Error, Who};

/// Id of one claim, never of the client. Every acquisition draws a new id from the operating
/// system's random numbers, so that neither a stale guard nor a forked child can be taken for the
/// holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId([u8; 16]);

impl ClaimId {
    /// Draws a new id.
    ///
    /// # Panics
    /// If the operating system cannot supply random numbers. Every supported system can, once it
    /// has started.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        // The bytes come directly from the operating system. `fork` would copy the state of a
        // generator in this process, and parent and child would draw the same ids. The `uuid` crate
        // uses such a generator if any crate of the program enables its feature `fast-rng`.
        getrandom::fill(&mut bytes).expect("the operating system gives random numbers");
        Self(Builder::from_random_bytes(bytes).into_uuid().into_bytes())
    }

    /// Draws a new id that begins with the [key](Who::key) of `who`, so that a store can look up
    /// the label of the claim. 82 bits of the id are random.
    ///
    /// # Panics
    /// As [`random`](Self::random).
    pub fn random_for(who: &Who) -> Self {
        let mut id = Self::random();
        id.0[..Who::KEY_LEN].copy_from_slice(&who.key());
        id
    }

    /// Returns the [key](Who::key) of the claim's label, provided that dlock made the id.
    pub fn who_key(&self) -> [u8; Who::KEY_LEN] {
        std::array::from_fn(|at| self.0[at])
    }

    /// Returns the 16 bytes of the id, for binary protocols.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Length of the prefix that the texts of the ids of a RedLock claim and of its claims on all
    /// members share. No other claim has the same prefix.
    pub(crate) const COMMON_CHARS: usize = 30;

    /// Returns whether this is the claim that a store reports with the text `id`, or one of its
    /// claims on the members of a RedLock.
    pub fn is_reported_as(&self, id: &str) -> bool {
        id.get(..Self::COMMON_CHARS).is_some_and(|common| self.to_string().starts_with(common))
    }

    /// Restores an id from its bytes, as read from a store.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for ClaimId {
    /// Writes the id in the form of a UUID, 36 characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_bytes(self.0).fmt(f)
    }
}

/// Parses the text that [`Display`](fmt::Display) writes.
impl FromStr for ClaimId {
    type Err = Error;

    /// # Errors
    /// [`Error::InvalidOptions`] for a text that is not a UUID.
    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |_| Error::InvalidOptions { reason: "the id of a claim must be a UUID".to_owned() };
        Ok(Self(text.parse::<Uuid>().map_err(invalid)?.into_bytes()))
    }
}

/// A fencing token: greater than every token granted before for the same name.
///
/// Send it with each request to the resource that the lock protects. The resource must reject a
/// token that is smaller than one that it has seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(NonZeroU64);

impl Token {
    /// Creates a token with this value. Returns `None` for zero, which no store grants.
    pub fn new(value: u64) -> Option<Self> {
        NonZeroU64::new(value).map(Self)
    }

    /// Returns the value, for a query or a header.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.get()
    }
}

/// For a database whose largest integer type is signed. The conversion fails only for tokens above
/// `i64::MAX`, which no store has granted. Tokens that follow a clock reach that value in some
/// 290,000 years.
impl TryFrom<Token> for i64 {
    type Error = TryFromIntError;

    fn try_from(token: Token) -> Result<Self, TryFromIntError> {
        token.get().try_into()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_displayed_as_its_number() {
        assert_eq!(Token::new(4711).map(|token| token.to_string()), Some("4711".to_owned()));
        assert_eq!(Token::new(0), None, "no store grants zero");
    }

    #[test]
    fn a_token_converts_to_a_database_integer() {
        let token = Token::new(4711).expect("not zero");
        assert_eq!((u64::from(token), i64::try_from(token)), (4711, Ok(4711)));
        let greatest = Token::new(u64::MAX).expect("not zero");
        i64::try_from(greatest).expect_err("above `i64::MAX`");
    }

    #[test]
    fn every_id_is_new_and_reads_back_from_its_bytes() {
        let (id, other) = (ClaimId::random(), ClaimId::random());
        assert_ne!(id, other);
        assert_eq!(ClaimId::from_bytes(*id.as_bytes()), id);
        assert_eq!(id.to_string().len(), 36);
        assert_eq!(id.to_string().parse::<ClaimId>().expect("its own text"), id);
        "4711".parse::<ClaimId>().expect_err("too short");
    }
}
