//! Holds that go on without a keeper, and taking them back.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::{sync::oneshot, time::sleep};

use super::{
    Client, Hold, Keeper, Outcome,
    keeper::{FAILURES, pause, watched},
    observe,
};
use crate::{
    contract::{Claim, Grant, Release, Renewal, Request, Resumption},
    kit::Moment,
    model::{ClaimId, Error, LostReason, Result, Token},
};

/// What a guard asks for that is to be detached.
pub(crate) struct Detach {
    pub(super) lasting: Duration,
    pub(super) reply: oneshot::Sender<Result<Detached>>,
}

/// A detached hold. If this is dropped before it was [taken](Self::take), the keeper releases the hold.
pub(crate) struct Detached {
    /// What the hold is asked for with: its id, its kind as the store has it, its locator.
    pub(super) request: Request,
    pub(super) taken: oneshot::Sender<()>,
}

impl Detached {
    pub(crate) fn take(self) -> Request {
        // If the keeper does not hear it, its runtime has ended, and it releases nothing.
        self.taken.send(()).ok();
        self.request
    }
}

impl Keeper {
    /// Detaches the claim, and tells the guard. `true` if the guard has taken that over: the keeper is then done. `false` if
    /// the guard is gone, which is the keeper's next wish, or if the hold is lost.
    ///
    /// # Errors
    /// That the store cannot do it, and the store's own. The lock is then held as before.
    pub(super) async fn detach(
        &mut self,
        claim: &mut dyn Claim,
        hold: &Hold,
        lasting: Duration,
    ) -> Result<bool> {
        self.info().check_detach(lasting)?;
        // Whatever becomes of the answer, the store may keep the claim for no longer than this.
        let until = Moment::now().after(lasting);
        hold.shorten(until);
        self.detached_until = Some(until);
        let ticket = *self.ticket.get_or_insert_with(|| ClaimId::random_for(&self.request.who));
        match watched(hold, claim.detach(lasting, ticket)).await {
            Ok(Renewal::Renewed { .. }) if hold.loss().is_none() => {
                Ok(hold.confirm_detach(self.request.clone().id(ticket).locator(claim.locator())).await)
            }
            // The hold was reported as lost before the answer came, so it must not go on. The release removes it.
            Ok(Renewal::Renewed { .. }) => Ok(false),
            Ok(Renewal::Lost) => {
                hold.lose(LostReason::Taken);
                Ok(false)
            }
            Err(error) => {
                observe::failed(&self.request, self.info(), "detachment", &error);
                Err(error)
            }
        }
    }

    /// Takes over the hold that is detached as `ticket`, and keeps it for the caller. If the hold is gone, `reply` gets
    /// [`Error::Lost`].
    ///
    /// A caller that gives up, and an error of the store, leave the hold to its ticket: the keeper hands back what the store
    /// may have handed over.
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
        self.resumed_from = Some(ticket);
        let mut failures = 0;
        let error = loop {
            if reply.is_closed() {
                if failures > 0 {
                    self.hand_back(claim.as_mut(), ticket).await;
                }
                return;
            }
            let sent = Moment::now();
            match self.caught(claim.resume(ticket)).await {
                Ok(Resumption::Resumed { grant, remaining }) if !sent.after(grant.valid_for).has_passed() => {
                    let grant = Grant { token: grant.token.or(token), ..grant };
                    let (hold, stake) = self.begin_hold(grant, sent);
                    hold.offer_until(sent.after(remaining.unwrap_or(self.request.ttl)));
                    used.hold = Some(Arc::clone(&hold));
                    let keeping = self.keep(claim, hold);
                    // If the caller has gone, this drops the stake, and the keeper hands the hold back to its ticket.
                    reply.send(Ok(Some(stake))).ok();
                    return keeping.await;
                }
                Ok(Resumption::Resumed { .. }) => break self.too_late(sent),
                Ok(Resumption::Gone) => {
                    reply.send(Err(self.gone())).ok();
                    // A store made of several may have handed over parts of it.
                    return self.leave(claim.as_mut(), None, None).await;
                }
                Err(error) if may_pass(&error, &mut failures) => sleep(pause(failures)).await,
                Err(error) => break error,
            }
        };
        // A store that refuses the first request has not executed it.
        let may_have_resumed = failures != 1 || error.is_transient();
        reply.send(Err(error)).ok();
        if may_have_resumed {
            self.hand_back(claim.as_mut(), ticket).await;
        }
    }

    /// Gives a hold that the store may have handed over back to its ticket, and repeats that for a ttl. After that the store has
    /// forgotten what it had handed over.
    async fn hand_back(&self, claim: &mut dyn Claim, ticket: ClaimId) {
        let lasting = self.request.ttl.max(*self.info().leases.start());
        let end = Moment::now().after(lasting);
        let mut failures = 0;
        loop {
            let error = match self.caught(claim.detach(lasting, ticket)).await {
                Ok(Renewal::Renewed { .. }) => return,
                // A store made of several may have parts of it.
                Ok(Renewal::Lost) => return self.leave(claim, None, None).await,
                Err(error) => error,
            };
            observe::failed(&self.request, self.info(), "hand-back", &error);
            failures += 1;
            if end.has_passed() {
                return;
            }
            sleep(pause(failures)).await;
        }
    }

    /// Releases a detached hold. If the hold is gone, `reply` gets [`Error::Lost`].
    pub(super) async fn give_back(
        self: Box<Self>,
        mut claim: Box<dyn Claim>,
        reply: oneshot::Sender<Result<()>>,
    ) {
        let mut failures = 0;
        let told = loop {
            match self.caught(claim.release()).await {
                // An earlier release whose answer was lost may have removed it.
                Ok(Release::Gone) if failures == 0 => break Err(self.gone()),
                Ok(_) => break Ok(()),
                Err(error) if may_pass(&error, &mut failures) => sleep(pause(failures)).await,
                Err(error) => break Err(error),
            }
        };
        reply.send(told).ok();
    }

    async fn caught<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(|_| Err(self.panicked()))
    }

    fn gone(&self) -> Error {
        Error::Lost { name: self.request.name.clone(), reason: LostReason::Taken }
    }
}

/// A ticket that a keeper uses. Ends the use when dropped, unless the caller has the hold: the caller has ended it then.
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

/// Counts a failure. `true` if asking again may help.
fn may_pass(error: &Error, failures: &mut u32) -> bool {
    *failures += 1;
    error.is_transient() && *failures < FAILURES
}
