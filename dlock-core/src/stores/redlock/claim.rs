//! A claim on a majority: rounds of requests to all members.
//!
//! - **Vote.** The hold is based on the members with a vote. At the grant every member that holds
//!   gets a vote.
//! - **Quorum.** The number of members that is a majority of all members, whether they have a vote
//!   or not.
//! - **Newcomer.** A member that has granted after the grant of the majority. It has no vote yet.
//! - **Joined.** A newcomer that has also confirmed a renewal or a detachment. It is therefore
//!   known to have held without a gap from its grant until that request was sent.
//! - **Disowned.** A member with a vote, or a joined newcomer, has replied that it does not hold
//!   for this claim, although the time that it had granted has not expired. The cause is a forced
//!   release or lost data. Another claim may have held the lock on that member.
//! - **Silent.** A member that does not reply. Whether it holds is unknown.
//!
//! Newcomers have no vote at first for this reason. Suppose that a hold was broken on most members,
//! and another claim then held the lock. If newcomers counted at once, the old hold could regain a
//! majority, member by member.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use async_trait::async_trait;
use futures_util::future::select_all;
use tokio::time::{Instant, timeout_at};

use super::{
    RedLock,
    call::{Operation, Reply},
    hold::MemberHold,
    member::MemberClaims,
    tally::Tally,
};
use crate::{
    contract::{Attempt, Claim, Grant, Release, Renewal, Request, Resumption},
    kit::Moment,
    model::{ClaimId, Error, Result, Wait, duration},
};

/// Time after which a contender that holds some members, but no majority, releases them.
///
/// The time doubles with each release up to [`MAX_SPLIT_TIME`], because a release does not help
/// while another claim holds the majority. The maximum is short, because contenders may need ten or
/// more rounds until one of them gets a majority that has become free. The load on the members
/// stays small. While another claim holds a majority, only contenders that hold one of the
/// remaining members send attempts at this rate, and those contenders are fewer than half the
/// number of members.
const FIRST_SPLIT_TIME: Duration = Duration::from_millis(20);
const MAX_SPLIT_TIME: Duration = Duration::from_millis(100);

/// Bounds of the default timeout of one member. With a shorter timeout, a busy member would count
/// as down. With a longer one, all callers would wait too long for a member that is down.
const MIN_MEMBER_TIMEOUT: Duration = Duration::from_millis(50);
pub(super) const MAX_MEMBER_TIMEOUT: Duration = Duration::from_secs(2);

/// Time that a release waits for the other members once a majority has confirmed it: a multiple of
/// the time that the majority took, and at least this minimum. Members that are up reply in this
/// time, and a member that is down delays no caller for longer.
const RELEASE_GRACE_FACTOR: u32 = 4;
const MIN_RELEASE_GRACE: Duration = Duration::from_millis(100);

pub(super) struct RedLockClaim {
    members: Vec<MemberClaims>,
    quorum: usize,
    request: Request,
    /// Maximum time that a round waits for the reply of one member.
    member_timeout: Duration,
    /// Time after which the claim releases its members if they are no majority.
    split_time: Duration,
    /// Time since which some members hold for this claim, but no majority.
    split_since: Option<Instant>,
    /// Time of the last reply in which a member that counts disowned the hold. `None` once a quorum
    /// of members with a vote has confirmed the hold by renewals that were sent after that reply.
    /// An earlier renewal proves nothing about the time after it.
    disowned: Option<Instant>,
    /// Whether the claim takes over a detached hold, and no majority has confirmed that yet.
    resumes: bool,
}

impl RedLockClaim {
    pub(super) fn new(lock: &RedLock, request: Request) -> Self {
        // Tokens of different members cannot be compared, so they have no use.
        let request = request.without_token();
        let members = lock.members.iter().enumerate().map(|(index, store)| {
            MemberClaims::new(
                index,
                Arc::clone(&store.backend),
                request.clone(),
                lock.unanswered_releases.clone(),
            )
        });
        let mut members: Vec<_> = members.collect();
        let resumes = request.locator.is_some();
        let locators: Vec<_> = request.locator.iter().flat_map(|locator| locator.split('.')).collect();
        // With the locator of another RedLock, no member finds its claim, and the hold is lost.
        if locators.len() == members.len() {
            members.iter_mut().zip(locators).for_each(|(member, locator)| member.claim_from_locator(locator));
        }
        let member_timeout =
            lock.member_timeout.unwrap_or((request.ttl / 10).clamp(MIN_MEMBER_TIMEOUT, MAX_MEMBER_TIMEOUT));
        Self {
            members,
            quorum: lock.quorum(),
            request,
            member_timeout,
            split_time: FIRST_SPLIT_TIME,
            split_since: None,
            disowned: None,
            resumes,
        }
    }

