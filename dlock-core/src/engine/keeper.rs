//! The keeper: one task that owns one claim from its first attempt to its release.
//!
//! ```text
//! contend   attempt, sleep until a hint or `retry_in`, attempt …
//!           until granted, refused, or the caller leaves
//! keep      sleep, renew, sleep, renew …
//!           until the last guard leaves, or the hold is lost
//! release   release, again until the store has confirmed it
//!           or has forgotten the claim by itself
//! ```
//!
//! Each of these phases has a file of its name. After the release `settle.rs` removes what late
//! requests have created. Instead of being released, a hold may be detached.
//! It then continues without a keeper, see `detached.rs`.
//!
//! A caller's timeout, a `select!` that chose another arm, a dropped future and a dropped guard are
//! the same event for the keeper: the caller leaves.

mod contend;
mod keep;
mod pause;
mod release;
mod settle;

use std::{panic::AssertUnwindSafe, pin::Pin, sync::Arc};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::{sync::oneshot, task::JoinHandle};
use tokio_util::task::TaskTracker;

use super::{
    Client, Hold, HoldRef, Terms,
    hold::Side,
    limits::{GrantTimes, Limits},
    observe::{self, StartTime},
};
use crate::{
    contract::{Claim, Grant, Info, Request},
    kit::Moment,
    model::{BoxError, ClaimId, Error, Result, Token, duration},
};
use contend::AcquisitionEnd;

pub(super) use keep::{KeptHold, reply_or_expire};
pub(super) use pause::with_small_jitter;
pub(crate) use pause::{MAX_FAILURES, retry_pause, with_large_jitter};
pub(super) use release::FinalDetachment;
pub(crate) use release::release_until_forgotten;

/// Reference to the hold that was acquired, or `None` if a single try found the lock busy.
pub(crate) type Outcome = Result<Option<HoldRef>>;

/// Last failure of an attempt, for the error of a caller whose wait limit is reached.
pub(crate) type LastFailure = Arc<Mutex<Option<BoxError>>>;

/// State of the task that keeps one claim.
pub(crate) struct Keeper {
    pub(super) client: Arc<Client>,
    pub(super) request: Request,
    pub(super) terms: Terms,
    /// Receives each failure of an attempt, if the caller has a wait limit.
    failure: Option<LastFailure>,
    /// Number of renewals in a row that have failed for a transient reason.
    failed_renewals: u32,
    /// Whether the outcome of a request for a downgrade is unknown.
    may_be_downgraded: bool,
    /// Boxed, because most claims are never detached. `None` stands for the default.
    pub(super) detachment: Option<Box<Detachment>>,
    /// End of the time for which the store may execute requests that the claim object does not
    /// [report](Claim::late_for): those of a joint attempt or of a claim that was downgraded.
    pub(super) late_until: Option<Moment>,
}

/// The tickets of a claim that may have been detached or taken over by ticket.
#[derive(Clone, Copy, Default)]
pub(super) struct Detachment {
    /// End of the time for which the store may keep the claim because of a detachment. `None`
    /// without a detachment, and once a renewal has undone it.
    pub(super) until: Option<Moment>,
    /// Id that the hold is detached as, once a guard has requested that.
    pub(super) ticket: Option<ClaimId>,
    /// Ticket from which the hold was taken over.
    pub(super) resumed_from: Option<ClaimId>,
    /// Ticket for which a renewal has sent a resumption, to undo a detachment.
    pub(super) resumed_by_renewal: Option<ClaimId>,
}

