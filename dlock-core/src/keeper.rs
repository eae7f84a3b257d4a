//! The keeper: one task that owns one claim from its first attempt to its release.
//!
//! ```text
//! contend   attempt, sleep until a hint or `retry_in`, attempt …      until granted, refused, or the caller is gone
//! hold      sleep, renew, sleep, renew …                              until the last guard leaves, or it is lost
//! leave     release, again until the store has confirmed it           at the longest for one ttl after a failure
//! ```
//!
//! One file, though a long one: a claim's life is told here from its beginning to its end.
//!
//! A caller's time-out, a `select!` that chose another arm, a dropped future and a dropped guard are one event
//! here: the other end is gone.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    Attempt, Claim, Error, Grant, Guard, Info, Kind, LostReason, Release, Renewal, Request, Result, Wait,
    clock::Moment,
    error::Source,
    hold::{Hold, Wish},
    locks::Client,
    observe::{self, Begun},
    options::{Cadence, Terms},
    stake::Side,
};

/// Failures in a row after which a waiting caller is told instead of waiting on. With the pauses between them, about a
/// second beside the store's own time-outs: a blip is ridden out, an outage is reported.
const FAILURES: u32 = 5;

/// The first pause after a failure; doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The shortest sleep, and the first pause after hints that did not pay.
const BREATH: Duration = Duration::from_millis(1);

/// Hints in a row that a waiter follows at once; from then on it pauses before each, up to eight breaths. A hand-off
/// needs one or two, a chatty store would have us ask for ever.
const FREE_HINTS: u32 = 3;

/// The least time between two renewals that hints make us ask for. A theft is seen at once all the same, because the
/// renewal before it is long past.
const CALM: Duration = Duration::from_millis(20);

/// The most that jitter adds to a sleep: spreads the waiters of a crashed holder without delaying them noticeably.
const JITTER: Duration = Duration::from_millis(20);

/// What became of an acquisition: a guard, or `None` for one try of a busy lock.
pub(crate) type Outcome = Result<Option<Guard>>;

/// The last failure while waiting, for the error of a caller whose time ran out.
pub(crate) type LastFailure = Arc<Mutex<Option<Source>>>;

/// A claim and all that is needed to keep it.
pub(crate) struct Keeper {
    client: Arc<Client>,
    request: Request,
    terms: Terms,
    /// Where a caller whose time may run out looks for the reason.
    failure: Option<LastFailure>,
}

/// How the contest ended.
enum Contest {
    Won(Grant, Moment),
    /// One try, somebody else holds it, and nothing of ours is in the store.
    Refused,
    /// Nobody is there any more to give the lock to.
    Deserted,
    Failed(Error),
}

impl Keeper {
    /// Boxed, because a hundred thousand held locks are as many keepers: futures hold what they are given twice.
    pub(crate) fn new(
        client: &Arc<Client>,
        request: Request,
        terms: Terms,
        failure: Option<LastFailure>,
    ) -> Box<Self> {
        Box::new(Self { client: Arc::clone(client), request, terms, failure })
    }

    fn info(&self) -> &Info {
        self.client.store.backend.info()
    }

    /// Starts the task; what becomes of the acquisition is sent as `reply`.
    pub(crate) fn start(self: Box<Self>, reply: oneshot::Sender<Outcome>) {
        let claim = self.client.store.backend.claim(self.request.clone());
        let tasks = self.client.tasks.clone();
        // Boxed, because tokio moves what it is given to spawn several times, and keepers are large.
        tasks.spawn(Box::pin(self.run(claim, reply)));
    }

    /// Starts the task for a claim that was granted already, asked for at `sent`.
    pub(crate) fn start_held(self: Box<Self>, claim: Box<dyn Claim>, grant: Grant, sent: Moment) -> Guard {
        let (hold, guard) = self.grant(grant, sent);
        let tasks = self.client.tasks.clone();
        tasks.spawn(Box::pin(self.keep(claim, hold)));
        guard
    }

