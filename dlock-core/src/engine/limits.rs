//! The deadline of the guards of a hold, and the time until which the store keeps its claim.

use std::time::Duration;

use super::Terms;
use crate::{contract::Grant, kit::Moment};

/// The times of a request that the store has granted.
#[derive(Clone, Copy)]
pub(super) struct GrantTimes {
    pub(super) sent: Moment,
    /// Time at which the reply had arrived.
    pub(super) arrived: Moment,
}

impl GrantTimes {
    /// Returns the times of a request that was sent at `sent`, and whose reply has just arrived.
    pub(super) fn since(sent: Moment) -> Self {
        Self { sent, arrived: Moment::now() }
    }
}

/// The time limits of a hold.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// End of its lease or of its `max_hold`. Renewals do not extend the hold beyond this time.
    end: Option<Moment>,
    /// Time from the deadline to `kept_until`.
    margin: Duration,
    deadline: Moment,
    kept_until: Moment,
    covers_end: bool,
}

impl Limits {
    /// Returns the limits of a hold whose grant was requested at `sent`.
    pub(super) fn new(terms: &Terms, grant: &Grant, sent: Moment) -> Self {
        let kept_until = sent.after(grant.valid_for);
        let mut limits = Self {
            end: terms.longest.map(|longest| sent.after(longest)),
            margin: terms.margin,
            deadline: kept_until,
            kept_until,
            covers_end: false,
        };
        limits.extend(kept_until);
        limits
    }

    /// Returns the deadline of the guards, which are lost when it passes.
    pub(super) fn deadline(&self) -> Moment {
        self.deadline
    }

    /// Returns the time until which the store keeps the claim without a renewal, or the end of the
    /// hold if that is earlier. The deadline is earlier than this time by the margin. Before this
    /// time no other client can be granted the lock, unless the claim is released.
    pub(super) fn kept_until(&self) -> Moment {
        self.kept_until
    }

    /// Returns whether the last renewal reaches beyond the hold's end, so that no further renewal
    /// is needed.
    pub(super) fn covers_end(&self) -> bool {
        self.covers_end
    }

    /// Returns whether the options set a margin.
    pub(super) fn has_margin(&self) -> bool {
        !self.margin.is_zero()
    }

    /// Records that the store keeps the claim until `kept_until`, and moves the deadline
    /// accordingly.
    pub(super) fn extend(&mut self, kept_until: Moment) {
        self.kept_until = self.end.map_or(kept_until, |end| end.min(kept_until));
        self.deadline = self.kept_until.before(self.margin);
        self.covers_end = self.end.is_some_and(|end| end.since(kept_until).is_zero());
    }

    /// Ends the hold at `end` if that is earlier than its deadline. There is no margin before this
    /// end, because the guard is about to hand the lock over.
    pub(super) fn shorten(&mut self, end: Moment) {
        let deadline = self.deadline.min(end);
        self.extend(self.kept_until.min(end));
        self.deadline = deadline;
    }
}
