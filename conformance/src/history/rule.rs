//! The rules that a history must keep, and counts of what happened in it.

use std::fmt;

/// How much happened in a history. A history in which little happened proves little.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Acquisitions that were granted.
    pub grants: usize,
    /// Grants to a reader while another reader held the same lock.
    pub shared_reads: usize,
    /// Grants of a permit while another permit of the same lock was held.
    pub shared_permits: usize,
    /// Holds that were reported lost.
    pub losses: usize,
    /// Writes that were accepted.
    pub accepted_writes: usize,
    /// Writes that were refused: their tokens were stale.
    pub refused_writes: usize,
}

/// One thing that happened although it must not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// What it violates.
    pub rule: Rule,
    /// Who, when, and how.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}

/// What a history must keep.
///
/// A guard *claims* its lock from its grant until it is released, is lost, or would be without another renewal,
/// whichever is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Rule {
    /// Two claims of one lock overlap in time only if both read, or if both are permits.
    Exclusive,
    /// Never more permits of one lock are claimed at the same time than the smallest limit that one of the claimants named.
    Limit,
    /// A resource that refuses stale tokens loses no update, and refuses no guard that claims the lock.
    Fence,
    /// Tokens of one lock are distinct and grow: a request that begins after a grant gets a greater token, and so does each
    /// later claim.
    TokenOrder,
    /// A guard whose lock was taken by force is told of its loss within a ttl.
    Told,
    /// A lost guard stays lost.
    LostForGood,
    /// No guard is lost before its promised time, unless its lock was taken by force. No guard is lost after its release
    /// was confirmed.
    FalseAlarm,
    /// An owner that holds a lock gets the same hold again.
    Reentry,
    /// Nothing is left when everybody has gone: no claim in the store, no keeper.
    Residue,
    /// Every wait ends.
    Progress,
    /// Readers held at the same time. Otherwise the run did not test that they share.
    SharedReads,
    /// Enough happened.
    Potency,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "claims that exclude each other met",
            Self::Limit => "too many permits",
            Self::Fence => "the fence failed",
            Self::TokenOrder => "tokens are out of order",
            Self::Told => "a loss was not told",
            Self::LostForGood => "a lost guard holds again",
            Self::FalseAlarm => "false alarm",
            Self::Reentry => "a re-entry failed",
            Self::Residue => "something is left behind",
            Self::Progress => "somebody waits for ever",
            Self::SharedReads => "too few shared reads",
            Self::Potency => "too little happened",
        })
    }
}
