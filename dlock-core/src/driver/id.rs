//! The id of a claim, and its fencing token.

use std::{
    fmt,
    num::{NonZeroU64, TryFromIntError},
    str::FromStr,
};

use uuid::{Builder, Uuid};

use super::{Error, Who};

/// Names one claim, never the client: every acquisition draws a new one from the operating system's random
/// source, so that neither a stale guard nor a forked child can be taken for the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId([u8; 16]);

impl ClaimId {
    /// Draws a fresh id.
    ///
    /// # Panics
    /// If the operating system has no random numbers to give. No supported system lacks them once it has started.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        // The operating system is asked directly: a generator in this process would be copied by `fork`, and parent and
        // child would draw the same ids. The `uuid` crate uses such a generator if any crate of the program switches its
        // feature `fast-rng` on.
        getrandom::fill(&mut bytes).expect("the operating system gives random numbers");
        Self(Builder::from_random_bytes(bytes).into_uuid().into_bytes())
    }

    /// Draws a fresh id that begins with the key of `who`, so that a store can look up who has the claim. 82 bits of it are
    /// random.
    ///
    /// # Panics
    /// As [`random`](Self::random).
    pub fn of(who: &Who) -> Self {
        let mut id = Self::random();
        id.0[..Who::KEY].copy_from_slice(&who.key());
        id
    }

    /// The [key](Who::key) of whoever has the claim, if it was made by dlock.
    pub fn key(&self) -> [u8; Who::KEY] {
        std::array::from_fn(|at| self.0[at])
    }

    /// The id as it travels in binary protocols.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// An id read back from a store.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for ClaimId {
    /// The id in the shape of a UUID, 36 characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_bytes(self.0).fmt(f)
    }
}

/// Reads the text of an id, as [`Display`](fmt::Display) writes it.
impl FromStr for ClaimId {
    type Err = Error;

    /// # Errors
    /// [`Error::InvalidOptions`] for a text that is not a UUID.
    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid =
            |_| Error::InvalidOptions { reason: "not the id of a claim, which is a UUID".to_owned() };
        Ok(Self(text.parse::<Uuid>().map_err(invalid)?.into_bytes()))
    }
}

/// A fencing token: greater than every token granted before for the same name.
///
/// Send it with each request to what the lock protects. That must refuse a token that is smaller than one it has seen
/// before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(NonZeroU64);

impl Token {
    /// A token of this value; `None` for zero, which no store grants.
    pub fn new(value: u64) -> Option<Self> {
        NonZeroU64::new(value).map(Self)
    }

    /// The value, to put into a query or a header.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.get()
    }
}

/// For a database whose largest integer has a sign. No store has granted a token so great: those that grow with a clock reach
/// it in some 290,000 years.
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
mod tests {
    use super::*;

    #[test]
    fn a_token_is_shown_as_the_number_that_it_is() {
        assert_eq!(Token::new(4711).map(|token| token.to_string()), Some("4711".to_owned()));
        assert_eq!(Token::new(0), None, "no store grants zero");
    }

    #[test]
    fn a_token_is_a_number_for_a_database() {
        let token = Token::new(4711).expect("not zero");
        assert_eq!((u64::from(token), i64::try_from(token)), (4711, Ok(4711)));
        let greatest = Token::new(u64::MAX).expect("not zero");
        i64::try_from(greatest).expect_err("has no room in it");
    }

    #[test]
    fn every_id_is_new_and_reads_back_from_its_bytes() {
        let (one, other) = (ClaimId::random(), ClaimId::random());
        assert_ne!(one, other);
        assert_eq!(ClaimId::from_bytes(*one.as_bytes()), one);
        assert_eq!(one.to_string().len(), 36);
        assert_eq!(one.to_string().parse::<ClaimId>().expect("its own text"), one);
        "4711".parse::<ClaimId>().expect_err("too short");
    }
}
