//! The keeper: one task that owns one claim from its first attempt to its release.
//!
//! ```text
//! contend   attempt, sleep until a hint or `retry_in`, attempt …      until granted, refused, or the caller is gone
//! hold      sleep, renew, sleep, renew …                              until the last guard leaves, or it is lost
//! leave     release, again until the store has confirmed it           or has forgotten the claim by itself
//! ```
//!
//! In place of the release, a hold may be detached: it then goes on without a keeper (`detached.rs`).
//!
//! Over the usual length, so that the whole life of a claim is in one file.
//!
//! The keeper sees one event for a caller's time-out, a `select!` that chose another arm, a dropped future and a dropped
//! guard: the caller is gone.

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
use crate::{
    contract::{Attempt, Claim, Grant, Info, Release, Renewal, Request, Resumption},
    kit::Moment,
    model::{BoxError, ClaimId, Error, Kind, LostReason, Result, Token, Wait},
};

/// After this many failures in a row the caller gets the error. The pauses between them add up to about a second, and the
/// store's own time-outs come on top: callers do not notice a short disturbance, and hear of an outage. A waiter that has
/// been told that the lock is busy is more patient: see [`Row`].
pub(super) const FAILURES: u32 = 5;

/// The first pause after a failure; doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause before a release is sent again after the store refused it or could not write it.
const SLOW_PAUSE: Duration = Duration::from_secs(2);

/// The shortest sleep, and the first pause before a waiter follows one hint too many (see [`FREE_HINTS`]).
const BREATH: Duration = Duration::from_millis(1);

/// A waiter follows this many hints in a row at once. Before each further hint it pauses, for one to eight breaths. A
/// hand-off needs one or two hints; a store that hints all the time would otherwise make the waiter ask all the time.
const FREE_HINTS: u32 = 3;

/// The least time between two renewals that are sent because of hints. A theft is still noticed at once: its hint usually
/// comes long after the last renewal.
const CALM: Duration = Duration::from_millis(20);

/// The most that jitter adds to a sleep. It keeps the waiters of a crashed holder from asking all at the same moment, and
/// is too short to be noticed.
const JITTER: Duration = Duration::from_millis(20);

/// The result of an acquisition: a stake in a hold, or `None` if a single try found the lock busy.
pub(crate) type Outcome = Result<Option<Stake>>;

/// The last failure while waiting, for the error of a caller whose time ran out.
pub(crate) type LastFailure = Arc<Mutex<Option<BoxError>>>;

/// What the task needs to keep one claim.
pub(crate) struct Keeper {
    pub(super) client: Arc<Client>,
    pub(super) request: Request,
    terms: Terms,
    /// The keeper notes each failure here, so that a caller whose wait runs out can tell the reason.
    failure: Option<LastFailure>,
    /// Until when the store may keep the claim because of a detachment, if it has not been renewed since.
    pub(super) detached_until: Option<Moment>,
    /// Id that the hold is detached as, once a guard has asked for that.
    pub(super) ticket: Option<ClaimId>,
    /// Ticket from which the hold was taken over.
    pub(super) resumed_from: Option<ClaimId>,
}

/// How a hold ended.
enum Ending {
    /// The last guard has left, or the hold is lost. If a guard waits for the answer to its release, it gets it here.
    Leave(Option<oneshot::Sender<Result<()>>>),
    /// The claim goes on by itself.
    Detached,
}

