//! The end of a claim.
//!
//! - A claim without a hold is released. It was waiting, or its outcome is unknown.
//! - A hold is released. A guard that waits for the release gets the result.
//! - A hold whose lock has to stay taken is detached for the rest of that time. This applies to
//!   `at_least`, and to a hold that returns to the ticket from which it was taken over.
//!
//! Each request is repeated until the store confirms it or has forgotten the claim by itself. In a
//! store with sessions only the end of the session removes the claim, so there the requests are
//! repeated without a limit, except after a refusal while the client closes.
//!
//! A client has a limited number of releases in flight, see [`Admitted`]. After an outage many
//! waiters leave at the same time. If all their releases were sent at once, each would wait for the
//! others until its timeout, and the repetitions would add to the load. Detachments do not wait,
//! because the hold is not renewed any more and must not expire before its detachment.

use std::{pin::pin, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{SemaphorePermit, oneshot},
    time::{sleep, timeout_at},
};

use super::{
    Keeper,
    keep::reply_or_timeout,
    pause::{retry_pause, with_small_jitter},
};
use crate::{
    contract::{Claim, Info, Release, Renewal},
    engine::{
        Client, Hold,
        client::Admitted,
        observe::{self, StartTime},
    },
    kit::Moment,
    model::{ClaimId, Error, Result},
};

/// Maximum pause before a release is sent again after the store refused it or could not write it.
/// An operator has to repair the store first.
const MAX_REFUSAL_PAUSE: Duration = Duration::from_secs(2);

/// The detachment that ends a claim in the place of a release. It keeps the lock taken after the
/// last guard was dropped.
#[derive(Clone, Copy)]
pub(in crate::engine) struct FinalDetachment {
    /// Time until which the lock stays taken.
    pub(in crate::engine) until: Moment,
    /// Id that the hold is detached as.
    pub(in crate::engine) ticket: ClaimId,
}

impl Keeper {
    /// Releases a claim that has no hold, and repeats the release until the store has confirmed it
    /// or has forgotten the claim by itself.
    pub(crate) async fn release_unheld(&self, claim: &mut dyn Claim) {
        self.release_as(claim, Some(Admitted::Departure)).await;
    }

    /// As [`release_unheld`](Self::release_unheld), without waiting for other releases of the
    /// client. For a claim that uses a ticket, because no other claim can use that ticket before
    /// the release has ended.
    pub(in crate::engine) async fn release_uncounted(&self, claim: &mut dyn Claim) {
        self.release_as(claim, None).await;
    }

    async fn release_as(&self, claim: &mut dyn Claim, counted_as: Option<Admitted>) {
        let forgotten_after = self.forgotten_after(claim);
        let retries = ReleaseRetries::new(self.info(), forgotten_after, |error| {
            observe::failed(self, "release", &error);
        });
        let mut retries = retries.of_client(&self.client, counted_as);
        release_with_retries(claim, &mut retries).await;
    }