    /// Returns the state of the hold on each member.
    fn holds(&self) -> impl Iterator<Item = &MemberHold> {
        self.members.iter().map(|member| &member.hold)
    }

    /// Returns the number of members that may fail.
    fn tolerated_failures(&self) -> usize {
        self.members.len() - self.quorum
    }

    /// Sends each member its `operation`, if it has one. Returns when the replies are `enough`,
    /// when all members have replied, or after `member_timeout`. The calls without a reply by then
    /// continue in the background.
    async fn round(
        &mut self,
        operation: impl Fn(&MemberClaims) -> Option<Operation> + Send,
        enough: impl Fn(&Tally) -> bool + Send + Sync,
    ) -> Tally {
        self.round_within(self.member_timeout, operation, enough).await
    }

    /// Does the same as [`round`](Self::round), with another timeout.
    async fn round_within(
        &mut self,
        timeout: Duration,
        operation: impl Fn(&MemberClaims) -> Option<Operation> + Send,
        enough: impl Fn(&Tally) -> bool + Send + Sync,
    ) -> Tally {
        let end = Moment::now().after(timeout).instant();
        let (drift, resumes) = (self.drift(), self.resumes);
        let mut tally = Tally::default();
        let mut pending: Vec<&mut MemberClaims> = Vec::with_capacity(self.members.len());
        for member in &mut self.members {
            if let Some(operation) = operation(member) {
                member.send(operation);
                if member.is_in_flight() {
                    pending.push(member);
                }
            }
        }
        let disowned = &mut self.disowned;
        let replies = poll_fn(|context| {
            pending.retain_mut(|member| {
                let Poll::Ready(reply) = member.poll_reply(context) else { return true };
                if member.hold.take_disowned(drift) {
                    *disowned = Some(Instant::now());
                }
                let has_vote = member.hold.vote_until().is_some();
                let counts = has_vote || resumes;
                tally.confirmed +=
                    usize::from(has_vote && matches!(reply, Reply::Renewed { .. } | Reply::Resumed { .. }));
                tally.detached += usize::from(counts && matches!(reply, Reply::Detached { .. }));
                tally.count(reply);
                false
            });
            if pending.is_empty() || enough(&tally) { Poll::Ready(()) } else { Poll::Pending }
        });
        let is_late = timeout_at(end, replies).await.is_err();
        for member in pending {
            member.finish_in_background();
            if is_late {
                tally.count(Reply::Unknown(no_reply(member.identity(), timeout)));
            }
        }
        tally
    }

    /// Returns the time for which a majority holds, counted from `start`. `held_until` returns the
    /// end of a member's hold, or `None` for a member that does not count. Returns `None` if there
    /// is no such majority, or if its time has expired.
    fn validity(&self, start: Moment, held_until: fn(&MemberHold) -> Option<Moment>) -> Option<Duration> {
        let votes = self.holds().filter_map(held_until);
        let mut valid_for: Vec<_> = votes.map(|until| until.since(start)).collect();
        valid_for.sort_unstable_by(|a, b| b.cmp(a));
        let majority = valid_for.get(self.quorum - 1)?;
        Some(majority.saturating_sub(self.drift())).filter(|validity| *validity > start.elapsed())
    }

    /// Returns the maximum difference between the clocks of the members after a ttl.
    fn drift(&self) -> Duration {
        self.request.ttl / 100 + Duration::from_millis(2)
    }

    /// Removes the vote of each silent member whose granted time has expired. In their place, gives
    /// a vote to each joined newcomer that held before that expiry. Gives no vote while the hold is
    /// disowned.
    fn replace_expired_votes(&mut self) {
        let drift = self.drift();
        let expiry = self.members.iter_mut().filter_map(|member| member.hold.take_expired_vote(drift)).min();
        let Some(expiry) = expiry.filter(|_| self.disowned.is_none()) else { return };
        let newcomers = self
            .members
            .iter_mut()
            .filter(|member| member.hold.joined_at().is_some_and(|since| since <= expiry));
        newcomers.for_each(|member| member.hold.update_vote());
    }

