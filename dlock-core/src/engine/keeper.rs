//! The keeper: one task that owns one claim from its first attempt to its release.
//!
//! ```text
//! contend   attempt, sleep until a hint or `retry_in`, attempt …      until granted, refused, or the caller is gone
//! hold      sleep, renew, sleep, renew …                              until the last guard leaves, or it is lost
//! leave     release, again until the store has confirmed it           or has forgotten the claim by itself
//! ```
//!
//! One file, though a long one: a claim's life is told here from its beginning to its end.
//!
//! A caller's time-out, a `select!` that chose another arm, a dropped future and a dropped guard are one event
//! here: the other end is gone.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::task::TaskTracker;

use super::{
    Cadence, Client, Hold, Stake, Terms,
    hold::{Side, Wish},
    observe::{self, Begun},
};
use crate::driver::{
    Attempt, Claim, Error, Grant, Info, Kind, LostReason, Moment, Release, Renewal, Request, Result, Source,
    Wait,
};

/// Failures in a row after which a waiting caller is told instead of waiting on. With the pauses between them, about a
/// second beside the store's own time-outs: a blip is ridden out, an outage is reported.
const FAILURES: u32 = 5;

/// The first pause after a failure; doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause before a release is repeated that the store refused, or could not write.
const SLOW_PAUSE: Duration = Duration::from_secs(2);

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

