//! The rules that a history must obey, and counts of its events.

use std::fmt;

use super::AcquisitionId;

/// Numbers of events in a history. A history with few events proves little.
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
    /// Writes that were refused because their tokens were stale.
    pub refused_writes: usize,
}

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The violated rule.
    pub rule: Rule,
    /// The acquisitions and times that violate the rule.
    pub what: String,
    /// The acquisitions that violate the rule together. Empty if the violation was found by other
    /// means than the record.
    pub acquisitions: Vec<AcquisitionId>,
}

impl Violation {
    pub(crate) fn new(rule: Rule, what: impl Into<String>, acquisitions: Vec<AcquisitionId>) -> Self {
        Self { rule, what: what.into(), acquisitions }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}

/// A rule that every history must obey.
///
/// A guard *claims* its lock from its grant until it is released, is lost, or reaches its deadline
/// without another renewal, whichever is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Rule {
    /// Two claims of one lock overlap in time only if both are reads, or if both are permits.
    Exclusive,
    /// The number of permits of one lock that are claimed at the same time never exceeds the
    /// smallest limit of their requests.
    Limit,
    /// A resource that refuses stale tokens loses no update, and refuses no guard that claims the
    /// lock.
    Fence,
    /// Tokens of one lock are distinct and grow. A request that begins after a grant gets a greater
    /// token, and so does each later claim.
    TokenOrder,
    /// A waiter is not overtaken by a claim that entered the queue later, in a queue that is in order
    /// of arrival.
    Order,
    /// The loss of a lock that was force-released is reported to its guard within a ttl.
    LossReported,
    /// A lost guard stays lost.
    LostForGood,
    /// No guard is lost before its promised time, unless its lock was force-released. No guard is
    /// lost after its release was confirmed.
    FalseAlarm,
    /// An owner that holds a lock re-enters the same hold.
    Reentry,
    /// When all contenders have ended, no claim is left in the store and no keeper is running.
    Residue,
    /// Every wait ends.
    Progress,
    /// The store refuses no valid request for good.
    Refusal,
    /// Several readers held at the same time. Otherwise the run did not test shared reads.
    SharedReads,
    /// Enough events happened to test something.
    Potency,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "claims that exclude each other overlap",
            Self::Limit => "more permits than the limit",
            Self::Fence => "a stale token was accepted, or a current one refused",
            Self::TokenOrder => "tokens are out of order",
            Self::Order => "a waiter was overtaken",
            Self::LossReported => "a loss was not reported",
            Self::LostForGood => "a lost guard claims its lock again",
            Self::FalseAlarm => "a loss was reported without a cause",
            Self::Reentry => "a re-entry failed",
            Self::Residue => "a claim or a task is left behind",
            Self::Progress => "a wait does not end",
            Self::Refusal => "a request was refused for good",
            Self::SharedReads => "too few shared reads",
            Self::Potency => "too few events",
        })
    }
}