    /// Releases on every member. Returns when all have replied, soon after a majority has confirmed
    /// the release, or after `member_timeout`. Releases without a reply continue in the background,
    /// because an earlier call may still reach its member and create an entry there.
    ///
    /// Returns `Gone` if the members without a claim leave too few others for a majority.
    ///
    /// # Errors
    /// So many members did not confirm the release that the others are no majority.
    async fn release_all(&mut self) -> Result<Release> {
        let with_entry = self.members.iter().filter(|member| member.may_have_entry()).count();
        let needed = with_entry.saturating_sub(self.tolerated_failures());
        let operation = |member: &MemberClaims| member.may_have_entry().then_some(Operation::Release);
        let start = Instant::now();
        let mut tally = self.round(operation, |tally| tally.released >= needed).await;
        if tally.released >= needed && tally.released + tally.unknown < with_entry {
            let grace = (start.elapsed() * RELEASE_GRACE_FACTOR).max(MIN_RELEASE_GRACE);
            let rest = |member: &MemberClaims| member.is_in_flight().then_some(Operation::Release);
            let rest = self.round_within(grace.min(self.member_timeout), rest, |_| false).await;
            tally.released += rest.released;
            tally.without_claim += rest.without_claim;
        }
        self.members.iter_mut().for_each(MemberClaims::release_in_background);
        if with_entry == 0 {
            return Ok(Release::Gone);
        }
        if tally.released < needed {
            return Err(self.no_majority(tally));
        }
        Ok(if tally.without_claim > self.tolerated_failures() { Release::Gone } else { Release::Done })
    }

    /// Gives votes to joined newcomers. The condition is that a quorum of members with a vote has
    /// confirmed renewals that were sent after the newcomer's grant. This proves that the hold had
    /// a majority without the newcomer when it joined. A renewal that was sent earlier proves
    /// nothing about that time, even if its reply arrived later.
    fn admit_newcomers(&mut self) {
        let renewed: Vec<_> = self.holds().filter_map(MemberHold::vote_confirmed_at).collect();
        let had_majority = |since| renewed.iter().filter(|renewed| **renewed >= since).count() >= self.quorum;
        let joined =
            self.members.iter_mut().filter(|member| member.hold.joined_at().is_some_and(had_majority));
        joined.for_each(|member| member.hold.update_vote());
    }

    /// Reads the replies that arrived after their round, so that this round can send those members
    /// another request.
    fn take_late_replies(&mut self) {
        let drift = self.drift();
        for member in &mut self.members {
            member.take_late_reply();
            if member.hold.take_disowned(drift) {
                self.disowned = Some(Instant::now());
            }
        }
        self.admit_newcomers();
    }

    /// Releases the members that hold for this claim if they have been no majority for
    /// `split_time`. Returns whether it released them. Without this, several contenders that each
    /// hold some members would wait for each other forever.
    fn yield_if_split(&mut self) -> bool {
        let holds_some = self.holds().any(MemberHold::is_held);
        let Some(since) = self.split_since.filter(|_| holds_some) else {
            self.split_since = holds_some.then(Instant::now);
            return false;
        };
        if since.elapsed() < self.split_time {
            return false;
        }
        self.split_since = None;
        self.split_time = (self.split_time * 2).min(MAX_SPLIT_TIME).min(self.request.ttl / 3);
        let holding = self.members.iter_mut().filter(|member| member.hold.is_held());
        holding.for_each(MemberClaims::release_in_background);
        true
    }

    /// Returns the error of a round with too few replies. The error is permanent if the members
    /// with a permanent error leave too few others for a majority.
    fn no_majority(&self, tally: Tally) -> Error {
        let source = match tally.permanent_error {
            Some(error) if tally.permanent > self.tolerated_failures() => return error,
            permanent_error => tally.transient_error.or(permanent_error),
        };
        let source = match source {
            Some(error) => {
                let cause = std::error::Error::source(&error)
                    .map_or(error.to_string(), |source| format!("{error}: {source}"));
                format!(
                    "{} of {} members did not answer; the first: {cause}",
                    tally.unknown,
                    self.members.len()
                )
            }
            None => "no majority replied".to_owned(),
        };
        Error::Unavailable { store: "redlock", source: source.into() }
    }
}

