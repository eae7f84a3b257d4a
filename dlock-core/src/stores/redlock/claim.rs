//! A claim on a majority: rounds of questions to all members. Over the usual length, with the reasons of its rules.
//!
//! - **Vote.** The hold rests on the members with a vote. At the grant every member that holds gets one.
//! - **Newcomer.** A member that granted after that. It has no vote yet.
//! - **Joined.** A newcomer that was also renewed: from its grant until that renewal was sent it has held without a gap.
//! - **Disowned.** A member with a vote said that it does not hold for us, though the time that it had granted was not over:
//!   a forced release, or lost data. Somebody else may have held the lock there.
//! - **Silent.** A member that does not answer. It may hold or not.
//!
//! Why newcomers must wait for a vote: a hold that was broken on most members could otherwise be put together again, member
//! by member, although somebody else held the lock in between.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use async_trait::async_trait;
use futures_util::future::select_all;
use tokio::time::{Instant, timeout_at};

use super::{
    RedLock,
    member::{Answer, Member, Question},
};
use crate::driver::{Attempt, Claim, Error, Grant, Moment, Release, Renewal, Request, Result, Wait};

/// The first patience of a contender that holds some members, but no majority, before it lets them go. Doubles, up to a
/// third of the ttl: while somebody else holds the majority, letting go is of no use.
const PATIENCE: Duration = Duration::from_millis(20);

/// The least and the most that one member may take, unless it is set: below, a busy machine would be taken for one that is
/// away; above, everybody would wait too long for one that is.
const LEAST: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_secs(2);

pub(super) struct RedLockClaim {
    members: Vec<Member>,
    quorum: usize,
    request: Request,
    /// How long one member may take.
    limit: Duration,
    patience: Duration,
    /// Since when some members hold for us, but no majority.
    split_since: Option<Instant>,
    /// A member with a vote has disowned the hold, and no majority of the votes has confirmed it since.
    disowned: bool,
}

/// What the members said in one round.
#[derive(Default)]
struct Tally {
    /// Members that granted or renewed.
    held: usize,
    /// Members with a vote that renewed.
    confirmed: usize,
    /// All members that renewed.
    renewed: usize,
    /// Members that said that somebody else is first, or that they do not know us.
    refused: usize,
    released: usize,
    /// Of the released, those that did not know us.
    gone: usize,
    /// Members that failed, or did not answer in time.
    unknown: usize,
    /// Of the unknown, those whose error is not transient.
    refusals: usize,
    retry_in: Option<Duration>,
    error: Option<Error>,
    refusal: Option<Error>,
}

impl Tally {
    fn count(&mut self, answer: Answer) {
        match answer {
            Answer::Granted { .. } => self.held += 1,
            Answer::Renewed { .. } => {
                self.held += 1;
                self.renewed += 1;
            }
            Answer::Busy(retry_in) => {
                self.refused += 1;
                self.retry_in = Some(self.retry_in.map_or(retry_in, |least| least.min(retry_in)));
            }
            Answer::Lost => self.refused += 1,
            Answer::Released(release) => {
                self.released += 1;
                self.gone += usize::from(release == Release::Gone);
            }
            Answer::Unknown(error) => {
                self.unknown += 1;
                if error.is_transient() {
                    self.error.get_or_insert(error);
                } else {
                    self.refusals += 1;
                    self.refusal.get_or_insert(error);
                }
            }
        }
    }
}

impl RedLockClaim {
    pub(super) fn new(lock: &RedLock, request: Request) -> Self {
        // Members' tokens cannot be compared, so nobody would get them.
        let request = request.without_token();
        let members = lock.members.iter().enumerate().map(|(index, store)| {
            Member::new(index, Arc::clone(&store.backend), request.clone(), lock.tasks.clone())
        });
        let members = members.collect();
        let limit = lock.member_timeout.unwrap_or((request.ttl / 10).clamp(LEAST, MOST));
        Self {
            members,
            quorum: lock.quorum(),
            request,
            limit,
            patience: PATIENCE,
            split_since: None,
            disowned: false,
        }
    }

    /// How many may fail.
    fn spare(&self) -> usize {
        self.members.len() - self.quorum
    }

