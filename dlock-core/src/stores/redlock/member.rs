//! One member's part in a claim: what the member is asked, and until when it holds. Over the usual length, so that all code
//! that changes a member's state is in one file.
//!
//! `claim.rs` explains the words *vote*, *joined* and *disowned*.

use std::{
    future::{pending, poll_fn},
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::FutureExt as _;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::{
    contract::{Attempt, Backend, Claim, Grant, Release, Renewal, Request, Resumption},
    engine,
    kit::Moment,
    model::{ClaimId, Error, Result},
};

/// How many bytes of the id are common to all claims that one claim on the majority makes on its members. The other three
/// bytes differ from claim to claim: the member's index and the claim's number go into them.
const COMMON: usize = 13;

/// How many characters these bytes take in the id's text.
const COMMON_TEXT: usize = 30;

/// One member's claim, and what is known of it.
///
/// **Every claim has an id of its own.** A claim that was released, or that the member has forgotten, is never attempted
/// again: a late release of it could otherwise remove what a later attempt was granted. The next attempt is a new claim with
/// a new id, which no late request can meet. Members have different ids too, because two of them may be one server under two
/// names: with one id, that server would grant twice and count as two.
pub(super) struct Member {
    backend: Arc<dyn Backend>,
    request: Request,
    /// Which of the members it is, and how many claims have been made on it before: both are in the claim's id.
    index: u8,
    claims: u16,
    state: State,
    /// Until when the member holds, by its last good answer, counted from before the request. `None` from the moment that a
    /// release is asked for, even if the member still holds.
    held_until: Option<Moment>,
    /// Whether the hold rests on it.
    has_vote: bool,
    /// When the answer came that granted, or that first renewed after its vote had expired. The member has held without a gap
    /// from then until `renewal_sent`.
    granted_at: Option<Instant>,
    /// When the last renewal that it confirmed was sent.
    renewal_sent: Option<Instant>,
    /// Whether it was renewed in the current round.
    renewed_in_round: bool,
    /// Set when the member disowns the hold while it has a vote: the end of the time that it had granted. Kept until the
    /// claim reads it, with [`take_disowned`](Self::take_disowned) or [`take_expired_vote`](Self::take_expired_vote).
    disowned_until: Option<Moment>,
    /// Until when the member may keep the claim because of a detachment, if it has not been renewed since.
    detached_until: Option<Moment>,
    /// Earlier claims on this member that are being released in the background. The tracker is closed, so that waiting for
    /// it can end.
    leaving: TaskTracker,
    /// Everything that the RedLock does in the background, for [`Backend::close`].
    tasks: TaskTracker,
}

enum State {
    /// A claim, with no call under way.
    Idle(Box<dyn Claim>),
    Asked {
        question: Question,
        answer: Asking,
        /// Its round is over, and the call goes on in the background.
        late: bool,
    },
    /// A claim that is never attempted again: the member has forgotten it, or has not confirmed its release.
    Ended(Box<dyn Claim>),
    /// No claim. A release waits here until all earlier claims are released. This future may be dropped at any time.
    Draining(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// No claim, but perhaps earlier ones that are being released in the background.
    None,
}

/// A call to the driver under way: it gives the claim back with the answer, or none if the runtime ended.
type Asking = Pin<Box<dyn Future<Output = (Option<Box<dyn Claim>>, Answer)> + Send>>;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Attempt,
    Renew,
    /// To keep the claim for so long without its client.
    Detach(Duration, ClaimId),
    /// To take over the claim that was detached as this id.
    Resume(ClaimId),
    Release,
}

/// What a member says.
#[derive(Debug)]
pub(super) enum Answer {
    /// The member holds until `until`. It began to hold at `at`, when the answer came, at the latest.
    Granted { at: Instant, until: Moment },
    /// The member had held without a gap when the renewal was sent, at `sent`, and holds until `until`.
    Renewed { sent: Moment, until: Moment },
    /// The member keeps the claim without us. We count on no more time for that: the next renewal may shorten it again, even
    /// if its answer gets lost. The member had held without a gap when it was asked, at `sent`.
    Detached { sent: Moment },
    /// The member has taken a detached claim over, at `sent`, and holds until `until`. Without us it would have kept the claim
    /// for `remaining`.
    Resumed { sent: Moment, until: Moment, remaining: Option<Duration> },
    /// Somebody else is ahead of us on this member. Ask again after this long.
    Busy(Duration),
    /// The member does not know the claim any more.
    Lost,
    /// The member has released the claim.
    Released(Release),
    /// It is not known whether the member did what it was asked for.
    Unknown(Error),
}

impl Member {
    pub(super) fn new(index: usize, backend: Arc<dyn Backend>, request: Request, tasks: TaskTracker) -> Self {
        let leaving = closed();
        let index = index.to_le_bytes()[0];
        Self {
            backend,
            request,
            index,
            claims: 0,
            state: State::None,
            held_until: None,
            has_vote: false,
            granted_at: None,
            renewal_sent: None,
            renewed_in_round: false,
            disowned_until: None,
            detached_until: None,
            leaving,
            tasks,
        }
    }

    /// Which store it is.
    pub(super) fn identity(&self) -> &str {
        &self.backend.info().identity
    }

    /// Whether it holds, by its last answer. The time that it granted may be over by now.
    pub(super) fn holds(&self) -> bool {
        self.held_until.is_some()
    }

    /// Until when it holds, if it has a vote or has joined. A joined member may stand in for a silent one.
    pub(super) fn lasts_until(&self) -> Option<Moment> {
        self.held_until.filter(|_| self.has_vote || self.joined_at().is_some())
    }

    /// Until when it holds, if the hold rests on it.
    pub(super) fn vote_until(&self) -> Option<Moment> {
        self.held_until.filter(|_| self.has_vote)
    }

    /// Gives the member a vote if it holds, and takes its vote away if it does not.
    pub(super) fn give_vote(&mut self) {
        self.has_vote = self.holds();
    }

    /// When the last renewal that it confirmed was sent, if the hold rests on it. Whatever the member says later, it held
    /// until that time.
    pub(super) fn vote_renewed_at(&self) -> Option<Instant> {
        self.renewal_sent.filter(|_| self.has_vote)
    }

    /// Since when it holds, if it has joined, that is, has granted and confirmed a renewal after that.
    pub(super) fn joined_at(&self) -> Option<Instant> {
        self.granted_at.filter(|_| self.renewal_sent.is_some())
    }

    /// Whether it is a newcomer that has confirmed nothing since its grant.
    pub(super) fn is_newly_granted(&self) -> bool {
        self.holds() && !self.has_vote && self.renewal_sent.is_none()
    }

    /// Whether it was renewed in the current round.
    pub(super) fn is_renewed_in_round(&self) -> bool {
        self.renewed_in_round
    }

    /// Whether the member has disowned the hold since the last call. `false` if the time that it had granted may have been
    /// over by its own clock: then it was right to forget the claim, and counts as a silent member whose time is over.
    pub(super) fn take_disowned(&mut self, drift: Duration) -> bool {
        match self.disowned_until {
            Some(until) if until.remaining() > drift => {
                self.disowned_until = None;
                true
            }
            _ => false,
        }
    }

    /// Takes its vote away if the time that it granted is over. Returns when that time was over.
    pub(super) fn take_expired_vote(&mut self, drift: Duration) -> Option<Instant> {
        let over = self.vote_until().filter(|until| until.remaining() <= drift);
        if over.is_some() {
            // Its promise is over. If it grants again, that is a new hold, which must join like any newcomer.
            self.clear_hold();
        }
        over.or(self.disowned_until.take()).map(Moment::instant)
    }

    /// Whether the time that it granted is over.
    pub(super) fn is_over(&self) -> bool {
        self.held_until.is_some_and(|until| until.remaining().is_zero())
    }

    /// What to ask the member next: a grant, or a renewal if it holds.
    ///
    /// A member that holds is asked to renew, never for another grant. It may have lost the claim meanwhile. An attempt
    /// would then get a new grant, and without tokens the answer would not show that there was a gap.
    pub(super) fn next_question(&self) -> Question {
        if self.holds() { Question::Renew } else { Question::Attempt }
    }

    /// Asks the member. While an earlier question is unanswered, this sends no attempt and no renewal; a release is sent
    /// after that answer.
    pub(super) fn ask(&mut self, question: Question) {
        match question {
            Question::Release => self.ask_to_leave(),
            Question::Attempt | Question::Renew | Question::Detach(..) | Question::Resume(_) => {
                self.ask_to_hold(question)
            }
        }
    }

    fn ask_to_hold(&mut self, question: Question) {
        if matches!(self.state, State::Ended(_) | State::Asked { question: Question::Release, .. }) {
            self.leave_in_background();
        }
        self.state = match std::mem::replace(&mut self.state, State::None) {
            State::None | State::Draining(_) if question == Question::Attempt => {
                let request = self.fresh_request();
                let claim = self.backend.claim(request);
                State::Asked { question, answer: asking(claim, question), late: false }
            }
            State::Idle(claim) => {
                if let Question::Detach(lasting, _) = question {
                    let until = Moment::now().after(lasting);
                    self.detached_until = Some(until);
                    // Whatever becomes of the answer, the member may keep the claim for no longer than this.
                    self.held_until = self.held_until.map(|held| held.min(until));
                }
                State::Asked { question, answer: asking(claim, question), late: false }
            }
            other => other,
        };
    }

    fn ask_to_leave(&mut self) {
        self.clear_hold();
        let question = Question::Release;
        let released = match std::mem::replace(&mut self.state, State::None) {
            State::Asked { question: Question::Release, answer, late } => {
                self.state = State::Asked { question, answer, late };
                return;
            }
            State::Idle(claim) | State::Ended(claim) => asking(claim, question),
            State::Asked { answer, .. } => Box::pin(async move {
                match answer.await {
                    (Some(claim), _) => asking(claim, question).await,
                    gone => gone,
                }
            }),
            State::None | State::Draining(_) => {
                if !self.leaving.is_empty() {
                    let others = self.leaving.clone();
                    self.state = State::Draining(Box::pin(async move { others.wait().await }));
                }
                return;
            }
        };
        // Answers `Released` only when the earlier claims are gone too, so that nothing of this RedLock claim is left on
        // the member.
        let others = self.leaving.clone();
        let answer = Box::pin(async move {
            let (claim, answer) = released.await;
            if matches!(answer, Answer::Released(_)) {
                others.wait().await;
            }
            (claim, answer)
        });
        self.state = State::Asked { question, answer, late: false };
    }

    /// Releases the claim in the background, however late the member answers. The next attempt makes a new claim.
    pub(super) fn leave_in_background(&mut self) {
        self.clear_hold();
        let state = std::mem::replace(&mut self.state, State::None);
        if matches!(state, State::Draining(_) | State::None) {
            return;
        }
        // A release under way waits for all tasks in `leaving`. If it were in there itself, it would wait for its own end,
        // so it goes into a new tracker.
        let is_release = matches!(state, State::Asked { question: Question::Release, .. });
        let others = is_release.then(|| std::mem::replace(&mut self.leaving, closed()));
        let detached = self.detached_until.take().map(Moment::remaining).unwrap_or_default();
        let (backend, kept) = (Arc::clone(&self.backend), self.request.ttl + detached);
        let leave = async move {
            let claim = match state {
                State::Draining(_) | State::None => return,
                State::Idle(claim) | State::Ended(claim) => Some(claim),
                State::Asked { answer, .. } => match answer.await {
                    (_, Answer::Released(_)) => return,
                    (claim, _) => claim,
                },
            };
            if let Some(mut claim) = claim {
                engine::release_until_forgotten(claim.as_mut(), backend.info(), kept, drop).await;
            }
            // The release above failed before it waited for the earlier claims, so wait for them now.
            if let Some(others) = others {
                others.wait().await;
            }
        };
        drop(engine::run_to_end(&self.tasks, self.leaving.track_future(leave)));
    }

    fn clear_hold(&mut self) {
        (self.held_until, self.has_vote) = (None, false);
        (self.granted_at, self.renewal_sent, self.renewed_in_round) = (None, None, false);
    }

    /// The request of its next claim, with an id that no claim has had, on this member or another.
    fn fresh_request(&mut self) -> Request {
        let request = self.request.clone().id(self.id_of(self.request.id, self.claims));
        self.claims = self.claims.wrapping_add(1);
        request
    }

    fn id_of(&self, id: ClaimId, claim: u16) -> ClaimId {
        let mut id = *id.as_bytes();
        let [high, low] = claim.to_be_bytes();
        for (byte, own) in id[COMMON..].iter_mut().zip([self.index, high, low]) {
            *byte ^= own;
        }
        ClaimId::from_bytes(id)
    }

    /// Whether a detached hold rests on this member, for another client that takes the hold over.
    pub(super) fn locator(&self) -> &'static str {
        if self.has_vote { "v" } else { "n" }
    }

    /// Prepares a claim if the [`locator`](Self::locator) says that the detached hold rests on this member.
    pub(super) fn find(&mut self, locator: &str) {
        if locator == "v" {
            let request = self.fresh_request();
            self.state = State::Idle(Box::new(Taker { claim: self.backend.claim(request), unsure: None }));
        }
    }

    /// Id under which this member keeps the hold that is detached as `ticket`. It is the id of the member's first claim for a
    /// request with the ticket's id, so that a release by ticket finds it.
    pub(super) fn ticket(&self, ticket: ClaimId) -> ClaimId {
        self.id_of(ticket, 0)
    }

    /// Notes that the member may keep the hold for its ticket until then. Its release is repeated for as long.
    pub(super) fn may_last_until(&mut self, until: Moment) {
        self.detached_until = Some(until);
    }

    /// Whether something of ours may be in the member's store.
    pub(super) fn is_there(&self) -> bool {
        !matches!(self.state, State::None) || !self.leaving.is_empty()
    }

    /// Whether an answer is still to come.
    pub(super) fn is_asked(&self) -> bool {
        matches!(self.state, State::Asked { .. } | State::Draining(_))
    }

    /// Polls for the answer to the last question, and notes what it says about the hold. May be called again after
    /// `Pending` or an answer.
    pub(super) fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        if let State::Draining(others) = &mut self.state {
            std::task::ready!(others.as_mut().poll(context));
            self.state = State::None;
            return Poll::Ready(Answer::Released(Release::Done));
        }
        let State::Asked { answer, question, .. } = &mut self.state else { return Poll::Pending };
        let Poll::Ready((claim, answer)) = answer.as_mut().poll(context) else { return Poll::Pending };
        let leaves = *question == Question::Release || matches!(answer, Answer::Lost);
        self.state = match (claim, &answer) {
            (None, _) | (_, Answer::Released(_)) => State::None,
            (Some(claim), _) if leaves => State::Ended(claim),
            (Some(claim), _) => State::Idle(claim),
        };
        let vote = self.vote_until();
        match answer {
            Answer::Granted { at, until } => {
                self.held_until = Some(until);
                self.granted_at.get_or_insert(at);
            }
            Answer::Renewed { sent, until } | Answer::Resumed { sent, until, .. } => {
                self.detached_until = None;
                (self.held_until, self.renewed_in_round) = (Some(until), true);
                if self.granted_at.is_some() {
                    self.renewal_sent = Some(sent.instant());
                } else {
                    // The answer came after the time granted before, when its vote was gone: a newcomer like any other.
                    self.granted_at = Some(Instant::now());
                }
            }
            Answer::Busy(_) | Answer::Lost | Answer::Released(_) => self.clear_hold(),
            Answer::Detached { sent } => {
                self.renewal_sent = self.granted_at.and(Some(sent.instant()));
            }
            Answer::Unknown(_) => {}
        }
        if self.vote_until().is_none() {
            self.disowned_until = vote.or(self.disowned_until);
        }
        Poll::Ready(answer)
    }

    /// Lets a call that was not answered in time go on as a task: a call to a driver is never dropped in flight.
    pub(super) fn finish_in_background(&mut self) {
        if let State::Asked { answer, late: late @ false, .. } = &mut self.state {
            let going_on = std::mem::replace(answer, Box::pin(pending()));
            let task = engine::run_to_end(&self.tasks, going_on);
            *answer =
                Box::pin(async move { task.await.unwrap_or_else(|_| (None, Answer::Unknown(ended()))) });
            *late = true;
        }
    }

    /// Reads an answer that came after its round, and begins a new round.
    pub(super) fn take_late_answer(&mut self) {
        if matches!(self.state, State::Asked { late: true, .. }) {
            // If the answer is not there yet, the next `round` or `changed` polls for it with a real waker.
            let _ = self.poll_answer(&mut Context::from_waker(Waker::noop()));
        }
        self.renewed_in_round = false;
    }

    /// Ends when another attempt may have a different result: when the member hints, or when a late answer says that it has
    /// granted.
    pub(super) async fn changed(&mut self) {
        match &mut self.state {
            State::Idle(claim) => claim.changed().await,
            State::Asked { question: Question::Attempt, .. } => {
                let answer = poll_fn(|context| self.poll_answer(context)).await;
                if !matches!(answer, Answer::Granted { .. }) {
                    pending::<()>().await;
                }
            }
            State::Asked { .. } | State::Ended(_) | State::Draining(_) | State::None => pending().await,
        }
    }
}

