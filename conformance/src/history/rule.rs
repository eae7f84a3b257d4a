//! What a history must keep, and how much of it there is.

use std::fmt;

/// How much happened in a history: what it shows is worth no more than this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Acquisitions that were granted.
    pub grants: usize,
    /// Grants to a reader while another reader held the same lock.
    pub shared_reads: usize,
    /// Holds that were reported lost.
    pub losses: usize,
    /// Writes that were accepted.
    pub accepted_writes: usize,
    /// Writes that were refused: their tokens were stale.
    pub refused_writes: usize,
}

/// One thing that must not happen, and did.
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
    /// Two claims of one lock meet only if both read.
    Exclusive,
    /// What accepts only tokens that are not stale sees no lost update, and refuses nobody who claims the lock.
    Fence,
    /// Tokens of one lock are distinct, and grow: from a grant to what is asked for after it, and from claim to claim.
    TokenOrder,
    /// Who was robbed is told when a ttl is over, at the latest.
    Told,
    /// What is lost stays lost.
    LostForGood,
    /// Nothing is lost earlier than promised, unless it was taken by force, nor after its release was confirmed.
    FalseAlarm,
    /// An owner that holds a lock gets the same hold again.
    Reentry,
    /// Nothing is left when everybody has gone: no claim in the store, no keeper.
    Residue,
    /// Everybody's wait ends.
    Progress,
    /// Readers did hold at once; else their sharing was not tested.
    SharedReads,
    /// Enough happened.
    Potency,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "claims that exclude each other met",
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