/// How the contest ended.
enum Contest {
    Won(Grant, Moment),
    /// A single try: somebody else holds the lock, and nothing of this claim is in the store.
    Refused,
    /// The caller is gone.
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
        Box::new(Self {
            client: Arc::clone(client),
            request,
            terms,
            failure,
            detached_until: None,
            ticket: None,
            resumed_from: None,
        })
    }

    pub(super) fn info(&self) -> &Info {
        self.client.store.backend.info()
    }

    /// Starts a task that acquires the lock and keeps it. It sends the result of the acquisition to `reply`.
    pub(crate) fn start(self: Box<Self>, reply: oneshot::Sender<Outcome>) {
        self.spawn(|keeper, claim| keeper.run(claim, reply));
    }

    /// Starts a task that takes a detached hold back and keeps it.
    pub(crate) fn start_to_resume(
        self: Box<Self>,
        ticket: ClaimId,
        token: Option<Token>,
        reply: oneshot::Sender<Outcome>,
    ) {
        self.spawn(move |keeper, claim| keeper.resume(claim, ticket, token, reply));
    }

    /// Starts a task that releases a detached hold.
    pub(crate) fn start_to_give_back(self: Box<Self>, reply: oneshot::Sender<Result<()>>) {
        self.spawn(|keeper, claim| keeper.give_back(claim, reply));
    }

    /// Starts a task that asks for what an earlier request of the same claim may have been granted: see
    /// [`start_together`](Self::start_together).
    pub(super) fn start_again(self: Box<Self>, reply: oneshot::Sender<Outcome>) {
        self.spawn(|keeper, claim| keeper.run_again(claim, reply));
    }

    /// Starts a task that keeps a claim that was granted already.
    pub(super) fn start_to_keep(self: Box<Self>, claim: Box<dyn Claim>, grant: Grant, sent: Moment) -> Stake {
        let client = Arc::clone(&self.client);
        let (hold, stake) = self.begin_hold(grant, sent);
        start(&client.tasks, self.keep(claim, hold));
        stake
    }

    fn spawn<Life: Future<Output = ()> + Send + 'static>(
        self: Box<Self>,
        life: impl FnOnce(Box<Self>, Box<dyn Claim>) -> Life,
    ) {
        let claim = self.client.store.backend.claim(self.request.clone());
        let client = Arc::clone(&self.client);
        start(&client.tasks, life(self, claim));
    }

    async fn run(self: Box<Self>, claim: Box<dyn Claim>, reply: oneshot::Sender<Outcome>) {
        // The client may have been closed between the call and the start of this task.
        if self.client.closing.is_cancelled() {
            reply.send(Err(self.closed())).ok();
            return;
        }
        self.compete(claim, reply, false).await;
    }

    /// As [`run`](Self::run), for a claim that may be in the store already: whoever does not ask any more must release it.
    async fn run_again(self: Box<Self>, mut claim: Box<dyn Claim>, reply: oneshot::Sender<Outcome>) {
        if self.client.closing.is_cancelled() {
            reply.send(Err(self.closed())).ok();
        } else if !reply.is_closed() {
            return self.compete(claim, reply, true).await;
        }
        self.leave(claim.as_mut(), None, None).await;
    }

    /// `asked` tells whether the claim may be in the store already.
    async fn compete(
        self: Box<Self>,
        mut claim: Box<dyn Claim>,
        mut reply: oneshot::Sender<Outcome>,
        mut asked: bool,
    ) {
        let begun = Begun::now();
        // A driver that panics may have left something in the store, so a panic is a failure that ends with a release.
        let contest = self.contend(claim.as_mut(), &mut reply, &mut asked);
        let contest = AssertUnwindSafe(contest).catch_unwind().await;
        let contest = contest.unwrap_or_else(|_| Contest::Failed(self.panicked()));
        observe::contest_over(&self.request, self.info(), begun, contest.word());
        match contest {
            Contest::Won(grant, sent) => {
                self.keep_for(claim, grant, sent, reply).await;
            }
            Contest::Refused => {
                reply.send(Ok(None)).ok();
            }
            Contest::Deserted | Contest::Failed(_) => {
                if let Contest::Failed(error) = contest {
                    reply.send(Err(error)).ok();
                }
                // A claim that was never asked for is not in the store.
                if asked {
                    Box::pin(self.leave(claim.as_mut(), None, None)).await;
                }
            }
        }
    }

    /// Hands the hold over to the caller, and keeps it until it ends.
    pub(super) async fn keep_for(
        self: Box<Self>,
        claim: Box<dyn Claim>,
        grant: Grant,
        sent: Moment,
        reply: oneshot::Sender<Outcome>,
    ) {
        let (hold, stake) = self.begin_hold(grant, sent);
        let keeping = self.keep(claim, hold);
        // If the caller is gone, this drops the stake, which releases the hold like any dropped guard.
        reply.send(Ok(Some(stake))).ok();
        keeping.await;
    }

    pub(super) fn begin_hold(&self, grant: Grant, sent: Moment) -> (Arc<Hold>, Stake) {
        let deadline = sent.after(grant.valid_for);
        let end = self.terms.longest.map(|longest| sent.after(longest));
        let hold = Arc::new(Hold::new(&self.request, self.info(), grant.token, deadline, end));
        let stake = Stake::new(Arc::clone(&hold), Side::of(self.request.kind));
        (hold, stake)
    }

    async fn contend(
        &self,
        claim: &mut dyn Claim,
        reply: &mut oneshot::Sender<Outcome>,
        asked: &mut bool,
    ) -> Contest {
        let (mut row, mut hints) = (Row::default(), 0);
        loop {
            let permit = tokio::select! {
                biased;
                permit = self.client.admit() => permit,
                () = reply.closed() => return Contest::Deserted,
                () = self.client.closing.cancelled() => return Contest::Failed(self.closed()),
            };
            // After the admission: the time that was spent in its queue is no part of the hold.
            let sent = Moment::now();
            *asked = true;
            // This call is never dropped in flight, because its outcome decides what there is to release.
            let answer = claim.attempt().await;
            drop(permit);
            // At least three attempts in a ttl, because each attempt also keeps the waiting claim alive in the store.
            let nap = match answer {
                Ok(Attempt::Granted(grant)) if !sent.after(grant.valid_for).has_passed() => {
                    return Contest::Won(grant, sent);
                }
                Ok(Attempt::Busy { .. }) if self.request.wait == Wait::Never => return Contest::Refused,
                Ok(Attempt::Busy { retry_in }) => {
                    row = Row { queued: true, ..Row::default() };
                    jittered(retry_in.min(self.request.ttl / 3))
                }
                failed => {
                    // An `Ok` here is a grant that had expired before its answer came. It counts as a failure: another
                    // attempt may be quicker.
                    let error = failed.err().unwrap_or_else(|| self.too_late(sent));
                    let may_pass = self.request.wait != Wait::Never && error.is_transient();
                    if !may_pass || row.is_over(sent, self.request.ttl) {
                        return Contest::Failed(error);
                    }
                    observe::failed(&self.request, self.info(), "attempt", &error);
                    if let Some(failure) = &self.failure {
                        *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.into());
                    }
                    spread(pause(row.failures)).min(self.request.ttl / 3).max(BREATH)
                }
            };
            let hint = async {
                // After a failure hints are ignored, so that they cannot make the waiter hammer a store that is down.
                if row.failures > 0 {
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
                    return Contest::Failed(self.closed());
                }
                () = hint => hints += 1,
                () = sleep(nap) => hints = 0,
            }
            if reply.is_closed() {
                return Contest::Deserted;
            }
        }
    }

    pub(super) fn closed(&self) -> Error {
        Error::Closed { name: self.request.name.clone() }
    }

    pub(super) fn panicked(&self) -> Error {
        Error::Unavailable { store: self.info().store, source: "its driver panicked".into() }
    }

    pub(super) fn too_late(&self, sent: Moment) -> Error {
        let late = format!(
            "the lock was granted, but its time was over when the answer came, after {:?}",
            sent.elapsed()
        );
        Error::Unavailable { store: self.info().store, source: late.into() }
    }

    /// Renews the hold until it ends, then releases the claim.
    pub(super) fn keep(
        mut self: Box<Self>,
        mut claim: Box<dyn Claim>,
        hold: Arc<Hold>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let begun = Begun::now();
        // If the runtime shuts down and drops the future, the alarm tells the holder: also if it was never polled.
        let alarm = Alarm(Some(Arc::clone(&hold)));
        async move {
            let ending = AssertUnwindSafe(self.hold(&mut claim, &hold)).catch_unwind().await;
            let ending = ending.unwrap_or_else(|_| {
                hold.abandon();
                Ending::Leave(None)
            });
            observe::hold_over(&self.request, self.info(), begun, hold.loss());
            alarm.silence();
            if let Ending::Leave(farewell) = ending {
                // Boxed: otherwise every keeper would reserve the memory of this future while it holds.
                Box::pin(self.leave(claim.as_mut(), Some(&hold), farewell)).await;
            }
        }
    }

    async fn hold(&mut self, claim: &mut Box<dyn Claim>, hold: &Hold) -> Ending {
        let mut asked = Instant::now();
        let mut renewal = self.next_renewal(hold);
        let mut hinted = false;
        // When to repeat a downgrade or a detachment that failed, and how often it has failed.
        let (mut again, mut failures) = (None::<Instant>, 0);
        loop {
            let next = if hinted { renewal.min(asked + CALM) } else { renewal };
            // Sleep for a breath at least: shortly before the deadline the interval shrinks towards zero, and a store that
            // fails then must not be hammered.
            let next = next.max(Instant::now() + BREATH);
            let wish = tokio::select! {
                biased;
                wish = hold.wish(again.is_none()) => match wish {
                    Wish::Leave(farewell) => return Ending::Leave(farewell),
                    wish => Some(wish),
                },
                () = claim.changed(), if !hinted && self.terms.renewal != Cadence::Never => {
                    hinted = true;
                    continue;
                }
                () = sleep_until(next) => None,
                () = sleep_until(again.unwrap_or(next)), if again.is_some() => {
                    again = None;
                    continue;
                }
            };
            if hold.loss().is_some() {
                return Ending::Leave(None);
            }
            if let Some(wish) = wish {
                // Boxed: these are rare, and every keeper would otherwise reserve the memory of their large futures.
                let changed = match wish {
                    Wish::Detach(lasting) => match Box::pin(self.detach(claim.as_mut(), hold, lasting)).await
                    {
                        Ok(true) => return Ending::Detached,
                        told => told.map(|_| ()),
                    },
                    _ => Box::pin(self.downgrade(claim, hold)).await,
                };
                match (changed, wish) {
                    (Ok(()), _) => renewal = self.next_renewal(hold),
                    // The next renewal does not become later: a change that fails again and again must not cost the lock.
                    (Err(error), _) if error.is_transient() => {
                        failures += 1;
                        again = Some(Instant::now() + pause(failures));
                        renewal = renewal.min(self.next_renewal(hold));
                    }
                    (Err(error), Wish::Detach(_)) => {
                        if self.detached_until.is_some() {
                            // Undoes what the store may have done before it refused, so that the guard holds as before.
                            self.renew(claim.as_mut(), hold).await;
                            renewal = self.next_renewal(hold);
                        }
                        hold.refuse_detach(error);
                    }
                    (Err(error), _) => hold.refuse_downgrade(error),
                }
            } else {
                (asked, hinted) = (Instant::now(), false);
                if self.terms.renewal != Cadence::Never {
                    self.renew(claim.as_mut(), hold).await;
                }
                renewal = self.next_renewal(hold);
            }
            if hold.loss().is_some() {
                return Ending::Leave(None);
            }
        }
    }

    /// When to renew next. If no renewal is to follow: when the hold ends.
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

    async fn renew(&mut self, claim: &mut dyn Claim, hold: &Hold) {
        let sent = Moment::now();
        // After a detachment whose outcome is unknown, the store may know the hold by the id of its ticket.
        let unsure = self.ticket.filter(|_| self.detached_until.is_some());
        let renewal = async {
            match unsure {
                None => claim.renew().await,
                Some(ticket) => claim.resume(ticket).await.map(|resumption| match resumption {
                    Resumption::Resumed { grant, .. } => Renewal::Renewed { valid_for: grant.valid_for },
                    Resumption::Gone => Renewal::Lost,
                }),
            }
        };
        match watched(hold, renewal).await {
            Ok(Renewal::Renewed { valid_for }) => {
                self.detached_until = None;
                hold.extend(sent.after(valid_for));
            }
            Ok(Renewal::Lost) => hold.lose(LostReason::Taken),
            // After an error nobody knows the state, which is no loss: the lock is ours until the deadline.
            Err(error) => observe::failed(&self.request, self.info(), "renewal", &error),
        }
    }

    /// Replaces the exclusive claim by a read claim with the same id.
    ///
    /// # Errors
    /// The store's own. The lock is then held as before.
    async fn downgrade(&mut self, claim: &mut Box<dyn Claim>, hold: &Hold) -> Result<()> {
        let mut request = self.request.clone();
        request.kind = Kind::Read;
        // A single try: if the hold is gone, the read claim must not join the queue.
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
            // Busy, or a grant with another token: our hold was gone before. The release that follows removes the new
            // grant.
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

    /// Releases the claim, and repeats that until the store has confirmed it or has forgotten the claim by itself. A hold that
    /// is to stay taken for some time is detached for what is left of it.
    pub(super) async fn leave(
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
        let stay = hold.and_then(|hold| match hold.offered_until() {
            Some(until) => Some((until, self.resumed_from?)),
            None => Some((
                hold.stays_until()?,
                self.ticket.unwrap_or_else(|| ClaimId::random_for(&self.request.who)),
            )),
        });
        // A detachment whose answer was lost keeps the claim in the store for longer than a ttl.
        let detached = self.detached_until.map(Moment::remaining).unwrap_or_default();
        let kept = self.request.ttl + detached;
        let release = release_until_forgotten(claim, self.info(), kept, stay, |error| {
            has_failed = true;
            observe::failed(&self.request, self.info(), "release", &error);
            // The caller hears of a refusal at once, since waiting longer would not change it.
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
            // `Gone` is a loss only if no release failed before: a failed one may have removed the claim without an answer.
            (Some(Release::Gone), Some(hold)) if !has_failed && hold.found_gone() => {
                observe::found_gone(&self.request, self.info());
                Err(hold.lost_error())
            }
            _ => Ok(()),
        };
        tell(told);
    }
}

/// Releases a claim, and repeats that until the store confirms it; returns the store's answer. Gives up `kept` after the
/// first failure, because the store has then forgotten the claim by itself, and returns `None`.
///
/// A store with sessions does not forget a claim while the session lives, so there the release is repeated without an end
/// until the store confirms it. After a refusal the release is repeated more slowly, because somebody may repair the store
/// meanwhile.
///
/// Until the moment in `stay` has passed, the claim is not released but detached as the id in it, for the time that is left.
pub(crate) async fn release_until_forgotten(
    claim: &mut dyn Claim,
    info: &Info,
    kept: Duration,
    stay: Option<(Moment, ClaimId)>,
    mut failed: impl FnMut(Error),
) -> Option<Release> {
    let mut forgotten = None;
    let (mut failures, mut is_gone) = (0, false);
    loop {
        let answer = match stay.filter(|(until, _)| !is_gone && !until.has_passed()) {
            None if is_gone => claim.release().await.map(|_| Release::Gone),
            None => claim.release().await,
            Some((until, ticket)) => {
                // Stores count whole milliseconds, and the lock must not be free before its time.
                let left = until.remaining() + Duration::from_millis(1);
                match claim.detach(left.clamp(*info.leases.start(), *info.leases.end()), ticket).await {
                    Ok(Renewal::Renewed { .. }) => Ok(Release::Done),
                    // A store of several members may have kept the claim on a few of them. If this release fails, it is
                    // repeated, and not the detachment.
                    Ok(Renewal::Lost) => {
                        is_gone = true;
                        claim.release().await.map(|_| Release::Gone)
                    }
                    Err(error) => Err(error),
                }
            }
        };
        let error = match answer {
            Ok(release) => return Some(release),
            Err(error) => error,
        };
        let refused = matches!(error, Error::Refused { .. } | Error::Unwritable { .. });
        failed(error);
        failures += 1;
        let forgotten = *forgotten.get_or_insert_with(|| Moment::now().after(kept));
        if info.session.is_none() && forgotten.has_passed() {
            return None;
        }
        let nap = if refused { SLOW_PAUSE.min(kept / 3) } else { pause(failures) };
        sleep(jittered(nap)).await;
    }
}

/// The failures of a waiter since the store's last answer.
#[derive(Default)]
struct Row {
    failures: u32,
    /// When the first of the failed attempts was sent.
    since: Option<Moment>,
    /// Whether the store has answered this waiter before. The waiter then has a place in the queue, which a short outage must
    /// not cost.
    queued: bool,
}

impl Row {
    /// Counts the failure of the attempt that was sent at `sent`. `true` if the caller is to hear of it: after [`FAILURES`], and
    /// if the waiter is queued not before the store has been silent for a ttl.
    fn is_over(&mut self, sent: Moment, ttl: Duration) -> bool {
        self.failures = self.failures.saturating_add(1);
        let silent = self.since.get_or_insert(sent).elapsed();
        self.failures >= FAILURES && (!self.queued || silent >= ttl)
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

/// Starts a task of the engine.
#[expect(
    clippy::disallowed_methods,
    reason = "the keeper: one task a claim, which the client's close waits for"
)]
pub(super) fn start(tasks: &TaskTracker, life: impl Future<Output = ()> + Send + 'static) {
    // Boxed, because tokio moves what it is given to spawn several times, and keepers are large.
    tasks.spawn(Box::pin(life));
}

/// Runs a call to a driver to its end, as a task of its own. RedLock does this with calls to members that answer late: such
/// a call must not be dropped in flight, and the majority must not wait for it.
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

/// When dropped, tells the holder that the keeper has ended without releasing.
struct Alarm(Option<Arc<Hold>>);

impl Alarm {
    fn silence(mut self) {
        self.0 = None;
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(hold) = &self.0 {
            hold.abandon();
        }
    }
}

/// Waits for the store's answer, however long it takes. If the deadline passes meanwhile, tells the holder at that moment.
pub(super) async fn watched<T>(hold: &Hold, answer: impl Future<Output = T>) -> T {
    in_time(hold, answer, || hold.expire()).await
}

/// Waits for the store's answer, however long it takes. If the deadline passes meanwhile, calls `late` at that moment.
async fn in_time<T>(hold: &Hold, answer: impl Future<Output = T>, late: impl FnOnce()) -> T {
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => return answer,
        () = sleep_until(hold.deadline().instant()) => late(),
    }
    answer.await
}

pub(super) fn pause(failures: u32) -> Duration {
    PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_PAUSE)
}

/// A pause after a failure. Up to half of it is added at random, because an outage hits all waiters of a store at the same
/// moment, and they must not come back in step.
fn spread(pause: Duration) -> Duration {
    pause + (pause / 2).mul_f64(fastrand::f64())
}

fn jittered(nap: Duration) -> Duration {
    nap.max(BREATH) + (nap / 10).min(JITTER).mul_f64(fastrand::f64())
}