/// What became of an acquisition: a stake in a hold, or `None` for one try of a busy lock.
pub(crate) type Outcome = Result<Option<Stake>>;

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
    /// Boxed, because there is one keeper for each held lock, and an async fn may store its argument twice.
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
    #[expect(
        clippy::disallowed_methods,
        reason = "the keeper: one task a claim, which the client's close waits for"
    )]
    pub(crate) fn start(self: Box<Self>, reply: oneshot::Sender<Outcome>) {
        let claim = self.client.store.backend.claim(self.request.clone());
        let tasks = self.client.tasks.clone();
        // Boxed, because tokio moves what it is given to spawn several times, and keepers are large.
        tasks.spawn(Box::pin(self.run(claim, reply)));
    }

    async fn run(self: Box<Self>, mut claim: Box<dyn Claim>, mut reply: oneshot::Sender<Outcome>) {
        // Closing may have come between the call and this task.
        if self.client.closing.is_cancelled() {
            reply.send(Err(Error::Closed { name: self.request.name.clone() })).ok();
            return;
        }
        let begun = Begun::now();
        // A driver that panics may have left something in the store, so a panic is a failure that ends with a release.
        let contest = AssertUnwindSafe(self.contend(claim.as_mut(), &mut reply)).catch_unwind().await;
        let contest = contest.unwrap_or_else(|_| Contest::Failed(self.panicked()));
        observe::contest_over(&self.request, self.info(), begun, contest.word());
        match contest {
            Contest::Won(grant, sent) => {
                let (hold, stake) = self.grant(grant, sent);
                // If nobody takes the stake, it is dropped, and the hold ends like any other.
                reply.send(Ok(Some(stake))).ok();
                self.keep(claim, hold).await;
            }
            Contest::Refused => {
                reply.send(Ok(None)).ok();
            }
            Contest::Deserted => Box::pin(self.leave(claim.as_mut(), None, None)).await,
            Contest::Failed(error) => {
                reply.send(Err(error)).ok();
                Box::pin(self.leave(claim.as_mut(), None, None)).await;
            }
        }
    }

    fn grant(&self, grant: Grant, sent: Moment) -> (Arc<Hold>, Stake) {
        let deadline = sent.after(grant.valid_for);
        let end = self.terms.longest.map(|longest| sent.after(longest));
        let hold = Arc::new(Hold::new(&self.request, self.info(), grant.token, deadline, end));
        let stake = Stake::new(Arc::clone(&hold), Side::of(self.request.kind));
        (hold, stake)
    }

    async fn contend(&self, claim: &mut dyn Claim, reply: &mut oneshot::Sender<Outcome>) -> Contest {
        let (mut failures, mut hints) = (0, 0);
        loop {
            let sent = Moment::now();
            // Never dropped in flight: its outcome decides what there is to release.
            let retry_in = match claim.attempt().await {
                Ok(Attempt::Granted(grant)) if !sent.after(grant.valid_for).has_passed() => {
                    return Contest::Won(grant, sent);
                }
                Ok(Attempt::Busy { .. }) if self.request.wait == Wait::Never => return Contest::Refused,
                Ok(Attempt::Busy { retry_in }) => {
                    failures = 0;
                    retry_in
                }
                failed => {
                    // A grant whose time was over when its answer came is not given out: another attempt may be quicker.
                    let error = failed.err().unwrap_or_else(|| self.too_late(sent));
                    let again = self.request.wait != Wait::Never && failures + 1 < FAILURES;
                    if !again || !error.is_transient() {
                        return Contest::Failed(error);
                    }
                    failures += 1;
                    observe::failed(&self.request, self.info(), "attempt", &error);
                    if let Some(failure) = &self.failure {
                        *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.into());
                    }
                    pause(failures)
                }
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

    fn panicked(&self) -> Error {
        Error::Unavailable { store: self.info().store, source: "its driver panicked".into() }
    }

    fn too_late(&self, sent: Moment) -> Error {
        let late = format!(
            "the lock was granted, but its time was over when the answer came, after {:?}",
            sent.elapsed()
        );
        Error::Unavailable { store: self.info().store, source: late.into() }
    }

    /// Holds until it is over, then leaves.
    async fn keep(mut self: Box<Self>, mut claim: Box<dyn Claim>, hold: Arc<Hold>) {
        let begun = Begun::now();
        // If the end of the runtime ends this task early, the holder is told.
        let alarm = Alarm(&hold);
        let farewell = AssertUnwindSafe(self.hold(&mut claim, &hold)).catch_unwind().await;
        let farewell = farewell.unwrap_or_else(|_| {
            hold.abandon();
            None
        });
        observe::hold_over(&self.request, self.info(), begun, hold.loss());
        std::mem::forget(alarm);
        // Boxed, because every keeper would carry it while it holds.
        Box::pin(self.leave(claim.as_mut(), Some(&hold), farewell)).await;
    }

    async fn hold(&mut self, claim: &mut Box<dyn Claim>, hold: &Hold) -> Option<oneshot::Sender<Result<()>>> {
        let mut asked = Instant::now();
        let mut renewal = self.next_renewal(hold);
        let mut hinted = false;
        // When to repeat a downgrade that failed, and how often it has failed.
        let (mut downgrade_again, mut failures) = (None::<Instant>, 0);
        loop {
            let next = if hinted { renewal.min(asked + CALM) } else { renewal };
            // Never shorter than a breath, so that a store that fails at the last moment is not hammered.
            let next = next.max(Instant::now() + BREATH);
            let downgrade = tokio::select! {
                biased;
                wish = hold.wish(downgrade_again.is_none()) => match wish {
                    Wish::Leave(farewell) => return farewell,
                    Wish::Downgrade => true,
                },
                () = claim.changed(), if !hinted && self.terms.renewal != Cadence::Never => {
                    hinted = true;
                    continue;
                }
                () = sleep_until(next) => false,
                () = sleep_until(downgrade_again.unwrap_or(next)), if downgrade_again.is_some() => {
                    downgrade_again = None;
                    continue;
                }
            };
            if hold.loss().is_some() {
                return None;
            }
            if downgrade {
                // Boxed, because it is rare and large, and every keeper would carry it.
                match Box::pin(self.downgrade(claim, hold)).await {
                    Ok(()) => renewal = self.next_renewal(hold),
                    // The renewal stays due when it was: a downgrade that fails again and again must not cost the lock.
                    Err(error) if error.is_transient() => {
                        failures += 1;
                        downgrade_again = Some(Instant::now() + pause(failures));
                    }
                    Err(error) => hold.refuse_downgrade(error),
                }
            } else {
                (asked, hinted) = (Instant::now(), false);
                if self.terms.renewal != Cadence::Never {
                    self.renew(claim.as_mut(), hold).await;
                }
                renewal = self.next_renewal(hold);
            }
            if hold.loss().is_some() {
                return None;
            }
        }
    }

    /// When to renew next; where that is of no use, when the hold ends.
    fn next_renewal(&self, hold: &Hold) -> Instant {
        let left = hold.deadline().remaining();
        let nap = match self.terms.renewal {
            _ if hold.outlasts_its_end() => left,
            Cadence::Third => left / 3,
            Cadence::Every(cadence) => cadence.min(left / 2),
            Cadence::Never => left,
        };
        Instant::now() + nap
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
    ///
    /// # Errors
    /// The lock is held as before.
    async fn downgrade(&mut self, claim: &mut Box<dyn Claim>, hold: &Hold) -> Result<()> {
        let mut request = self.request.clone();
        request.kind = Kind::Read;
        // If the hold is gone after all, the read claim must not join the queue.
        request.wait = Wait::Never;
        let mut reader = self.client.store.backend.claim(request.clone());
        let sent = Moment::now();
        match watched(hold, reader.attempt()).await {
            Ok(Attempt::Granted(grant)) if grant.token == hold.token => {
                (self.request, *claim) = (request, reader);
                if hold.extend(sent.after(grant.valid_for)) {
                    hold.confirm_downgrade();
                }
                Ok(())
            }
            // Busy, or a grant with another token: our hold was gone. The release that follows removes the new one.
            Ok(_) => {
                hold.lose(LostReason::Taken);
                Ok(())
            }
            Err(error) => {
                observe::failed(&self.request, self.info(), "downgrade", &error);
                Err(error)
            }
        }
    }

    /// Releases, again and again until it is confirmed or the store has forgotten the claim by itself.
    async fn leave(
        &self,
        claim: &mut dyn Claim,
        hold: Option<&Hold>,
        farewell: Option<oneshot::Sender<Result<()>>>,
    ) {
        let farewell = Mutex::new(farewell);
        let tell = |told| {
            if let Some(reply) = farewell.lock().unwrap_or_else(PoisonError::into_inner).take() {
                reply.send(told).ok();
            }
        };
        let mut has_failed = false;
        let release = release_until_forgotten(claim, self.info(), self.request.ttl, |error| {
            has_failed = true;
            observe::failed(&self.request, self.info(), "release", &error);
            // A refusal is told at once: waiting for what the store will not do is of no use to the caller.
            let is_past = || hold.is_some_and(|hold| hold.deadline().has_passed());
            if !error.is_transient() || is_past() {
                tell(Err(error));
            }
        });
        let released = match hold {
            Some(hold) => in_time(hold, release, || tell(Err(hold.unanswered()))).await,
            None => release.await,
        };
        let told = match (released, hold) {
            // After a failure an earlier release may have removed the claim: then `Gone` is no loss.
            (Some(Release::Gone), Some(hold)) if !has_failed && hold.found_gone() => {
                observe::found_gone(&self.request, self.info());
                Err(hold.lost_error())
            }
            _ => Ok(()),
        };
        tell(told);
    }
}

/// Releases a claim, and repeats that until the store has confirmed it: the answer is the store's. `None` if the store has
/// forgotten the claim by itself, a ttl after the first failure. A store with sessions forgets nothing while the session
/// lives, so there the release is repeated until the claim says that it is done. A refusal only slows the repetition, because
/// somebody may see to the store meanwhile.
pub(crate) async fn release_until_forgotten(
    claim: &mut dyn Claim,
    info: &Info,
    ttl: Duration,
    mut failed: impl FnMut(Error),
) -> Option<Release> {
    let mut forgotten = None;
    let mut failures = 0;
    loop {
        let error = match claim.release().await {
            Ok(release) => return Some(release),
            Err(error) => error,
        };
        let refused = matches!(error, Error::Refused { .. } | Error::Unwritable { .. });
        failed(error);
        failures += 1;
        let forgotten = *forgotten.get_or_insert_with(|| Moment::now().after(ttl));
        if info.session.is_none() && forgotten.has_passed() {
            return None;
        }
        let nap = if refused { SLOW_PAUSE.min(ttl / 3) } else { pause(failures) };
        sleep(jittered(nap)).await;
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

/// Runs a call to a driver to its end, as a task of its own. A RedLock uses it for members that answer late: the call must
/// not be dropped in flight, and must not hold up the majority.
#[expect(
    clippy::disallowed_methods,
    reason = "a call to a member bounds itself, and the client's close waits for it"
)]
pub(crate) fn run_to_end<T: Send + 'static>(
    tasks: &TaskTracker,
    call: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    tasks.spawn(call)
}

/// Tells the holder if the keeper ends before it has let go.
struct Alarm<'a>(&'a Hold);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// Waits for the store's answer to the end, but tells the holder when the deadline passes meanwhile.
async fn watched<T>(hold: &Hold, answer: impl Future<Output = T>) -> T {
    in_time(hold, answer, || hold.expire()).await
}

/// Waits for the store's answer to the end, but calls `late` when the deadline passes meanwhile.
async fn in_time<T>(hold: &Hold, answer: impl Future<Output = T>, late: impl FnOnce()) -> T {
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => return answer,
        () = sleep_until(hold.deadline().instant()) => late(),
    }
    answer.await
}

fn pause(failures: u32) -> Duration {
    PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_PAUSE)
}

fn jittered(nap: Duration) -> Duration {
    nap.max(BREATH) + (nap / 10).min(JITTER).mul_f64(fastrand::f64())
}
