//! The hold of a RedLock claim on one member, as the member's replies report it. All code that
//! changes this state is in this file.
//!
//! `claim.rs` explains the terms *vote*, *joined* and *disowned*.

use std::time::Duration;

use tokio::time::Instant;

use super::call::Reply;
use crate::kit::Moment;

/// The state of the hold on one member.
#[derive(Default)]
pub(super) struct MemberHold {
    /// End of the member's hold according to its last successful reply, counted from before the
    /// request. `None` as soon as a release is requested, even if the member still holds.
    held_until: Option<Moment>,
    /// Whether the RedLock's hold is based on this member.
    has_vote: bool,
    /// Arrival time of the reply that granted, or that first renewed after the member's vote had
    /// expired. The member has held without a gap from then until `confirmed_request_sent`.
    granted_at: Option<Instant>,
    /// Send time of the last renewal or detachment that the member has confirmed.
    confirmed_request_sent: Option<Instant>,
    /// Whether the member has renewed in the current round.
    renewed_in_round: bool,
    /// The denial of a member that counted, until the claim reads it with
    /// [`take_disowned`](Self::take_disowned) or [`take_expired_vote`](Self::take_expired_vote).
    denial: Option<Denial>,
    /// Whether the member has confirmed a detachment. `false` again once a renewal is confirmed or
    /// a release is requested.
    is_detached: bool,
}

/// The reply of a member that counted, and that does not hold.
struct Denial {
    /// End of the time that the member had granted.
    until: Moment,
    had_vote: bool,
}

impl MemberHold {
    /// Returns whether the member holds, according to its last reply. The granted time may have
    /// expired since.
    pub(super) fn is_held(&self) -> bool {
        self.held_until.is_some()
    }

    /// Returns whether the granted time has expired.
    pub(super) fn has_expired(&self) -> bool {
        self.held_until.is_some_and(|until| until.remaining().is_zero())
    }

    /// Returns the end of the member's hold if the member has a vote or has joined. A joined member
    /// may replace a silent one.
    pub(super) fn countable_until(&self) -> Option<Moment> {
        self.held_until.filter(|_| self.has_vote || self.joined_at().is_some())
    }

    /// Returns the end of the member's hold if the member has a vote.
    pub(super) fn vote_until(&self) -> Option<Moment> {
        self.held_until.filter(|_| self.has_vote)
    }

    /// Sets the member's vote when the claim decides anew which members its hold is based on. A
    /// member that holds gets a vote, and a member that does not hold loses its vote.
    pub(super) fn update_vote(&mut self) {
        self.has_vote = self.is_held();
    }

    /// Returns the send time of the last renewal or detachment that the member has confirmed, if it
    /// has a vote. The member held until that time, even if a later reply denies the hold.
    pub(super) fn vote_confirmed_at(&self) -> Option<Instant> {
        self.confirmed_request_sent.filter(|_| self.has_vote)
    }

    /// Returns the start of the member's hold if the member has joined. It has then granted, and
    /// has confirmed a renewal or detachment after that.
    pub(super) fn joined_at(&self) -> Option<Instant> {
        self.granted_at.filter(|_| self.confirmed_request_sent.is_some())
    }

    /// Returns whether the member is a newcomer that has confirmed no request since its grant.
    pub(super) fn is_newly_granted(&self) -> bool {
        self.is_held() && !self.has_vote && self.confirmed_request_sent.is_none()
    }

    /// Returns whether the RedLock's hold is based on this member, and the member has confirmed the
    /// detachment of its part.
    pub(super) fn keeps_detached(&self) -> bool {
        self.vote_until().is_some() && self.is_detached
    }

    /// Returns whether the member has renewed in the current round.
    pub(super) fn is_renewed_in_round(&self) -> bool {
        self.renewed_in_round
    }

    /// Returns whether the member has disowned the hold since the last call. `false` if the granted
    /// time may have expired by the member's clock. The member was then right to forget the claim,
    /// and counts as a silent member whose time has expired.
    pub(super) fn take_disowned(&mut self, drift: Duration) -> bool {
        let is_early = self.denial.as_ref().is_some_and(|denial| denial.until.remaining() > drift);
        if is_early {
            self.denial = None;
        }
        is_early
    }

    /// Removes the member's vote if the granted time has expired. Returns the time of the expiry.
    pub(super) fn take_expired_vote(&mut self, drift: Duration) -> Option<Instant> {
        let expired = self.vote_until().filter(|until| until.remaining() <= drift);
        if expired.is_some() {
            // A later grant is a new hold, which must join like any newcomer.
            self.clear();
        }
        let denied = self.denial.take().filter(|denial| denial.had_vote).map(|denial| denial.until);
        expired.or(denied).map(Moment::instant)
    }

    /// Begins a new round, in which the member has not renewed yet.
    pub(super) fn begin_round(&mut self) {
        self.renewed_in_round = false;
    }

    /// Ends the hold at `end` if that is earlier than its end so far.
    pub(super) fn shorten(&mut self, end: Moment) {
        self.held_until = self.held_until.map(|held| held.min(end));
    }

    /// Forgets the hold and its vote. A denial stays until the claim has read it.
    pub(super) fn clear(&mut self) {
        (self.held_until, self.has_vote, self.is_detached) = (None, false, false);
        (self.granted_at, self.confirmed_request_sent, self.renewed_in_round) = (None, None, false);
    }

    /// Updates the state with a reply of the member.
    pub(super) fn record(&mut self, reply: &Reply) {
        let counted = self.countable_until().map(|until| Denial { until, had_vote: self.has_vote });
        match *reply {
            Reply::Granted { at, until } => {
                self.held_until = Some(until);
                self.granted_at.get_or_insert(at);
            }
            Reply::Renewed { sent, until } | Reply::Resumed { sent, until, .. } => {
                self.is_detached = false;
                (self.held_until, self.renewed_in_round) = (Some(until), true);
                if self.granted_at.is_some() {
                    self.confirmed_request_sent = Some(sent.instant());
                } else {
                    // The reply arrived after the granted time, when the member had no vote any
                    // more. The member is a newcomer.
                    self.granted_at = Some(Instant::now());
                }
            }
            Reply::Busy(_) | Reply::Lost | Reply::Released(_) => self.clear(),
            Reply::Detached { sent } => {
                self.is_detached = true;
                self.confirmed_request_sent = self.granted_at.and(Some(sent.instant()));
            }
            Reply::Unknown(_) => {}
        }
        if self.countable_until().is_none() {
            self.denial = counted.or(self.denial.take());
        }
    }
}