/// A claim that takes a detached hold over on one member. The majority does not wait for this member: so the outcome may be
/// unknown when the claim is released, and the member may know the hold by its ticket still.
struct Taker {
    claim: Box<dyn Claim>,
    /// Ticket of a resumption whose outcome is unknown.
    unsure: Option<ClaimId>,
}

#[async_trait]
impl Claim for Taker {
    async fn attempt(&mut self) -> Result<Attempt> {
        self.claim.attempt().await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.claim.renew().await
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        let detached = self.claim.detach(lasting, ticket).await;
        if detached.is_ok() {
            self.unsure = None;
        }
        detached
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        self.unsure = Some(ticket);
        let resumed = self.claim.resume(ticket).await?;
        self.unsure = None;
        Ok(resumed)
    }

    fn locator(&self) -> Option<Arc<str>> {
        self.claim.locator()
    }

    async fn release(&mut self) -> Result<Release> {
        if let Some(ticket) = self.unsure {
            self.resume(ticket).await?;
        }
        self.claim.release().await
    }

    async fn changed(&mut self) {
        self.claim.changed().await;
    }
}

/// A tracker that can be waited for while it is in use.
pub(super) fn closed() -> TaskTracker {
    let tasks = TaskTracker::new();
    tasks.close();
    tasks
}