    async fn run(self: Box<Self>, mut claim: Box<dyn Claim>, mut reply: oneshot::Sender<Outcome>) {
        // Closing may have come between the call and this task.
        if self.client.closing.is_cancelled() {
            reply.send(Err(Error::Closed { name: self.request.name.clone() })).ok();
            return;
        }
        let begun = Begun::now();
        let contest = self.contend(claim.as_mut(), &mut reply).await;
        observe::contest_over(&self.request, self.info(), begun, contest.word());
        match contest {
            Contest::Won(grant, sent) => {
                let (hold, guard) = self.grant(grant, sent);
                // If nobody takes the guard, it is dropped, and the hold ends like any other.
                reply.send(Ok(Some(guard))).ok();
                self.keep(claim, hold).await;
            }
            Contest::Refused => {
                reply.send(Ok(None)).ok();
            }
            Contest::Deserted => self.leave(claim.as_mut(), None, None).await,
            Contest::Failed(error) => {
                reply.send(Err(error)).ok();
                self.leave(claim.as_mut(), None, None).await;
            }
        }
    }

    fn grant(&self, grant: Grant, sent: Moment) -> (Arc<Hold>, Guard) {
        let deadline = sent.after(grant.valid_for);
        let hold = Arc::new(Hold::new(&self.request, self.info(), grant.token, deadline));
        let guard = Guard::new(Arc::clone(&hold), Side::of(self.request.kind));
        (hold, guard)
    }

