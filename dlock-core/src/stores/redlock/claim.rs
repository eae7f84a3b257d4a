//! A claim on a majority: rounds of questions to all members. Over the usual length, because the rules need their reasons
//! beside them.
//!
//! - **Vote.** Members with a vote are those that the hold is based on. At the grant every member that holds gets a vote.
//! - **Newcomer.** A member that granted only after the majority had. It has no vote yet.
//! - **Joined.** A newcomer that has also confirmed a renewal. So it is known to have held without a gap from its grant
//!   until that renewal was sent.
//! - **Disowned.** A member with a vote said that it does not hold for us, although the time that it had granted was not
//!   over. The cause is a forced release or lost data. Somebody else may have held the lock there.
//! - **Silent.** A member that does not answer. Whether it holds is unknown.
//!
//! Newcomers must wait for a vote for this reason: suppose that a hold was broken on most members, and somebody else held
//! the lock meanwhile. If newcomers counted at once, the old hold could regain a majority, member by member.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use async_trait::async_trait;
use futures_util::future::select_all;
use tokio::time::{Instant, timeout_at};

use super::{
    RedLock,
    member::{Answer, Member, Question},
};
use crate::{
    contract::{Attempt, Claim, Grant, Release, Renewal, Request, Resumption},
    kit::Moment,
    model::{ClaimId, Error, Result, Wait},
};

/// How long a contender that holds some members, but no majority, waits before it releases them: at first, and at most. The
/// time doubles with each release, because releasing does not help while another claim holds the majority. It stays short
/// enough for the contenders to agree soon once the majority is free, which may take ten rounds and more. Members that a
/// minority holds are fewer than half, so only as many contenders ask at this pace.
const PATIENCE: Duration = Duration::from_millis(20);
const MOST_PATIENCE: Duration = Duration::from_millis(100);

/// The least and the most that one member may take by default. With less, a busy member would be taken for one that is
/// down. With more, everybody would wait too long for a member that is down.
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
    /// When a member with a vote has disowned the hold, as far as we know. `None` once a majority of the votes has confirmed the
    /// hold by renewals that were sent since. An earlier renewal says nothing of the time after it.
    disowned: Option<Instant>,
    /// Whether the claim is to take a detached hold over, and no majority has confirmed that yet.
    resumes: bool,
}

