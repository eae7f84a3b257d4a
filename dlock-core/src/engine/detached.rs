//! Detached holds, which continue without a keeper, and their resumption.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::{sync::oneshot, time::sleep};

use super::{
    Client, Hold, Keeper, Outcome,
    keeper::{FinalDetachment, Granted, MAX_FAILURES, reply_or_expire, retry_pause},
    limits::GrantTimes,
    observe::{self, StartTime},
};
use crate::{
    contract::{Claim, Grant, Release, Renewal, Request, Resumption},
    kit::Moment,
    model::{ClaimId, Error, LostReason, Result, Token},
};

/// A guard's request to detach its hold.
pub(crate) struct DetachRequest {
    pub(super) lasting: Duration,
    pub(super) reply: oneshot::Sender<Result<Detached>>,
}

/// A detached hold. If this value is dropped before it was [taken](Self::take), the keeper releases
/// the hold.
pub(crate) struct Detached {
    /// Request of the hold, with its id, its locator, and its kind in the store.
    pub(super) request: Request,
    pub(super) taken: oneshot::Sender<()>,
}

impl Detached {
    /// Takes the hold over from the keeper, which then ends.
    pub(crate) fn take(self) -> Request {
        // Fails only if the keeper's runtime has ended. The keeper then releases nothing.
        self.taken.send(()).ok();
        self.request
    }
}

impl Keeper {
    /// Detaches the claim, and reports this to the guard. Returns `true` if the guard has taken the
    /// detached hold; the keeper then ends. Returns `false` if the hold is lost, or if the guard
    /// was dropped. In the second case the keeper's next request is the release.
    ///
    /// # Errors
    /// [`Error::Unsupported`] and [`Error::InvalidOptions`], before any request, and the store's
    /// error. After a transient error the outcome is unknown. The guard is then valid for at most
    /// `lasting`, and the next renewal undoes the detachment.
    pub(super) async fn detach(
        &mut self,
        claim: &mut dyn Claim,
        hold: &Hold,
        lasting: Duration,
    ) -> Result<bool> {
        self.info().check_detach(lasting)?;
        // Even if the reply is lost, the store may keep the claim for no longer than this.
        let until = Moment::now().after(lasting);
        hold.shorten(until);
        let detachment = self.detachment.get_or_insert_default();
        detachment.until = Some(until);
        let ticket = *detachment.ticket.get_or_insert_with(|| ClaimId::random_for(&self.request.who));
        let start = StartTime::now();
        let reply = reply_or_expire(hold, claim.detach(lasting, ticket)).await;
        observe::called(self.info(), "detachment", start, &reply);
        match reply {
            Ok(Renewal::Renewed { .. }) if hold.loss().is_none() => {
                Ok(hold.confirm_detach(self.request.clone().id(ticket).locator(claim.locator())).await)
            }
            // The loss was reported before the reply arrived, so the hold must not continue. The
            // release removes it.
            Ok(Renewal::Renewed { .. }) => Ok(false),
            Ok(Renewal::Lost) => {
                hold.lose(LostReason::Deleted);
                Ok(false)
            }
            Err(error) => {
                observe::failed(self, "detachment", &error);
                Err(error)
            }
        }
    }

    /// Takes over the hold that is detached as `ticket`, and keeps it for the caller. If the hold
    /// was deleted, `reply` gets [`Error::Lost`].
    ///
    /// If the caller leaves, or after an error of the store, the hold stays with its ticket. The
    /// keeper returns it to the ticket if the store may have handed it over.
    pub(super) async fn resume(
        mut self: Box<Self>,
        mut claim: Box<dyn Claim>,
        ticket: ClaimId,
        token: Option<Token>,
        mut reply: oneshot::Sender<Outcome>,
    ) {
        let client = Arc::clone(&self.client);
        tokio::select! {
            biased;
            () = reply.closed() => return,
            () = client.closing.cancelled() => {
                reply.send(Err(self.closed())).ok();
                return;
            }
            () = client.tickets.take(ticket) => {}
        }
        let mut used = UsedTicket { client, ticket, hold: None };
        self.detachment.get_or_insert_default().resumed_from = Some(ticket);
        let mut failures = 0;
        let error = loop {
            if reply.is_closed() {
                if failures > 0 {
                    self.return_to_ticket(claim, ticket).await;
                }
                return;
            }
            let (sent, start) = (Moment::now(), StartTime::now());
            let resumed = self.caught(claim.resume(ticket)).await;
            observe::called(self.info(), "resumption", start, &resumed);
            match resumed {
                Ok(Resumption::Resumed { grant, remaining }) => {
                    let times = GrantTimes::since(sent);
                    if let Err(error) = self.check_in_time(&grant, times) {
                        break error;
                    }
                    // The token in the text of a ticket counts only if the store has tokens.
                    let token = grant.token.or(token.filter(|_| self.info().tokens));
                    let grant = Grant { token, ..grant };
                    let (hold, hold_ref) = self.begin_hold(&grant, times);
                    hold.hold().offer_until(sent.after(remaining.unwrap_or(self.request.ttl)));
                    used.hold = Some(Arc::clone(hold.hold()));
                    // If the caller has given up, this drops the reference, and the keeper returns
                    // the hold to its ticket.
                    reply.send(Ok(Some(hold_ref))).ok();
                    return Granted { keeper: self, claim, hold }.keep().await;
                }
                Ok(Resumption::Gone) => {
                    reply.send(Err(self.deleted())).ok();
                    return self.end_without_hold(claim, ticket).await;
                }
                Err(error) if may_retry(&error, &mut failures) => sleep(retry_pause(failures)).await,
                Err(error) => break error,
            }
        };
        // A store that refuses the first request has not executed it, unless the driver sent it
        // twice.
        let may_have_resumed = failures != 1 || error.is_transient() || !claim.late_for().is_zero();
        reply.send(Err(error)).ok();
        if may_have_resumed {
            self.return_to_ticket(claim, ticket).await;
        }
    }

