//! A claim on a majority: rounds of questions to all members.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use async_trait::async_trait;
use futures_util::future::select_all;
use tokio::time::{Instant, timeout_at};

use super::{
    RedLock,
    member::{Answer, Member, Question},
};
use crate::{Attempt, Claim, Error, Grant, Release, Renewal, Request, Result, Store, Wait};

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
}

/// What the members said in one round.
#[derive(Default)]
struct Tally {
    held: usize,
    refused: usize,
    released: usize,
    /// Of the released, those that did not know us.
    gone: usize,
    unknown: usize,
    /// Of the unknown, those that asking again does not help.
    refusals: usize,
    retry_in: Option<Duration>,
    error: Option<Error>,
    refusal: Option<Error>,
}

impl Tally {
    fn count(&mut self, answer: Answer) {
        match answer {
            Answer::HeldUntil(_) => self.held += 1,
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
        let member = |store: &Store| Member::new(Arc::clone(&store.backend), request.clone());
        let members = lock.members.iter().map(member).collect();
        let limit = lock.member_timeout.unwrap_or((request.ttl / 10).clamp(LEAST, MOST));
        Self { members, quorum: lock.quorum(), request, limit, patience: PATIENCE, split_since: None }
    }

    /// How many may fail.
    fn spare(&self) -> usize {
        self.members.len() - self.quorum
    }

    /// Asks each member what `question` says, if anything, and waits until that is `enough`, all have answered, or time
    /// is up.
    async fn round(
        &mut self,
        question: impl Fn(&Member) -> Option<Question> + Send,
        enough: impl Fn(&Tally) -> bool + Send + Sync,
    ) -> Tally {
        let end = Instant::now() + self.limit;
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
        let answers = poll_fn(|context| {
            open.retain_mut(|member| match member.poll_answer(context) {
                Poll::Ready(answer) => {
                    tally.count(answer);
                    false
                }
                Poll::Pending => true,
            });
            if open.is_empty() || enough(&tally) { Poll::Ready(()) } else { Poll::Pending }
        });
        let late = timeout_at(end, answers).await.is_err();
        for member in open {
            member.let_go_on();
            if late {
                tally.count(Answer::Unknown(unheard(self.limit)));
            }
        }
        tally
    }

    /// How long a majority holds, counted from `begun`, by all that its members have said.
    fn validity(&self, begun: Instant) -> Option<Duration> {
        let mut until: Vec<_> = self.members.iter().filter_map(|member| member.held_until).collect();
        until.sort_unstable_by(|a, b| b.cmp(a));
        let majority = until.get(self.quorum - 1)?.saturating_duration_since(begun);
        let drift = self.request.ttl / 100 + Duration::from_millis(2);
        Some(majority.saturating_sub(drift)).filter(|validity| *validity > begun.elapsed())
    }

    /// Has everything removed, by a majority now, by the others whenever they answer. It was gone if so many did not know it
    /// that the rest is no majority.
    async fn leave(&mut self) -> Result<Release> {
        let left = self.members.iter().filter(|member| member.is_there()).count();
        let tally = self.round(|member| member.is_there().then_some(Question::Release), |_| false).await;
        if tally.released < left.saturating_sub(self.spare()) {
            return Err(self.too_few(tally));
        }
        for member in &mut self.members {
            member.release_in_background(self.request.ttl);
        }
        Ok(if tally.gone > self.spare() { Release::Gone } else { Release::Done })
    }

    /// Somebody else may have the majority, or nobody: then somebody must let go of the members that it holds.
    async fn yield_if_split(&mut self) -> bool {
        let holds_some = self.members.iter().any(|member| member.held_until.is_some());
        let Some(since) = self.split_since.filter(|_| holds_some) else {
            self.split_since = holds_some.then(Instant::now);
            return false;
        };
        if since.elapsed() < self.patience {
            return false;
        }
        self.split_since = None;
        self.patience = (self.patience * 2).min(self.request.ttl / 3);
        self.round(|member| member.held_until.map(|_| Question::Release), |_| false).await;
        true
    }

    /// The error of too few answers. What so many refuse for good that no majority is left, is refused for good.
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
        let begun = Instant::now();
        let (quorum, spare) = (self.quorum, self.spare());
        let tries = self.request.wait == Wait::Never;
        let enough = |tally: &Tally| tally.held >= quorum || (tries && tally.refused > spare);
        let tally = self.round(|_| Some(Question::Attempt), enough).await;
        if let Some(valid_for) = self.validity(begun) {
            self.split_since = None;
            return Ok(Attempt::Granted(Grant { token: None, valid_for }));
        }
        if tries || tally.unknown > spare {
            // No majority, so nothing: neither for a caller that is told to come back, nor while the stores are away.
            let left = self.leave().await;
            return match tally.unknown > spare {
                true => Err(self.too_few(tally)),
                false => left.map(|_| Attempt::Busy { retry_in: self.patience }),
            };
        }
        let yielded = self.yield_if_split().await;
        let random = self.patience.mul_f64(0.5 + fastrand::f64());
        let retry_in = match (yielded || self.split_since.is_some(), tally.retry_in) {
            (false, Some(retry_in)) => retry_in,
            (true, Some(retry_in)) => retry_in.min(random),
            (_, None) => random,
        };
        Ok(Attempt::Busy { retry_in })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let begun = Instant::now();
        let (quorum, spare) = (self.quorum, self.spare());
        // One that was away is taken up again.
        let question = |member: &Member| match member.held_until {
            Some(_) => Some(Question::Renew),
            None => Some(Question::Attempt),
        };
        let tally = self.round(question, |tally| tally.held >= quorum || tally.refused > spare).await;
        match self.validity(begun) {
            Some(valid_for) if tally.held >= quorum => Ok(Renewal::Renewed { valid_for }),
            _ if tally.refused > spare => Ok(Renewal::Lost),
            _ => Err(self.too_few(tally)),
        }
    }

    async fn release(&mut self) -> Result<Release> {
        self.leave().await
    }

    async fn changed(&mut self) {
        let hints: Vec<_> = self.members.iter_mut().filter_map(Member::idle).map(Claim::changed).collect();
        match hints.is_empty() {
            true => std::future::pending().await,
            false => drop(select_all(hints).await),
        }
    }
}