fn no_reply(member: &str, timeout: Duration) -> Error {
    Error::Unavailable {
        store: "redlock",
        source: format!("{member}: no reply within {}", duration::text(timeout)).into(),
    }
}

#[async_trait]
impl Claim for RedLockClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let start = Moment::now();
        let (quorum, tolerated) = (self.quorum, self.tolerated_failures());
        let is_single_try = self.request.wait == Wait::Never;
        // A member whose granted time has expired gets a new claim at once. A renewal would only
        // show that the member has forgotten the old one.
        self.members
            .iter_mut()
            .filter(|member| member.hold.has_expired())
            .for_each(MemberClaims::release_in_background);
        let enough = |tally: &Tally| tally.held >= quorum || (is_single_try && tally.refused > tolerated);
        let tally = self.round(|member| Some(member.next_operation()), enough).await;
        self.members.iter_mut().for_each(|member| member.hold.update_vote());
        if let Some(valid_for) = self.validity(start, MemberHold::vote_until) {
            (self.split_since, self.disowned) = (None, None);
            return Ok(Attempt::Granted(Grant { token: None, valid_for }));
        }
        if tally.held >= quorum {
            // The members reply too slowly for this ttl. Waiting does not help, because no other
            // claim holds the lock.
            let late = format!(
                "a majority granted, but only after a ttl of {} had passed",
                duration::text(self.request.ttl)
            );
            return Err(Error::Unavailable { store: "redlock", source: late.into() });
        }
        if is_single_try || tally.unknown > tolerated {
            // After a single try, or an attempt that could not reach a majority, the members must
            // have no entry of the claim.
            let released = self.release_all().await;
            return match tally.unknown > tolerated {
                true => Err(self.no_majority(tally)),
                false => released.map(|_| Attempt::Busy { retry_in: self.split_time }),
            };
        }
        let has_yielded = self.yield_if_split();
        let random_pause = self.split_time.mul_f64(0.5 + fastrand::f64());
        let retry_in = match (has_yielded || self.split_since.is_some(), tally.retry_in) {
            (false, Some(retry_in)) => retry_in,
            (true, Some(retry_in)) => retry_in.min(random_pause),
            (_, None) => random_pause,
        };
        Ok(Attempt::Busy { retry_in })
    }

    /// Renews on the members that hold, and sends the others a new attempt. The top of this file
    /// explains the terms.
    ///
    /// - While no member has disowned the hold, the result is `Renewed` if any majority
    ///   renewed. Newcomers count here in the place of silent members, which may still hold. When
    ///   the time that a silent member had granted expires, newcomers get its vote.
    /// - Once a member has disowned the hold, the result is `Renewed` only if a quorum
    ///   of members with a vote renewed, because only members with a vote have held without a gap.
    /// - The result is `Lost` if fewer than a quorum of members have a vote.
    async fn renew(&mut self) -> Result<Renewal> {
        let start = Moment::now();
        let (quorum, tolerated) = (self.quorum, self.tolerated_failures());
        self.take_late_replies();
        if self.holds().all(|hold| hold.vote_until().is_none()) {
            return Ok(Renewal::Lost);
        }
        let enough = |tally: &Tally| tally.confirmed >= quorum || tally.refused > tolerated;
        let tally = self.round(|member| Some(member.next_operation()), enough).await;
        self.replace_expired_votes();
        let votes = || self.holds().filter(|hold| hold.vote_until().is_some());
        let is_confirmed = votes().filter(|hold| hold.is_renewed_in_round()).count() >= quorum;
        if votes().count() < quorum {
            return Ok(Renewal::Lost);
        }
        let valid_for = match self.disowned {
            Some(_) if is_confirmed => self.validity(start, MemberHold::vote_until),
            None if tally.renewed >= quorum => self.validity(start, MemberHold::countable_until),
            _ => None,
        };
        let is_reconfirmed =
            |since| votes().filter(|hold| hold.vote_confirmed_at() > Some(since)).count() >= quorum;
        self.disowned = self.disowned.filter(|since| !is_reconfirmed(*since));
        self.admit_newcomers();
        match valid_for {
            Some(valid_for) => Ok(Renewal::Renewed { valid_for }),
            None => Err(self.no_majority(tally)),
        }
    }

    fn leave(&mut self) {
        self.members.iter_mut().for_each(MemberClaims::leave);
    }

    async fn release(&mut self) -> Result<Release> {
        self.release_all().await
    }

    /// Detaches on all members that hold. A quorum of members with a vote must keep the claim. The
    /// members keep it longer by the drift, because the lock would be free too early on a member
    /// with a fast clock. The detached hold is based on all members with a vote that keep it, so
    /// that some of them may fail.
    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        self.take_late_replies();
        let lasting = lasting + lasting / 100 + Duration::from_millis(2);
        let resumes = self.resumes;
        let operation = |member: &MemberClaims| {
            let is_included = if resumes {
                member.may_have_entry()
            } else {
                member.hold.is_held() || member.is_in_flight()
            };
            is_included.then(|| Operation::Detach(lasting, member.ticket(ticket)))
        };
        let with_entry = self.members.iter().filter(|member| member.may_have_entry()).count();
        let tally = self.round(operation, |_| false).await;
        if resumes {
            // The hold returns to its ticket on all members, whether or not they have handed it
            // over. A member that has not confirmed this may keep its part of the hold under an id
            // that no later request will have.
            return match tally.detached + tally.refused {
                confirmed if confirmed < with_entry => Err(self.no_majority(tally)),
                _ if tally.detached >= self.quorum => Ok(Renewal::Renewed { valid_for: lasting }),
                _ => Ok(Renewal::Lost),
            };
        }
        let votes = self.holds().filter_map(MemberHold::vote_until).count();
        if tally.detached < self.quorum {
            return match votes < self.quorum {
                true => Ok(Renewal::Lost),
                false => Err(self.no_majority(tally)),
            };
        }
        if self.holds().any(MemberHold::is_newly_granted) {
            // Some members have granted, but have confirmed no request since their grant. The
            // second round detaches the hold on them too. The members with a vote confirm the
            // detachment again, now after that grant, so `admit_newcomers` can give the new members
            // a vote.
            self.round(operation, |_| false).await;
        }
        self.admit_newcomers();
        // The ticket lists only the members with a vote that have confirmed the detachment. The
        // other members granted too late, or their reply to the detachment is late or lost. Release
        // the hold on these. If such a member executed the detachment later, it would keep its part
        // of the hold even after a release by ticket.
        let rest = self.members.iter_mut().filter(|member| !member.hold.keeps_detached());
        rest.for_each(MemberClaims::release_in_background);
        Ok(Renewal::Renewed { valid_for: lasting })
    }

    /// Takes over a detached hold. The members that hand over their part of it get a vote. They
    /// have held without a gap, because a member never hands over a part that it has forgotten.
    ///
    /// If the claim's own `detach` has failed, the request goes to the members with a vote. Every
    /// member with a vote has either kept the claim or detached it.
    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        let start = Moment::now();
        let resumes = self.resumes;
        self.members.iter_mut().for_each(MemberClaims::take_late_reply);
        let operation = |member: &MemberClaims| {
            let is_included =
                if resumes { member.may_have_entry() } else { member.hold.vote_until().is_some() };
            is_included.then(|| Operation::Resume(member.ticket(ticket)))
        };
        let tally = self.round(operation, |_| false).await;
        if resumes {
            self.members.iter_mut().for_each(|member| member.hold.update_vote());
        }
        if let Some(valid_for) = self.validity(start, MemberHold::vote_until)
            && tally.renewed >= self.quorum
        {
            self.resumes = false;
            if let Some(remaining) = tally.remaining {
                // Includes the maximum drift between the members.
                let until = start.after(remaining + remaining / 50 + self.drift());
                let missing = self.members.iter_mut().filter(|member| member.hold.vote_until().is_none());
                missing.for_each(|member| member.set_detached_until(until));
            }
            let grant = Grant { token: None, valid_for };
            return Ok(Resumption::Resumed { grant, remaining: tally.remaining });
        }
        // Members without a reply may still hold.
        let is_lost = tally.renewed + tally.unknown < self.quorum;
        if is_lost { Ok(Resumption::Gone) } else { Err(self.no_majority(tally)) }
    }

    fn locator(&self) -> Option<Arc<str>> {
        let locators: Vec<_> = self.members.iter().map(MemberClaims::locator).collect();
        Some(locators.join(".").into())
    }

    async fn changed(&mut self) {
        drop(select_all(self.members.iter_mut().map(|member| Box::pin(member.changed()))).await);
    }
}