    async fn contend(&self, claim: &mut dyn Claim, reply: &mut oneshot::Sender<Outcome>) -> Contest {
        let (mut failures, mut hints) = (0, 0);
        loop {
            let sent = Moment::now();
            // Never dropped in flight: its outcome decides what there is to release.
            let retry_in = match claim.attempt().await {
                Ok(Attempt::Granted(grant)) => return Contest::Won(grant, sent),
                Ok(Attempt::Busy { .. }) if self.request.wait == Wait::Never => return Contest::Refused,
                Ok(Attempt::Busy { retry_in }) => {
                    failures = 0;
                    retry_in
                }
                Err(error)
                    if error.is_transient()
                        && self.request.wait != Wait::Never
                        && failures + 1 < FAILURES =>
                {
                    failures += 1;
                    observe::failed(&self.request, self.info(), "attempt", &error);
                    if let Some(failure) = &self.failure {
                        *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.into());
                    }
                    pause(failures)
                }
                Err(error) => return Contest::Failed(error),
            };
            // The cap is the heartbeat of a waiting claim.
            let nap = jittered(retry_in.min(self.request.ttl / 3));
            let hint = async {
                // After a failure only time helps: a hint would make us hammer a store that is down.
                if failures > 0 {
                    std::future::pending::<()>().await;
                }
                claim.changed().await;
                if hints >= FREE_HINTS {
                    sleep(BREATH * (1 << (hints - FREE_HINTS).min(3))).await;
                }
            };
            tokio::select! {
                biased;
                () = reply.closed() => return Contest::Deserted,
                () = self.client.closing.cancelled() => {
                    return Contest::Failed(Error::Closed { name: self.request.name.clone() });
                }
                () = hint => hints += 1,
                () = sleep(nap) => hints = 0,
            }
            if reply.is_closed() {
                return Contest::Deserted;
            }
        }
    }

    /// Holds until it is over, then leaves.
    async fn keep(mut self: Box<Self>, mut claim: Box<dyn Claim>, hold: Arc<Hold>) {
        let begun = Begun::now();
        // Whatever ends this task early, a panic in a driver or the end of the runtime, the holder is told.
        let alarm = Alarm(&hold);
        let farewell = self.hold(&mut claim, &hold).await;
        observe::hold_over(&self.request, self.info(), begun, hold.loss());
        std::mem::forget(alarm);
        self.leave(claim.as_mut(), Some(&hold), farewell).await;
    }

    async fn hold(&mut self, claim: &mut Box<dyn Claim>, hold: &Hold) -> Option<oneshot::Sender<Result<()>>> {
        let mut asked = Instant::now();
        let mut hinted = false;
        loop {
            let until = hold.deadline();
            let nap = match self.terms.renewal {
                _ if hinted => CALM.saturating_sub(asked.elapsed()),
                Cadence::Third => until.remaining() / 3,
                Cadence::Every(cadence) => cadence.min(until.remaining() / 2),
                Cadence::Never => until.remaining(),
            };
            let downgrade = tokio::select! {
                biased;
                wish = hold.wish() => match wish {
                    Wish::Leave(farewell) => return farewell,
                    Wish::Downgrade => true,
                },
                () = claim.changed(), if !hinted && self.terms.renewal != Cadence::Never => {
                    hinted = true;
                    continue;
                }
                // Never shorter than a breath, so that a store that fails at the last moment is not hammered.
                () = sleep(nap.max(BREATH)) => false,
            };
            hinted = false;
            if hold.loss().is_some() {
                return None;
            }
            asked = Instant::now();
            if downgrade {
                // Boxed, because it is rare and large, and every keeper would carry it.
                Box::pin(self.downgrade(claim, hold)).await;
            } else if self.terms.renewal != Cadence::Never {
                self.renew(claim.as_mut(), hold).await;
            }
            if hold.loss().is_some() {
                return None;
            }
        }
    }

    async fn renew(&self, claim: &mut dyn Claim, hold: &Hold) {
        let sent = Moment::now();
        match watched(hold, claim.renew()).await {
            Ok(Renewal::Renewed { valid_for }) => {
                hold.extend(sent.after(valid_for));
            }
            Ok(Renewal::Lost) => hold.lose(LostReason::Taken),
            // Unknown is not lost: it is ours until the deadline.
            Err(error) => observe::failed(&self.request, self.info(), "renewal", &error),
        }
    }

    /// Puts a read claim of the same id in the place of the exclusive one.
    async fn downgrade(&mut self, claim: &mut Box<dyn Claim>, hold: &Hold) {
        let mut request = self.request.clone();
        request.kind = Kind::Read;
        // If it is gone after all, it must not queue up again.
        request.wait = Wait::Never;
        let mut reader = self.client.store.backend.claim(request.clone());
        let sent = Moment::now();
        match watched(hold, reader.attempt()).await {
            Ok(Attempt::Granted(grant)) if grant.token == hold.token => {
                (self.request, *claim) = (request, reader);
                // A lease ends when it was to end.
                if self.terms.renewal == Cadence::Never || hold.extend(sent.after(grant.valid_for)) {
                    hold.downgraded();
                }
            }
            // Another token is another hold: ours was gone. Leaving removes the new one.
            Ok(_) => hold.lose(LostReason::Taken),
            Err(error) => {
                observe::failed(&self.request, self.info(), "downgrade", &error);
                sleep(PAUSE).await;
            }
        }
    }

    /// Releases, again and again until it is confirmed or the store has forgotten the claim by itself.
    async fn leave(
        &self,
        claim: &mut dyn Claim,
        hold: Option<&Hold>,
        mut farewell: Option<oneshot::Sender<Result<()>>>,
    ) {
        let mut forgotten = None;
        let mut failures = 0;
        loop {
            let error = match claim.release().await {
                Ok(release) => {
                    let told = match hold {
                        // After a failure it may be gone by our own doing.
                        Some(hold) if release == Release::Gone && failures == 0 && hold.found_gone() => {
                            observe::found_gone(&self.request, self.info());
                            Err(hold.lost_error())
                        }
                        _ => Ok(()),
                    };
                    if let Some(reply) = farewell {
                        reply.send(told).ok();
                    }
                    return;
                }
                Err(error) => error,
            };
            observe::failed(&self.request, self.info(), "release", &error);
            failures += 1;
            let forgotten = *forgotten.get_or_insert_with(|| Moment::now().after(self.request.ttl));
            let over = forgotten.has_passed() || !error.is_transient();
            let is_past = || hold.is_some_and(|hold| hold.deadline().has_passed());
            if let Some(reply) = farewell.take_if(|_| over || is_past()) {
                reply.send(Err(error)).ok();
            }
            if over {
                return;
            }
            sleep(jittered(pause(failures))).await;
        }
    }
}

impl Contest {
    fn word(&self) -> &'static str {
        match self {
            Self::Won(..) => "granted",
            Self::Refused => "busy",
            Self::Deserted => "deserted",
            Self::Failed(_) => "failed",
        }
    }
}

/// Sees a call to a driver through that nobody waits for any more: it must not be dropped in flight.
#[expect(clippy::disallowed_methods, reason = "a late member of a RedLock must not hold up the majority")]
pub(crate) fn see_through<T: Send + 'static>(
    call: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(call)
}

/// Tells the holder if the keeper ends before it has let go.
struct Alarm<'a>(&'a Hold);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.0.lose(LostReason::Abandoned);
    }
}

/// Waits for the store's answer to the end, but tells the holder when the deadline passes meanwhile.
async fn watched<T>(hold: &Hold, answer: impl Future<Output = T>) -> T {
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => return answer,
        () = sleep_until(hold.deadline().instant()) => hold.lose(LostReason::Expired),
    }
    answer.await
}

fn pause(failures: u32) -> Duration {
    PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_PAUSE)
}

fn jittered(nap: Duration) -> Duration {
    nap.max(BREATH) + (nap / 10).min(JITTER).mul_f64(fastrand::f64())
}