    /// Releases the claim of a hold, and repeats the release until the store has confirmed it or
    /// has forgotten the claim by itself. A hold that has to stay taken for some time is detached
    /// for the rest of that time instead.
    ///
    /// `reply` is that of a guard that waits for the result. The guard gets an error at once if the
    /// store refuses the release. If the store has not replied when the time of the hold and its
    /// margin end, the guard gets an error at that time.
    ///
    /// Returns the detachment that was requested in the place of the release, if there was one.
    pub(super) async fn release_hold(
        &self,
        claim: &mut dyn Claim,
        hold: &Hold,
        reply: Option<oneshot::Sender<Result<()>>>,
    ) -> Option<FinalDetachment> {
        let reply = ReleaseReply(Mutex::new(reply));
        let mut has_failed = false;
        let final_detachment = self.final_detachment(hold);
        let forgotten_after = self.forgotten_after(claim);
        let retries = ReleaseRetries::new(self.info(), forgotten_after, |error: Error| {
            has_failed = true;
            observe::failed(self, "release", &error);
            // A longer wait would not change a refusal.
            if !error.is_transient() || hold.kept_until().has_passed() {
                reply.send(Err(error));
            }
        });
        let mut retries = retries.of_client(&self.client, Some(Admitted::Release));
        let on_timeout = || reply.send(Err(hold.release_timeout()));
        let released = {
            let release = pin!(async {
                match final_detachment {
                    Some(detachment) => detach_or_release(claim, &mut retries, detachment).await,
                    None => release_with_retries(claim, &mut retries).await,
                }
            });
            reply_or_timeout(hold.kept_until(), release, on_timeout).await
        };
        reply.send(match released {
            // `Gone` is a loss only if no release failed before, because a failed release may have
            // removed the claim without a reply.
            Some(Release::Gone) if !has_failed && hold.lose_before_release() => {
                observe::lost_before_release(self);
                Err(hold.lost_error())
            }
            Some(_) => Ok(()),
            // No effect after an error of the store, which the guard already has.
            None => Err(hold.release_timeout()),
        });
        final_detachment
    }

    /// Returns the detachment that has to replace the release of a hold, or `None` if the lock may
    /// be free at once. There are two cases. A hold that was taken over by ticket returns to its
    /// ticket if the caller has not received it. Any other hold stays taken for its `at_least`.
    fn final_detachment(&self, hold: &Hold) -> Option<FinalDetachment> {
        if let Some(until) = hold.offered_until() {
            return Some(FinalDetachment { until, ticket: self.detachment().resumed_from? });
        }
        let until = hold.taken_until()?;
        let ticket = self.detachment().ticket.unwrap_or_else(|| ClaimId::random_for(&self.request.who));
        Some(FinalDetachment { until, ticket })
    }

    /// Returns the time after which a store without sessions forgets the claim: its ttl, the rest
    /// of the time of a detachment whose reply was lost, and the time in which the store may
    /// execute a late attempt.
    fn forgotten_after(&self, claim: &dyn Claim) -> Duration {
        let detached = self.detachment().until.map(Moment::remaining).unwrap_or_default();
        self.request.ttl + detached + claim.late_for()
    }
}

/// Releases a claim, and repeats the release until the store confirms it. Returns the store's
/// reply, or `None` if `forgotten_after` has passed since the first failure. The store has then
/// forgotten the claim by itself. The release is not counted as one of a client.
///
/// A store with sessions keeps the claim while the session lives. The release is therefore repeated
/// without an end there.
pub(crate) async fn release_until_forgotten(
    claim: &mut dyn Claim,
    info: &Info,
    forgotten_after: Duration,
    on_failure: impl FnMut(Error),
) -> Option<Release> {
    release_with_retries(claim, &mut ReleaseRetries::new(info, forgotten_after, on_failure)).await
}

async fn release_with_retries<F: FnMut(Error)>(
    claim: &mut dyn Claim,
    retries: &mut ReleaseRetries<'_, F>,
) -> Option<Release> {
    claim.leave();
    loop {
        let permit = retries.admit().await?;
        let start = StartTime::now();
        let reply = claim.release().await;
        drop(permit);
        observe::called(retries.info, "release", start, &reply);
        let error = match reply {
            Ok(release) => return Some(release),
            Err(error) => error,
        };
        if !retries.pause_after(error).await {
            return None;
        }
    }
}

