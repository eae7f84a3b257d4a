//! The phase of a hold, with its renewals, its loss, and the requests of its guards.

use std::{panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

use super::{
    Detachment, Granted, Keeper,
    pause::{MIN_SLEEP, retry_pause},
    release::FinalDetachment,
};
use crate::{
    contract::{Attempt, Claim, Renewal, Resumption},
    engine::{
        Cadence, Hold,
        hold::GuardRequest,
        observe::{self, StartTime},
    },
    kit::Moment,
    model::{Error, Kind, LostReason, Result, Wait},
};

/// Minimum time between two renewals that are sent because of hints. A loss is still noticed at
/// once, because its hint usually arrives long after the last renewal.
const MIN_HINT_INTERVAL: Duration = Duration::from_millis(20);

/// The end of a hold.
enum HoldEnd {
    /// The last guard was dropped or released, or the hold is lost. The sender is that of a guard
    /// that waits for the result of its release.
    Release(Option<oneshot::Sender<Result<()>>>),
    /// The hold was detached, and its ticket was delivered.
    Detached,
}

impl Granted {
    /// Renews the hold until it ends, then releases the claim.
    ///
    /// Not an `async fn`, which would store `self` twice during the hold.
    #[expect(clippy::manual_async_fn, reason = "an async fn stores its arguments twice")]
    pub(crate) fn keep(mut self) -> impl Future<Output = ()> + Send {
        async move {
            let start = StartTime::now();
            let holding = observe::count_holding(&self.keeper);
            let hold = Arc::clone(self.hold.hold());
            let end = {
                let kept = self.keeper.keep_until_end(&mut self.claim, &hold);
                let kept = pin!(AssertUnwindSafe(kept).catch_unwind());
                // Declared after the call in flight, so that it is dropped first when the runtime
                // ends. `Granted` explains the reason.
                let mut kept_hold = self.hold;
                let end = kept.await.unwrap_or_else(|_| {
                    hold.abandon();
                    HoldEnd::Release(None)
                });
                kept_hold.end();
                end
            };
            holding.end();
            observe::hold_ended(&self.keeper, start, hold.loss());
            let final_detachment = match end {
                HoldEnd::Release(reply) => {
                    stay_within_margin(&hold).await;
                    // Boxed, because every keeper would otherwise reserve the memory of this future
                    // during the hold.
                    Box::pin(self.keeper.release_hold(self.claim.as_mut(), &hold, reply)).await
                }
                HoldEnd::Detached => {
                    let Detachment { until, ticket, .. } = self.keeper.detachment();
                    until.zip(ticket).map(|(until, ticket)| FinalDetachment { until, ticket })
                }
            };
            self.keeper.settle(self.claim.late_for(), final_detachment).await;
        }
    }
}

impl Keeper {
    async fn keep_until_end(&mut self, claim: &mut Box<dyn Claim>, hold: &Hold) -> HoldEnd {
        // The grant has just arrived, so the first round need not read the clocks.
        let mut now = hold.granted_at.instant();
        let mut last_renewal = now;
        let mut next_renewal = self.next_renewal(hold, hold.granted_at);
        let mut is_hinted = false;
        // Time of the next retry of a downgrade or detachment that failed, and the number of its
        // failures.
        let (mut retry_at, mut failures) = (None::<Instant>, 0);
        loop {
            let renew_at =
                if is_hinted { next_renewal.min(last_renewal + MIN_HINT_INTERVAL) } else { next_renewal };
            // Shortly before the deadline the interval shrinks towards zero. The minimum sleep
            // bounds the rate of requests to a store that fails then.
            let renew_at = renew_at.max(now + MIN_SLEEP);
            // One timer for both times, because each timer adds to the memory of every held lock.
            let wake_at = retry_at.map_or(renew_at, |at| at.min(renew_at));
            let request = tokio::select! {
                biased;
                request = hold.next_request(retry_at.is_none()) => match request {
                    GuardRequest::Release(reply) => return HoldEnd::Release(reply),
                    request => Some(request),
                },
                () = claim.changed(), if !is_hinted && self.terms.renewal != Cadence::Never => {
                    is_hinted = true;
                    now = Instant::now();
                    continue;
                }
                () = sleep_until(wake_at) => {
                    now = Instant::now();
                    // A renewal that is due comes before the retry.
                    if now < renew_at {
                        retry_at = None;
                        continue;
                    }
                    None
                }
            };
            if hold.loss().is_some() {
                return HoldEnd::Release(None);
            }
            if let Some(request) = request {
                // Boxed like the renewals, because every keeper would otherwise reserve the memory
                // of these futures.
                let changed = match request {
                    GuardRequest::Detach(lasting) => {
                        match Box::pin(self.detach(claim.as_mut(), hold, lasting)).await {
                            Ok(true) => return HoldEnd::Detached,
                            result => result.map(|_| ()),
                        }
                    }
                    _ => Box::pin(self.downgrade(claim, hold)).await,
                };
                match (changed, request) {
                    (Ok(()), _) => next_renewal = self.next_renewal(hold, Moment::now()),
                    // A downgrade or detachment that fails must not postpone the next renewal.
                    // Otherwise the hold could expire during repeated failures.
                    (Err(error), _) if error.is_transient() => {
                        failures += 1;
                        retry_at = Some(Instant::now() + retry_pause(failures));
                        next_renewal = next_renewal.min(self.next_renewal(hold, Moment::now()));
                    }
                    (Err(error), GuardRequest::Detach(_)) => {
                        if self.detachment().until.is_some() {
                            // The store may have detached the hold before it refused. The renewal
                            // undoes that, so that the guard holds as before.
                            Box::pin(self.renew(claim.as_mut(), hold)).await;
                            next_renewal = self.next_renewal(hold, Moment::now());
                        }
                        hold.refuse_detach(error);
                    }
                    (Err(error), _) => hold.refuse_downgrade(error),
                }
            } else {
                (last_renewal, is_hinted) = (Instant::now(), false);
                if self.terms.renewal != Cadence::Never {
                    Box::pin(self.renew(claim.as_mut(), hold)).await;
                }
                next_renewal = self.next_renewal(hold, Moment::now());
            }
            if hold.loss().is_some() {
                return HoldEnd::Release(None);
            }
            now = Instant::now();
        }
    }

    /// Returns the time of the next renewal. If no renewal follows, returns the deadline.
    fn next_renewal(&self, hold: &Hold, now: Moment) -> Instant {
        let remaining = hold.deadline().since(now);
        let interval = match self.terms.renewal {
            _ if hold.covers_end() => remaining,
            Cadence::Third => remaining / 3,
            Cadence::Every(cadence) => cadence.min(remaining / 2),
            Cadence::Never => remaining,
        };
        // After a failure the store may be reachable again for a short time only. The retries of
        // many holds are not spread, so that they still share calls to the store.
        let interval =
            if self.failed_renewals > 0 { interval.min(retry_pause(self.failed_renewals)) } else { interval };
        now.instant() + interval
    }

    async fn renew(&mut self, claim: &mut dyn Claim, hold: &Hold) {
        let (sent, start) = (Moment::now(), StartTime::now());
        // After a detachment with an unknown outcome, the store may know the hold by its ticket.
        let detachment = self.detachment.as_deref_mut().filter(|detachment| detachment.until.is_some());
        let ticket = detachment.and_then(|detachment| {
            detachment.resumed_by_renewal = detachment.ticket.or(detachment.resumed_by_renewal);
            detachment.ticket
        });
        let renewal = async {
            match ticket {
                None => claim.renew().await,
                Some(ticket) => claim.resume(ticket).await.map(|resumption| match resumption {
                    Resumption::Resumed { grant, .. } => Renewal::Renewed { valid_for: grant.valid_for },
                    Resumption::Gone => Renewal::Lost,
                }),
            }
        };
        let renewal = reply_or_expire(hold, pin!(renewal)).await;
        observe::called(self.info(), "renewal", start, &renewal);
        let may_retry = renewal.as_ref().is_err_and(Error::is_transient);
        self.failed_renewals = if may_retry { self.failed_renewals + 1 } else { 0 };
        match renewal {
            Ok(Renewal::Renewed { valid_for }) => {
                // A late detachment may still give the hold the id of the ticket.
                if let Some(detachment) = &mut self.detachment
                    && claim.late_for().is_zero()
                {
                    detachment.until = None;
                }
                observe::renewed(self, || hold.deadline().remaining());
                hold.extend(sent.after(valid_for));
            }
            Ok(Renewal::Lost) => {
                hold.lose(LostReason::Deleted);
            }
            // After an error the state is unknown, which is not a loss. The guard holds the lock
            // until the deadline.
            Err(error) => observe::failed(self, "renewal", &error),
        }
    }

    /// Replaces the exclusive claim by a read claim with the same id.
    ///
    /// # Errors
    /// The store's error. After a transient error the hold may be a read hold already.
    async fn downgrade(&mut self, claim: &mut Box<dyn Claim>, hold: &Hold) -> Result<()> {
        let mut request = self.request.clone();
        request.kind = Kind::Read;
        // A single try, because the read claim must not join the queue if the hold was lost.
        request.wait = Wait::Never;
        let mut reader = self.client.store.backend.claim(request.clone());
        let (sent, start) = (Moment::now(), StartTime::now());
        let attempt = reply_or_expire(hold, reader.attempt()).await;
        observe::called(self.info(), "downgrade", start, &attempt);
        // One of the two claim objects is dropped below, and the other one does not know the late
        // requests of the dropped one. The keeper therefore records the longer time of both.
        let late_for = claim.late_for().max(reader.late_for());
        if self.late_until.map(Moment::remaining).unwrap_or_default() < late_for {
            self.late_until = Some(Moment::now().after(late_for));
        }
        match attempt {
            Ok(Attempt::Granted(grant)) if grant.token == hold.token => {
                (self.request, *claim) = (request, reader);
                observe::create_loss_counter(self);
                if hold.extend(sent.after(grant.valid_for)) {
                    hold.confirm_downgrade();
                }
                Ok(())
            }
            // Busy, or a grant with another token: the hold was lost before. The release that
            // follows removes the new grant.
            Ok(_) => {
                hold.lose(LostReason::Deleted);
                Ok(())
            }
            // The store may have executed an earlier request for the downgrade, or an earlier copy
            // of this request. The hold may therefore be a read hold already.
            Err(error)
                if !error.is_transient() && (self.may_be_downgraded || !reader.late_for().is_zero()) =>
            {
                observe::failed(self, "downgrade", &error);
                hold.lose(LostReason::Deleted);
                Ok(())
            }
            Err(error) => {
                self.may_be_downgraded |= error.is_transient();
                observe::failed(self, "downgrade", &error);
                Err(error)
            }
        }
    }
}

/// The keeper's reference to its hold. If it is dropped before the hold has ended, it reports the
/// loss to the holder. This happens when the runtime shuts down and drops the keeper, even before
/// the keeper's first poll.
pub(crate) struct KeptHold {
    hold: Arc<Hold>,
    has_ended: bool,
}

impl KeptHold {
    pub(super) fn new(hold: Arc<Hold>) -> Self {
        Self { hold, has_ended: false }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// Records that the hold has ended, and that its claim is about to be released.
    fn end(&mut self) {
        self.has_ended = true;
    }
}

impl Drop for KeptHold {
    fn drop(&mut self) {
        if !self.has_ended {
            self.hold.abandon();
        }
    }
}

/// Waits before the release of a lost hold until its last guard is dropped or its margin ends. The
/// holder may still be stopping its work, and a release would admit the next holder too early.
async fn stay_within_margin(hold: &Hold) {
    let kept_until = hold.kept_until();
    let is_kept = match hold.loss() {
        Some(LostReason::Expired) => true,
        // The driver has panicked.
        Some(LostReason::Abandoned) => hold.has_margin(),
        // A loss that the store reports has no margin.
        _ => false,
    };
    if is_kept && !kept_until.has_passed() {
        tokio::select! {
            biased;
            _ = hold.next_request(false) => {}
            () = sleep_until(kept_until.instant()) => {}
        }
    }
}

/// Waits for the store's reply to a request, without a time limit. If the deadline of the hold
/// passes first, reports the loss to the holder at that time, and continues to wait.
pub(crate) async fn reply_or_expire<T>(hold: &Hold, reply: impl Future<Output = T> + Unpin) -> T {
    reply_or_timeout(hold.deadline(), reply, || hold.expire()).await
}

/// Waits for the store's reply to a request, without a time limit. If `limit` passes first, calls
/// `on_timeout` at that time, and continues to wait. The future is `Unpin`, because each function
/// that takes a large future by value copies it.
pub(super) async fn reply_or_timeout<T>(
    limit: Moment,
    mut reply: impl Future<Output = T> + Unpin,
    on_timeout: impl FnOnce(),
) -> T {
    tokio::select! {
        biased;
        reply = &mut reply => return reply,
        () = sleep_until(limit.instant()) => on_timeout(),
    }
    reply.await
}