impl Keeper {
    /// Creates a keeper. Boxed, because there is one keeper for each held lock, and an async fn may
    /// store its argument twice.
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
            failed_renewals: 0,
            may_be_downgraded: false,
            detachment: None,
            late_until: None,
        })
    }

    pub(super) fn detachment(&self) -> Detachment {
        self.detachment.as_deref().copied().unwrap_or_default()
    }

    pub(super) fn info(&self) -> &Info {
        self.client.store.backend.info()
    }

    /// Starts a task that acquires the lock and keeps it. The task sends the result of the
    /// acquisition to `reply`.
    pub(crate) fn start(self: Box<Self>, reply: oneshot::Sender<Outcome>) {
        self.spawn(|keeper, claim| keep_when_granted(Box::pin(keeper.acquire(claim, reply))));
    }

    /// Starts a task that takes over a detached hold and keeps it.
    pub(crate) fn start_resume(
        self: Box<Self>,
        ticket: ClaimId,
        token: Option<Token>,
        reply: oneshot::Sender<Outcome>,
    ) {
        self.spawn(move |keeper, claim| keeper.resume(claim, ticket, token, reply));
    }

    /// Starts a task that releases a detached hold.
    pub(crate) fn start_release_detached(self: Box<Self>, reply: oneshot::Sender<Result<()>>) {
        self.spawn(|keeper, claim| keeper.release_detached(claim, reply));
    }

    /// Starts a task that retries the acquisition of a claim after a
    /// [joint attempt](Self::start_together) whose outcome is unknown.
    pub(super) fn start_retry(self: Box<Self>, reply: oneshot::Sender<Outcome>) {
        self.spawn(|keeper, claim| keep_when_granted(Box::pin(keeper.retry_acquire(claim, reply))));
    }

    /// Starts a task that keeps a claim that was already granted.
    pub(super) fn start_granted(
        self: Box<Self>,
        claim: Box<dyn Claim>,
        grant: Grant,
        times: GrantTimes,
    ) -> HoldRef {
        let client = Arc::clone(&self.client);
        let (hold, hold_ref) = self.begin_hold(&grant, times);
        start(&client.tasks, Granted { keeper: self, claim, hold }.keep());
        hold_ref
    }

    fn spawn<Life: Future<Output = ()> + Send + 'static>(
        self: Box<Self>,
        life: impl FnOnce(Box<Self>, Box<dyn Claim>) -> Life,
    ) {
        let claim = self.client.store.backend.claim(self.request.clone());
        let client = Arc::clone(&self.client);
        start(&client.tasks, life(self, claim));
    }

    /// Acquires the lock. Returns `None` after the end of a claim that was not granted.
    async fn acquire(
        self: Box<Self>,
        claim: Box<dyn Claim>,
        reply: oneshot::Sender<Outcome>,
    ) -> Option<Granted> {
        // The client may have been closed between the call and the start of this task.
        if self.client.closing.is_cancelled() {
            reply.send(Err(self.closed())).ok();
            return None;
        }
        self.contend_or_end(claim, reply, false).await
    }

    /// Retries the acquisition of a claim that may be in the store already. If the caller has left,
    /// releases the claim instead.
    async fn retry_acquire(
        self: Box<Self>,
        mut claim: Box<dyn Claim>,
        reply: oneshot::Sender<Outcome>,
    ) -> Option<Granted> {
        if self.client.closing.is_cancelled() {
            reply.send(Err(self.closed())).ok();
        } else if !reply.is_closed() {
            return self.contend_or_end(claim, reply, true).await;
        }
        self.release_unheld(claim.as_mut()).await;
        self.settle(claim.late_for(), None).await;
        None
    }

    /// Contends for the lock. Ends the claim if it was not granted. `may_be_stored` says whether
    /// the claim may be in the store already.
    async fn contend_or_end(
        self: Box<Self>,
        mut claim: Box<dyn Claim>,
        mut reply: oneshot::Sender<Outcome>,
        mut may_be_stored: bool,
    ) -> Option<Granted> {
        let start = StartTime::now();
        let waiting = observe::count_waiting(&self);
        let contending = self.contend(claim.as_mut(), &mut reply, &mut may_be_stored);
        // A driver that panics may have left an entry in the store. A panic is therefore a failure
        // that ends with a release.
        let end = AssertUnwindSafe(contending).catch_unwind().await;
        let end = end.unwrap_or_else(|_| AcquisitionEnd::Failed(self.panicked()));
        waiting.end();
        observe::acquisition_ended(&self, start, end.label());
        match end {
            AcquisitionEnd::Granted(grant, times) => {
                let (hold, hold_ref) = self.begin_hold(&grant, times);
                // If the caller has given up, this drops the reference, which releases the hold
                // like any dropped guard.
                reply.send(Ok(Some(hold_ref))).ok();
                return Some(Granted { keeper: self, claim, hold });
            }
            AcquisitionEnd::Busy => {
                reply.send(Ok(None)).ok();
                self.settle(claim.late_for(), None).await;
            }
            AcquisitionEnd::CallerLeft | AcquisitionEnd::Failed(_) => {
                if let AcquisitionEnd::Failed(error) = end {
                    reply.send(Err(error)).ok();
                }
                // Without an attempt that was sent, the store has no entry of the claim.
                if may_be_stored {
                    Box::pin(self.release_unheld(claim.as_mut())).await;
                    self.settle(claim.late_for(), None).await;
                }
            }
        }
        None
    }

    /// Creates the hold of a grant, for the keeper and for the first guard.
    pub(super) fn begin_hold(&self, grant: &Grant, times: GrantTimes) -> (KeptHold, HoldRef) {
        let hold = Arc::new(Hold::new(&self.request, self.info(), &self.terms, grant, times));
        let hold_ref = HoldRef::new(Arc::clone(&hold), Side::of(self.request.kind));
        (KeptHold::new(hold), hold_ref)
    }

    pub(super) fn closed(&self) -> Error {
        Error::Closed { name: self.request.name.clone() }
    }

    pub(super) fn panicked(&self) -> Error {
        Error::Unavailable { store: self.info().store, source: "its driver panicked".into() }
    }

    /// Checks that the deadline of a hold of this grant has not passed when the grant arrives.
    ///
    /// # Errors
    /// [`Error::Unavailable`], because another request may be faster.
    pub(super) fn check_in_time(&self, grant: &Grant, times: GrantTimes) -> Result<()> {
        let GrantTimes { sent, arrived } = times;
        if !Limits::new(&self.terms, grant, sent).deadline().since(arrived).is_zero() {
            return Ok(());
        }
        let [valid_for, elapsed, margin] =
            [grant.valid_for, sent.elapsed_at(arrived), self.terms.margin].map(duration::text);
        let late = if self.terms.margin.is_zero() {
            format!("the lock was granted for {valid_for}, but the reply arrived after {elapsed}")
        } else {
            format!(
                "the lock was granted for {valid_for}, of which {margin} are its margin, but the reply arrived after {elapsed}"
            )
        };
        Err(Error::Unavailable { store: self.info().store, source: late.into() })
    }
}