/// Whether the ids that two members show belong to one claim on the majority. Such ids differ only in the bytes after the
/// first [`COMMON`]. If text follows the id, as in ids of other programs, it must be the same.
pub(super) fn is_same_claim(one: &str, other: &str) -> bool {
    let parts = |id: &str| Some((id.get(..COMMON_TEXT)?.to_owned(), id.get(ID_TEXT..)?.to_owned()));
    one == other || parts(one).is_some_and(|one| Some(one) == parts(other))
}

/// The characters of a [`ClaimId`].
const ID_TEXT: usize = 36;

fn asking(mut claim: Box<dyn Claim>, question: Question) -> Asking {
    Box::pin(async move {
        let sent = Moment::now();
        // If a member's driver panics, the answer is unknown, and the member is asked again later.
        let told = AssertUnwindSafe(ask(claim.as_mut(), question, sent)).catch_unwind().await;
        let answer = told.unwrap_or_else(|_| Err(ended()));
        (Some(claim), answer.unwrap_or_else(Answer::Unknown))
    })
}

async fn ask(claim: &mut dyn Claim, question: Question, sent: Moment) -> Result<Answer> {
    match question {
        Question::Attempt => claim.attempt().await.map(|attempt| match attempt {
            Attempt::Granted(Grant { valid_for, .. }) => {
                Answer::Granted { at: Instant::now(), until: sent.after(valid_for) }
            }
            Attempt::Busy { retry_in } => Answer::Busy(retry_in),
        }),
        Question::Renew => claim.renew().await.map(|renewal| match renewal {
            Renewal::Renewed { valid_for } => Answer::Renewed { sent, until: sent.after(valid_for) },
            Renewal::Lost => Answer::Lost,
        }),
        Question::Detach(lasting, ticket) => {
            claim.detach(lasting, ticket).await.map(|renewal| match renewal {
                Renewal::Renewed { .. } => Answer::Detached { sent },
                Renewal::Lost => Answer::Lost,
            })
        }
        Question::Resume(ticket) => claim.resume(ticket).await.map(|resumption| match resumption {
            Resumption::Resumed { grant: Grant { valid_for, .. }, remaining } => {
                Answer::Resumed { sent, until: sent.after(valid_for), remaining }
            }
            Resumption::Gone => Answer::Lost,
        }),
        Question::Release => claim.release().await.map(Answer::Released),
    }
}