    /// Asks each member its `question`, if it has one. Waits until the answers are `enough`, until all members have answered,
    /// or until `limit` has passed. Members that have not answered by then go on in the background.
    async fn round(
        &mut self,
        question: impl Fn(&Member) -> Option<Question> + Send,
        enough: impl Fn(&Tally) -> bool + Send + Sync,
    ) -> Tally {
        let end = Moment::now().after(self.limit).instant();
        let drift = self.drift();
        let mut tally = Tally::default();
        let mut open: Vec<&mut Member> = Vec::with_capacity(self.members.len());
        for member in &mut self.members {
            if let Some(question) = question(member) {
                member.ask(question);
                if member.is_asked() {
                    open.push(member);
                }
            }
        }
        let disowned = &mut self.disowned;
        let answers = poll_fn(|context| {
            open.retain_mut(|member| {
                let Poll::Ready(answer) = member.poll_answer(context) else { return true };
                *disowned |= member.take_disowned(drift);
                let confirms = matches!(answer, Answer::Renewed { .. }) && member.vote_until().is_some();
                tally.confirmed += usize::from(confirms);
                tally.count(answer);
                false
            });
            if open.is_empty() || enough(&tally) { Poll::Ready(()) } else { Poll::Pending }
        });
        let late = timeout_at(end, answers).await.is_err();
        for member in open {
            member.finish_in_background();
            if late {
                tally.count(Answer::Unknown(unheard(self.limit)));
            }
        }
        tally
    }

    /// How long a majority holds, counted from `begun`. `held_until` tells which members count, and until when each holds.
    /// `None` if there is no such majority, or its time is over.
    fn validity(&self, begun: Moment, held_until: fn(&Member) -> Option<Moment>) -> Option<Duration> {
        let votes = self.members.iter().filter_map(held_until);
        let mut left: Vec<_> = votes.map(|until| until.since(begun)).collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        let majority = left.get(self.quorum - 1)?;
        Some(majority.saturating_sub(self.drift())).filter(|validity| *validity > begun.elapsed())
    }

    /// By how much the clocks of the members may drift apart within a ttl.
    fn drift(&self) -> Duration {
        self.request.ttl / 100 + Duration::from_millis(2)
    }

    /// Takes the vote from each silent member whose granted time is over, and gives votes to newcomers in its place: to those
    /// that held before that time was over and were renewed since. Gives none while a member has disowned the hold.
    fn replace_expired(&mut self) {
        let drift = self.drift();
        let over = self.members.iter_mut().filter_map(|member| member.take_expired_vote(drift)).min();
        let Some(over) = over.filter(|_| !self.disowned) else { return };
        let newcomers =
            self.members.iter_mut().filter(|member| member.joined_at().is_some_and(|since| since <= over));
        newcomers.for_each(Member::give_vote);
    }

    /// Releases on every member, and waits until all have answered or `limit` has passed. Releases without an answer go on in
    /// the background, because a call that is still open may reach its member long after this claim was given up.
    ///
    /// `Gone` if so many members did not know the claim that the rest is no majority.
    ///
    /// # Errors
    /// So many have not confirmed it that a majority may still hold.
    async fn leave(&mut self) -> Result<Release> {
        let asked = self.members.iter().filter(|member| member.is_there()).count();
        let tally = self.round(|member| member.is_there().then_some(Question::Release), |_| false).await;
        self.members.iter_mut().for_each(Member::leave_in_background);
        if tally.released < asked.saturating_sub(self.spare()) {
            return Err(self.too_few(tally));
        }
        Ok(if tally.gone > self.spare() { Release::Gone } else { Release::Done })
    }

    /// Gives a vote to each joined newcomer for which a majority of votes was renewed, by requests sent after the newcomer's
    /// grant. So the hold stood without the newcomer when it came. A request sent earlier proves nothing about that time,
    /// however late its answer came.
    fn admit_newcomers(&mut self) {
        let renewed: Vec<_> = self.members.iter().filter_map(Member::vote_renewed_at).collect();
        let stood = |since| renewed.iter().filter(|renewed| **renewed >= since).count() >= self.quorum;
        let joined = self.members.iter_mut().filter(|member| member.joined_at().is_some_and(stood));
        joined.for_each(Member::give_vote);
    }

    /// Reads the answers that came since the last round, so that their members are asked like the others.
    fn take_late_answers(&mut self) {
        let drift = self.drift();
        for member in &mut self.members {
            member.take_late_answer();
            self.disowned |= member.take_disowned(drift);
        }
        self.admit_newcomers();
    }