/// What the members said in one round.
#[derive(Default)]
struct Tally {
    /// Members that granted or renewed.
    held: usize,
    /// Members with a vote that renewed.
    confirmed: usize,
    /// Members with a vote that keep the claim without us, or all members that do so while the claim takes a hold over. A late
    /// answer to an earlier renewal is none of these.
    detached: usize,
    /// All members that renewed.
    renewed: usize,
    /// Members that said that somebody else is first, or that they do not know us.
    refused: usize,
    released: usize,
    /// Members that were asked to release and did not know the claim; counted in `released` too.
    gone: usize,
    /// Members that failed, or did not answer in time.
    unknown: usize,
    /// Members whose error is not transient; counted in `unknown` too.
    refusals: usize,
    retry_in: Option<Duration>,
    /// Shortest time for which a member would have kept the detached hold.
    remaining: Option<Duration>,
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
            Answer::Resumed { remaining, .. } => {
                self.held += 1;
                self.renewed += 1;
                let known = [self.remaining, remaining].into_iter().flatten();
                self.remaining = known.min();
            }
            Answer::Detached { .. } => self.held += 1,
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
        // Tokens of different members cannot be compared, so nobody would use them.
        let request = request.without_token();
        let members = lock.members.iter().enumerate().map(|(index, store)| {
            Member::new(index, Arc::clone(&store.backend), request.clone(), lock.tasks.clone())
        });
        let mut members: Vec<_> = members.collect();
        let resumes = request.locator.is_some();
        let locators: Vec<_> = request.locator.iter().flat_map(|locator| locator.split('.')).collect();
        // With the locator of another RedLock, no member finds its claim, and the hold is lost.
        if locators.len() == members.len() {
            members.iter_mut().zip(locators).for_each(|(member, locator)| member.find(locator));
        }
        let limit = lock.member_timeout.unwrap_or((request.ttl / 10).clamp(LEAST, MOST));
        Self {
            members,
            quorum: lock.quorum(),
            request,
            limit,
            patience: PATIENCE,
            split_since: None,
            disowned: None,
            resumes,
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
        let (drift, resumes) = (self.drift(), self.resumes);
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
                if member.take_disowned(drift) {
                    *disowned = Some(Instant::now());
                }
                let has_vote = member.vote_until().is_some();
                let counts = has_vote || resumes;
                tally.confirmed += usize::from(
                    has_vote && matches!(answer, Answer::Renewed { .. } | Answer::Resumed { .. }),
                );
                tally.detached += usize::from(counts && matches!(answer, Answer::Detached { .. }));
                tally.count(answer);
                false
            });
            if open.is_empty() || enough(&tally) { Poll::Ready(()) } else { Poll::Pending }
        });
        let late = timeout_at(end, answers).await.is_err();
        for member in open {
            member.finish_in_background();
            if late {
                tally.count(Answer::Unknown(unheard(member.identity(), self.limit)));
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

    /// Takes the vote from each silent member whose granted time is over. Gives votes instead to joined newcomers that held
    /// before that time was over. Gives none while the hold is disowned.
    fn replace_expired(&mut self) {
        let drift = self.drift();
        let over = self.members.iter_mut().filter_map(|member| member.take_expired_vote(drift)).min();
        let Some(over) = over.filter(|_| self.disowned.is_none()) else { return };
        let newcomers =
            self.members.iter_mut().filter(|member| member.joined_at().is_some_and(|since| since <= over));
        newcomers.for_each(Member::give_vote);
    }

    /// Releases on every member, and waits until all have answered or `limit` has passed. Releases that got no answer go on
    /// in the background: an earlier call may still reach its member, and would then leave something behind.
    ///
    /// `Gone` if so many members did not know the claim that the others are too few for a majority.
    ///
    /// # Errors
    /// If so many members did not confirm the release that a majority may still hold.
    async fn leave(&mut self) -> Result<Release> {
        let asked = self.members.iter().filter(|member| member.is_there()).count();
        let tally = self.round(|member| member.is_there().then_some(Question::Release), |_| false).await;
        self.members.iter_mut().for_each(Member::leave_in_background);
        if asked == 0 {
            return Ok(Release::Gone);
        }
        if tally.released < asked.saturating_sub(self.spare()) {
            return Err(self.too_few(tally));
        }
        Ok(if tally.gone > self.spare() { Release::Gone } else { Release::Done })
    }

    /// Gives votes to joined newcomers. Condition: a majority of the members with a vote has confirmed renewals that were
    /// sent after the newcomer's grant. That proves that the hold had a majority without the newcomer when it joined. A
    /// renewal that was sent before proves nothing about that time, however late its answer came.
    fn admit_newcomers(&mut self) {
        let renewed: Vec<_> = self.members.iter().filter_map(Member::vote_renewed_at).collect();
        let stood = |since| renewed.iter().filter(|renewed| **renewed >= since).count() >= self.quorum;
        let joined = self.members.iter_mut().filter(|member| member.joined_at().is_some_and(stood));
        joined.for_each(Member::give_vote);
    }

    /// Reads the answers that came after their round was over, so that this round can ask those members again.
    fn take_late_answers(&mut self) {
        let drift = self.drift();
        for member in &mut self.members {
            member.take_late_answer();
            if member.take_disowned(drift) {
                self.disowned = Some(Instant::now());
            }
        }
        self.admit_newcomers();
    }

    /// Releases the members that hold for us if they have been no majority for as long as our patience; `true` if it did.
    /// Otherwise several contenders, each with some of the members, would wait for each other for ever.
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
        self.patience = (self.patience * 2).min(MOST_PATIENCE).min(self.request.ttl / 3);
        let holding = self.members.iter_mut().filter(|member| member.holds());
        holding.for_each(Member::leave_in_background);
        true
    }

    /// The error of a round with too few answers. It is not transient if so many members refused that the others are no
    /// majority.
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

fn unheard(member: &str, limit: Duration) -> Error {
    Error::Unavailable { store: "redlock", source: format!("{member}: no answer within {limit:?}").into() }
}

#[async_trait]
impl Claim for RedLockClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let begun = Moment::now();
        let (quorum, spare) = (self.quorum, self.spare());
        let tries = self.request.wait == Wait::Never;
        // A member whose granted time is over is asked for a new claim at once. A renewal would only tell us that the
        // member has forgotten the old one.
        self.members.iter_mut().filter(|member| member.is_over()).for_each(Member::leave_in_background);
        let enough = |tally: &Tally| tally.held >= quorum || (tries && tally.refused > spare);
        let tally = self.round(|member| Some(member.next_question()), enough).await;
        self.members.iter_mut().for_each(Member::give_vote);
        if let Some(valid_for) = self.validity(begun, Member::vote_until) {
            (self.split_since, self.disowned) = (None, None);
            return Ok(Attempt::Granted(Grant { token: None, valid_for }));
        }
        if tally.held >= quorum {
            // Nobody else holds the lock, so waiting does not help: the members answer too slowly for this ttl.
            let late = format!("a majority granted, but a ttl of {:?} was over by then", self.request.ttl);
            return Err(Error::Unavailable { store: "redlock", source: late.into() });
        }
        if tries || tally.unknown > spare {
            // Neither a single try nor an attempt that could not reach a majority may leave anything on the members.
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

    /// Renews on the members that hold, and asks the others for a new grant. The top of this file explains the words.
    ///
    /// - While no member with a vote has disowned the hold: `Renewed` if any majority renewed. Newcomers count here in the
    ///   place of silent members, which may still hold. When the time that a silent member had granted is over, newcomers
    ///   get its vote.
    /// - Once a member with a vote has disowned the hold: `Renewed` only if a majority renewed among the members with a
    ///   vote, because only they have held without a gap.
    /// - `Lost` if too few members with a vote are left for a majority.
    async fn renew(&mut self) -> Result<Renewal> {
        let begun = Moment::now();
        let (quorum, spare) = (self.quorum, self.spare());
        self.take_late_answers();
        if self.members.iter().all(|member| member.vote_until().is_none()) {
            return Ok(Renewal::Lost);
        }
        let enough = |tally: &Tally| tally.confirmed >= quorum || tally.refused > spare;
        let tally = self.round(|member| Some(member.next_question()), enough).await;
        self.replace_expired();
        let votes = || self.members.iter().filter(|member| member.vote_until().is_some());
        let is_confirmed = votes().filter(|member| member.is_renewed_in_round()).count() >= quorum;
        if votes().count() < quorum {
            return Ok(Renewal::Lost);
        }
        let valid_for = match self.disowned {
            Some(_) if is_confirmed => self.validity(begun, Member::vote_until),
            None if tally.renewed >= quorum => self.validity(begun, Member::lasts_until),
            _ => None,
        };
        let stands =
            |since| votes().filter(|member| member.vote_renewed_at() > Some(since)).count() >= quorum;
        self.disowned = self.disowned.filter(|since| !stands(*since));
        self.admit_newcomers();
        match valid_for {
            Some(valid_for) => Ok(Renewal::Renewed { valid_for }),
            None => Err(self.too_few(tally)),
        }
    }

    async fn release(&mut self) -> Result<Release> {
        self.leave().await
    }

    /// Asks all members that hold. A majority of those with a vote must keep the claim: for the drift longer, because a member
    /// whose clock is fast would be free too early. The hold then rests on all that keep it, so that some of them may fail.
    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        self.take_late_answers();
        let lasting = lasting + lasting / 100 + Duration::from_millis(2);
        let resumes = self.resumes;
        let question = |member: &Member| {
            let is_asked = if resumes { member.is_there() } else { member.holds() || member.is_asked() };
            is_asked.then(|| Question::Detach(lasting, member.ticket(ticket)))
        };
        let asked = self.members.iter().filter(|member| member.is_there()).count();
        let tally = self.round(question, |_| false).await;
        if resumes {
            // The hold goes back to its ticket: on members that have handed it over, and on those that have not. A member that
            // has not confirmed that may keep a part under an id that nobody will ask for again.
            return match tally.detached + tally.refused {
                confirmed if confirmed < asked => Err(self.too_few(tally)),
                _ if tally.detached >= self.quorum => Ok(Renewal::Renewed { valid_for: lasting }),
                _ => Ok(Renewal::Lost),
            };
        }
        let votes = self.members.iter().filter_map(Member::vote_until).count();
        if tally.detached < self.quorum {
            return match votes < self.quorum {
                true => Ok(Renewal::Lost),
                false => Err(self.too_few(tally)),
            };
        }
        if self.members.iter().any(Member::is_newly_granted) {
            // Their grants came in this round, and each of them counts once a majority confirms that it has held since.
            self.round(question, |_| false).await;
        }
        self.admit_newcomers();
        // The ticket does not lead to the other members: those that granted late, and those whose reply to the detachment
        // is late or lost. A late detachment would otherwise keep its part after a release by ticket.
        let rest = self.members.iter_mut().filter(|member| !member.keeps_detached());
        rest.for_each(Member::leave_in_background);
        Ok(Renewal::Renewed { valid_for: lasting })
    }

    /// Takes a detached hold over: the members with a vote are those that hand their part of it over. A member never hands
    /// over what it has forgotten, so they have held without a gap.
    ///
    /// A claim whose own `detach` has failed asks the members with a vote, each of which has either kept the claim or
    /// detached it.
    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        let begun = Moment::now();
        let resumes = self.resumes;
        self.members.iter_mut().for_each(Member::take_late_answer);
        let question = |member: &Member| {
            let is_asked = if resumes { member.is_there() } else { member.vote_until().is_some() };
            is_asked.then(|| Question::Resume(member.ticket(ticket)))
        };
        let tally = self.round(question, |_| false).await;
        if resumes {
            self.members.iter_mut().for_each(Member::give_vote);
        }
        if let Some(valid_for) = self.validity(begun, Member::vote_until)
            && tally.renewed >= self.quorum
        {
            self.resumes = false;
            if let Some(remaining) = tally.remaining {
                // The members drift apart by no more than this.
                let until = begun.after(remaining + remaining / 50 + self.drift());
                let missing = self.members.iter_mut().filter(|member| member.vote_until().is_none());
                missing.for_each(|member| member.may_last_until(until));
            }
            let grant = Grant { token: None, valid_for };
            return Ok(Resumption::Resumed { grant, remaining: tally.remaining });
        }
        // Members that have not answered may hold still.
        let is_gone = tally.renewed + tally.unknown < self.quorum;
        if is_gone { Ok(Resumption::Gone) } else { Err(self.too_few(tally)) }
    }

    fn locator(&self) -> Option<Arc<str>> {
        let locators: Vec<_> = self.members.iter().map(Member::locator).collect();
        Some(locators.join(".").into())
    }

    async fn changed(&mut self) {
        drop(select_all(self.members.iter_mut().map(|member| Box::pin(member.changed()))).await);
    }
}