fn ended() -> Error {
    Error::Unavailable { store: "redlock", source: "a member's driver panicked, or the runtime ended".into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{Kind, LockName},
        stores::memory::MemoryBackend,
    };

    fn member(index: usize, id: ClaimId) -> Member {
        let name = LockName::new("x").expect("legal");
        let request = Request::new(name, Kind::Mutex, Duration::from_secs(30)).id(id);
        Member::new(index, Arc::new(MemoryBackend::new()), request, TaskTracker::new())
    }

    #[test]
    fn claims_of_members_have_different_ids_that_tell_the_claim_they_belong_to() {
        let id = ClaimId::random();
        let mut ids = Vec::new();
        for index in 0..5 {
            let mut member = member(index, id);
            ids.extend((0..300).map(|_| member.fresh_request().id));
        }
        assert!(ids.iter().all(|one| is_same_claim(&one.to_string(), &id.to_string())));
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 1500);
    }

    #[test]
    fn ids_of_different_claims_are_told_apart() {
        let (one, other) = (ClaimId::random().to_string(), ClaimId::random().to_string());
        assert!(!is_same_claim(&one, &other));
        assert!(
            !is_same_claim(&format!("{one}:1"), &format!("{one}:2")),
            "two threads of one Redisson client are taken for one claim"
        );
        assert!(
            is_same_claim("x", "x") && !is_same_claim("x", "y"),
            "short ids, as other programs have, are not compared as they are"
        );
    }
}