    /// Returns a hold to its ticket for a ttl, in case the store has handed it over to this claim
    /// or does so late.
    async fn return_to_ticket(&self, mut claim: Box<dyn Claim>, ticket: ClaimId) {
        self.hand_back(claim.as_mut(), ticket, self.request.ttl).await;
        self.settle_resumption(claim.late_for(), ticket).await;
    }

    /// Ends a claim that could not take a hold over from its ticket.
    async fn end_without_hold(&self, mut claim: Box<dyn Claim>, ticket: ClaimId) {
        // In a store of several members, this claim may hold on some of them, and the release
        // removes that part. While a late copy of the resumption may still be executed, there is no
        // release. Otherwise another client might return the whole hold to the ticket, the late
        // copy would take the hold over, and the release would free it.
        if claim.late_for().is_zero() {
            self.release_uncounted(claim.as_mut()).await;
        }
        self.settle_resumption(claim.late_for(), ticket).await;
    }

    async fn settle_resumption(&self, late_for: Duration, ticket: ClaimId) {
        let until = Moment::now().after(late_for + self.request.ttl);
        self.settle(late_for, Some(FinalDetachment { until, ticket })).await;
    }

    /// Returns a hold to its ticket for the time `lasting`, or for the shortest lease of the store
    /// if that is longer. Without effect if the store has not handed the hold over to this claim,
    /// except that the claim may then be released. Retries for a ttl, or for that lease if it is
    /// longer. By then the store has deleted a hold that it had handed over.
    pub(super) async fn hand_back(&self, claim: &mut dyn Claim, ticket: ClaimId, lasting: Duration) {
        let shortest = *self.info().leases.start();
        let (lasting, end) = (lasting.max(shortest), Moment::now().after(self.request.ttl.max(shortest)));
        let mut failures = 0;
        loop {
            let start = StartTime::now();
            let reply = self.caught(claim.detach(lasting, ticket)).await;
            observe::called(self.info(), "hand-back", start, &reply);
            let error = match reply {
                Ok(Renewal::Renewed { .. }) => return,
                // A store of several members may still have a part of the hold, which is released.
                // After a late resumption the release would free the whole hold.
                Ok(Renewal::Lost) if claim.late_for().is_zero() => {
                    return self.release_uncounted(claim).await;
                }
                Ok(Renewal::Lost) => return,
                Err(error) => error,
            };
            observe::failed(self, "hand-back", &error);
            failures += 1;
            if end.has_passed() {
                return;
            }
            sleep(retry_pause(failures)).await;
        }
    }

    /// Releases a detached hold. If the hold was deleted, `reply` gets [`Error::Lost`].
    pub(super) async fn release_detached(
        self: Box<Self>,
        mut claim: Box<dyn Claim>,
        reply: oneshot::Sender<Result<()>>,
    ) {
        let (client, ticket) = (Arc::clone(&self.client), self.request.id);
        // A resumption whose caller has given up may still return the hold to the ticket.
        client.tickets.take(ticket).await;
        let _used = UsedTicket { client, ticket, hold: None };
        let mut failures = 0;
        let result = loop {
            let start = StartTime::now();
            let released = self.caught(claim.release()).await;
            observe::called(self.info(), "release", start, &released);
            match released {
                // An earlier release whose reply was lost may have removed the hold.
                Ok(Release::Gone) if failures == 0 => break Err(self.deleted()),
                Ok(_) => break Ok(()),
                Err(error) if may_retry(&error, &mut failures) => sleep(retry_pause(failures)).await,
                Err(error) => break Err(error),
            }
        };
        reply.send(result).ok();
    }

    /// Turns a panic of the driver into an error.
    async fn caught<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(|_| Err(self.panicked()))
    }

    /// Returns the error of a ticket whose hold was deleted.
    fn deleted(&self) -> Error {
        Error::Lost { name: self.request.name.clone(), reason: LostReason::Deleted }
    }
}

/// A ticket in use by a keeper. Ends the use when dropped, unless the caller has received the hold
/// and has thereby ended the use itself.
struct UsedTicket {
    client: Arc<Client>,
    ticket: ClaimId,
    hold: Option<Arc<Hold>>,
}

impl Drop for UsedTicket {
    fn drop(&mut self) {
        if self.hold.as_ref().is_none_or(|hold| hold.is_offered()) {
            self.client.tickets.free(self.ticket);
        }
    }
}

/// Counts a failure. Returns whether another request may succeed.
fn may_retry(error: &Error, failures: &mut u32) -> bool {
    *failures += 1;
    error.is_transient() && *failures < MAX_FAILURES
}