    /// Lets go of the members that hold for us once they have been too few for as long as our patience; `true` if it did.
    /// Contenders that split the members between them would otherwise wait for each other for ever.
    fn yield_if_split(&mut self) -> bool {
        let holds_some = self.members.iter().any(Member::holds);
        let Some(since) = self.split_since.filter(|_| holds_some) else {
            self.split_since = holds_some.then(Instant::now);
            return false;
        };
        if since.elapsed() < self.patience {
            return false;
        }
        self.split_since = None;
        self.patience = (self.patience * 2).min(self.request.ttl / 3);
        let holding = self.members.iter_mut().filter(|member| member.holds());
        holding.for_each(Member::leave_in_background);
        true
    }

    /// The error of too few answers. It is not transient if so many members refuse for good that no majority is left.
    fn too_few(&self, tally: Tally) -> Error {
        let source = match tally.refusal {
            Some(refusal) if tally.refusals > self.spare() => return refusal,
            refusal => tally.error.or(refusal),
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
            None => "no majority answered".to_owned(),
        };
        Error::Unavailable { store: "redlock", source: source.into() }
    }
}

fn unheard(limit: Duration) -> Error {
    Error::Unavailable { store: "redlock", source: format!("no answer within {limit:?}").into() }
}

#[async_trait]
impl Claim for RedLockClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let begun = Moment::now();
        let (quorum, spare) = (self.quorum, self.spare());
        let tries = self.request.wait == Wait::Never;
        // A member whose time is over is asked for another claim at once: to renew would only tell that it has forgotten this one.
        self.members.iter_mut().filter(|member| member.is_over()).for_each(Member::leave_in_background);
        let enough = |tally: &Tally| tally.held >= quorum || (tries && tally.refused > spare);
        let tally = self.round(|member| Some(member.next_question()), enough).await;
        self.members.iter_mut().for_each(Member::give_vote);
        if let Some(valid_for) = self.validity(begun, Member::vote_until) {
            (self.split_since, self.disowned) = (None, false);
            return Ok(Attempt::Granted(Grant { token: None, valid_for }));
        }
        if tally.held >= quorum {
            // Nobody else holds the lock, so waiting does not help: the members answer too slowly for this ttl.
            let late = format!("a majority granted, but a ttl of {:?} was over by then", self.request.ttl);
            return Err(Error::Unavailable { store: "redlock", source: late.into() });
        }
        if tries || tally.unknown > spare {
            // Without a majority nothing may stay: neither after a single try, nor while the members cannot be reached.
            let left = self.leave().await;
            return match tally.unknown > spare {
                true => Err(self.too_few(tally)),
                false => left.map(|_| Attempt::Busy { retry_in: self.patience }),
            };
        }
        let yielded = self.yield_if_split();
        let random = self.patience.mul_f64(0.5 + fastrand::f64());
        let retry_in = match (yielded || self.split_since.is_some(), tally.retry_in) {
            (false, Some(retry_in)) => retry_in,
            (true, Some(retry_in)) => retry_in.min(random),
            (_, None) => random,
        };
        Ok(Attempt::Busy { retry_in })
    }

    /// Renews on the members that hold, and asks the others for a new grant. See the words at the top of this file.
    ///
    /// - While no vote has disowned the hold: `Renewed` if any majority renewed. A silent member may still hold, so newcomers
    ///   stand in for it; when the time that it had granted is over, they get its vote.
    /// - Once a vote has disowned the hold: `Renewed` only if a majority of the votes renewed, which have held without a gap.
    /// - `Lost` if the votes that are left are no majority.
    async fn renew(&mut self) -> Result<Renewal> {
        let begun = Moment::now();
        let (quorum, spare) = (self.quorum, self.spare());
        self.take_late_answers();
        let enough = |tally: &Tally| tally.confirmed >= quorum || tally.refused > spare;
        let tally = self.round(|member| Some(member.next_question()), enough).await;
        self.replace_expired();
        let votes = || self.members.iter().filter(|member| member.vote_until().is_some());
        let is_confirmed = votes().filter(|member| member.is_renewed_in_round()).count() >= quorum;
        if votes().count() < quorum {
            return Ok(Renewal::Lost);
        }
        let valid_for = match self.disowned {
            true if is_confirmed => self.validity(begun, Member::vote_until),
            false if tally.renewed >= quorum => self.validity(begun, Member::lasts_until),
            _ => None,
        };
        self.disowned &= !is_confirmed;
        self.admit_newcomers();
        match valid_for {
            Some(valid_for) => Ok(Renewal::Renewed { valid_for }),
            None => Err(self.too_few(tally)),
        }
    }

    async fn release(&mut self) -> Result<Release> {
        self.leave().await
    }

    async fn changed(&mut self) {
        drop(select_all(self.members.iter_mut().map(|member| Box::pin(member.changed()))).await);
    }
}