/// Detaches a hold for the rest of the time that it has to stay taken. Repeats the detachment until
/// that time has passed, and then releases the claim.
async fn detach_or_release<F: FnMut(Error)>(
    claim: &mut dyn Claim,
    retries: &mut ReleaseRetries<'_, F>,
    FinalDetachment { until, ticket }: FinalDetachment,
) -> Option<Release> {
    let leases = &retries.info.leases;
    while !until.has_passed() {
        // Stores count whole milliseconds, and the lock must not be free too early.
        let lasting = until.remaining() + Duration::from_millis(1);
        let start = StartTime::now();
        let reply = claim.detach(lasting.clamp(*leases.start(), *leases.end()), ticket).await;
        observe::called(retries.info, "detachment", start, &reply);
        let error = match reply {
            Ok(Renewal::Renewed { .. }) => return Some(Release::Done),
            // The hold was lost. A store of several members may have kept the claim on a few of
            // them, and the release removes it there.
            Ok(Renewal::Lost) => {
                return release_with_retries(claim, retries).await.map(|_| Release::Gone);
            }
            Err(error) => error,
        };
        if !retries.pause_after(error).await {
            return None;
        }
    }
    release_with_retries(claim, retries).await
}

/// The retries of one release.
struct ReleaseRetries<'a, F> {
    info: &'a Info,
    /// Time from the first failure, or from the first wait for a permit, until a store without
    /// sessions forgets the claim.
    forgotten_after: Duration,
    forgotten_at: Option<Moment>,
    failures: u32,
    /// Client whose limits and whose close apply to the releases. `None` if neither applies.
    client: Option<&'a Client>,
    /// Limit against which the client counts the releases. `None` if they are not counted.
    counted_as: Option<Admitted>,
    on_failure: F,
}

impl<'a, F: FnMut(Error)> ReleaseRetries<'a, F> {
    fn new(info: &'a Info, forgotten_after: Duration, on_failure: F) -> Self {
        Self {
            info,
            forgotten_after,
            forgotten_at: None,
            failures: 0,
            client: None,
            counted_as: None,
            on_failure,
        }
    }

    fn of_client(self, client: &'a Client, counted_as: Option<Admitted>) -> Self {
        Self { client: Some(client), counted_as, ..self }
    }

    /// Waits for permission to send a release. Returns `None` if the store has forgotten the claim
    /// by itself before. The inner option is `None` if the release is not counted.
    async fn admit(&mut self) -> Option<Option<SemaphorePermit<'a>>> {
        let Some((client, requests)) = self.client.zip(self.counted_as) else { return Some(None) };
        if let Some(permit) = client.try_admit(requests) {
            return Some(Some(permit));
        }
        let permit = client.admit(requests);
        if self.info.session.is_some() {
            return Some(Some(permit.await));
        }
        let forgotten_at = self.forgotten_at();
        timeout_at(forgotten_at.instant(), permit).await.ok().map(Some)
    }

    fn forgotten_at(&mut self) -> Moment {
        *self.forgotten_at.get_or_insert_with(|| Moment::now().after(self.forgotten_after))
    }

    /// Reports a failure, and pauses before the next request. Returns `false`, without a pause, if
    /// the store has forgotten the claim by itself. Also returns `false` in a store with sessions,
    /// if `forgotten_after` has passed, the last error is a refusal, and the client closes. The end
    /// of the session then removes the claim.
    async fn pause_after(&mut self, error: Error) -> bool {
        let is_refused = matches!(error, Error::Refused { .. } | Error::Unwritable { .. });
        (self.on_failure)(error);
        self.failures += 1;
        let forgotten_at = self.forgotten_at();
        let is_closing = self.client.is_some_and(|client| client.closing.is_cancelled());
        let may_give_up = self.info.session.is_none() || is_refused && is_closing;
        if may_give_up && forgotten_at.has_passed() {
            return false;
        }
        let pause = if is_refused {
            MAX_REFUSAL_PAUSE.min(self.forgotten_after / 3)
        } else {
            retry_pause(self.failures)
        };
        sleep(with_small_jitter(pause)).await;
        true
    }
}

/// The sender for the result of a release. Only the first result is sent.
struct ReleaseReply(Mutex<Option<oneshot::Sender<Result<()>>>>);

impl ReleaseReply {
    fn send(&self, result: Result<()>) {
        if let Some(reply) = self.0.lock().take() {
            reply.send(result).ok();
        }
    }
}