/// A claim that was granted, with the keeper that has to keep it.
///
/// The order of the fields is the order in which they are dropped when the runtime ends. The hold
/// comes first, so that its guards are lost before the claim and the client close their
/// connections. The store may grant the lock to another claim as soon as a connection has ended.
pub(super) struct Granted {
    pub(super) hold: KeptHold,
    pub(super) claim: Box<dyn Claim>,
    pub(super) keeper: Box<Keeper>,
}

/// Keeps the claim that `acquisition` returns, if it was granted. The acquisition is boxed, because
/// every held lock would otherwise keep its memory.
async fn keep_when_granted(acquisition: Pin<Box<impl Future<Output = Option<Granted>> + Send>>) {
    if let Some(granted) = acquisition.await {
        granted.keep().await;
    }
}

/// Starts a task of the engine.
#[expect(
    clippy::disallowed_methods,
    reason = "the keeper: one task for each claim, which the client's close waits for"
)]
pub(super) fn start(tasks: &TaskTracker, life: impl Future<Output = ()> + Send + 'static) {
    // Boxed, because tokio moves a spawned future several times, and keepers are large.
    tasks.spawn(Box::pin(life));
}

/// Runs a call to a driver to its end, as a separate task, because it must not be dropped in
/// flight. RedLock uses this for calls to slow members, for which the majority must not wait.
#[expect(clippy::disallowed_methods, reason = "a call to a driver bounds itself")]
pub(crate) fn run_to_end<T: Send + 'static>(call: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(call)
}
