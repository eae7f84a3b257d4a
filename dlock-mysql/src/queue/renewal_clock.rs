//! Time of the last renewal of each local claim. A call that renews some claims and has room left
//! also carries the claims that are due next. Ten thousand holds that began at different times
//! then do not need one call each.

use std::{sync::Arc, time::Duration};

use dlock_core::{ClaimId, driver::Moment};
use tokio::{sync::Semaphore, time::timeout};

use super::local_claims::{LocalClaims, Records};

/// Divisor of the ttl. A claim that a call of another claim has renewed needs no renewal of its own
/// for this part of its ttl.
const FRESH_DIVISOR: u32 = 4;

/// Divisor of the ttl. A keeper waits for a call in flight that carries its claim for this part of
/// the ttl.
const CARRIER_WAIT_DIVISOR: u32 = 12;

/// The last renewal of a claim.
#[derive(Clone, Copy)]
pub(super) struct LastRenewal {
    ttl: Duration,
    /// Number of the renewal. Orders the claims of one ttl by age.
    order: u64,
    /// Time before the renewal was sent.
    sent: Moment,
    /// Time of the last request by the claim's own keeper. A claim whose keeper makes no more
    /// requests must expire.
    requested: Moment,
    /// Whether the claim was carried and its keeper has not been notified yet.
    is_unreported: bool,
}

/// A call in flight that also renews claims whose keepers did not request it.
pub(super) struct Carrier<'a> {
    local_claims: &'a LocalClaims,
    pub(super) ids: Vec<ClaimId>,
    /// Closed when the call ends.
    end: Arc<Semaphore>,
}

impl Drop for Carrier<'_> {
    fn drop(&mut self) {
        let mut records = self.local_claims.lock();
        for id in &self.ids {
            let Some(claim) = records.claims.get_mut(id) else { continue };
            if claim.carrier.as_ref().is_some_and(|call| Arc::ptr_eq(call, &self.end)) {
                claim.carrier = None;
            }
        }
        drop(records);
        self.end.close();
    }
}

impl LocalClaims {
    /// Records a renewal that the claim's own keeper requested. `sent` is the time before the call.
    pub(super) fn record_renewal(&self, id: ClaimId, ttl: Duration, sent: Moment) {
        self.lock().record(id, ttl, sent, Moment::now(), false);
    }

    /// Records carried renewals. Claims whose renewals were forgotten after the call was sent stay
    /// forgotten.
    pub(super) fn record_carried<'a>(&self, ids: impl IntoIterator<Item = &'a ClaimId>, sent: Moment) {
        let mut records = self.lock();
        for id in ids {
            if let Some(last) = records.last_renewal(*id) {
                records.record(*id, last.ttl, sent, last.requested, true);
            }
        }
    }

    /// Forgets when the claim was renewed. No call carries it until its keeper has renewed it.
    pub(super) fn forget_renewal(&self, id: ClaimId) {
        self.lock().forget_renewal(id);
    }

    /// Returns the age of a carried renewal, as
    /// [`take_carried_renewal`](Self::take_carried_renewal). If a call in flight carries the claim,
    /// waits for that call for a fraction of the ttl. A second call at the same time might not
    /// renew the claim, because the server skips a row that the first call has locked.
    pub(super) async fn carried_renewal(&self, id: ClaimId, ttl: Duration) -> Option<Duration> {
        let carrier = self.lock().claims.get(&id).and_then(|claim| claim.carrier.clone());
        if let Some(call) = carrier {
            // The claim may have been renewed in either case, whether the call has ended or the
            // wait has timed out.
            timeout(ttl / CARRIER_WAIT_DIVISOR, call.acquire()).await.ok();
        }
        self.take_carried_renewal(id)
    }

    /// Returns the age of the last renewal if another claim's call carried it recently, and if it
    /// was not reported to the claim's keeper yet. Reports each renewal once. A keeper that
    /// requests another renewal may have learned that its hold is lost, and then needs a new reply
    /// from the server.
    fn take_carried_renewal(&self, id: ClaimId) -> Option<Duration> {
        let mut records = self.lock();
        let last = records.claims.get_mut(&id)?.last_renewal.as_mut()?;
        last.requested = Moment::now();
        let age = last.sent.elapsed();
        (std::mem::take(&mut last.is_unreported) && age < last.ttl / FRESH_DIVISOR).then_some(age)
    }

    /// Records that a call is about to renew these claims. Returns up to `count` other claims with
    /// this ttl that are due next and are in no call. The call renews them, too.
    pub(super) fn due_with(&self, ids: &[ClaimId], ttl: Duration, count: usize) -> Carrier<'_> {
        let end = Arc::new(Semaphore::new(0));
        let ids = self.lock().take_due(ids, ttl, count, &end);
        Carrier { local_claims: self, ids, end }
    }

    /// Records that the call that was to renew these claims has failed.
    pub(super) fn record_failure(&self, ids: &[ClaimId]) {
        let mut records = self.lock();
        for id in ids {
            if let Some(last) = records.last_renewal(*id) {
                records.by_age.entry(last.ttl).or_default().insert(last.order, *id);
            }
        }
    }
}

impl Records {
    fn last_renewal(&self, id: ClaimId) -> Option<LastRenewal> {
        self.claims.get(&id)?.last_renewal
    }

    fn record(&mut self, id: ClaimId, ttl: Duration, sent: Moment, requested: Moment, is_unreported: bool) {
        self.set_aside(id);
        let Some(claim) = self.claims.get_mut(&id) else { return };
        self.renewals += 1;
        let order = self.renewals;
        claim.last_renewal = Some(LastRenewal { ttl, order, sent, requested, is_unreported });
        self.by_age.entry(ttl).or_default().insert(order, id);
    }

    pub(super) fn forget_renewal(&mut self, id: ClaimId) {
        self.set_aside(id);
        if let Some(claim) = self.claims.get_mut(&id) {
            claim.last_renewal = None;
        }
    }

    fn take_due(
        &mut self,
        ids: &[ClaimId],
        ttl: Duration,
        count: usize,
        call: &Arc<Semaphore>,
    ) -> Vec<ClaimId> {
        ids.iter().for_each(|id| self.set_aside(*id));
        let Some(by_age) = self.by_age.get(&ttl) else { return Vec::new() };
        let is_fresh = |id: &ClaimId| {
            self.last_renewal(*id).is_none_or(|last| last.sent.elapsed() < ttl / FRESH_DIVISOR)
        };
        let has_keeper =
            |id: &ClaimId| self.last_renewal(*id).is_some_and(|last| last.requested.elapsed() < ttl);
        let stale = by_age.values().copied().take_while(|id| !is_fresh(id));
        let due: Vec<_> = stale.filter(has_keeper).take(count).collect();
        for id in &due {
            self.set_aside(*id);
            if let Some(claim) = self.claims.get_mut(id) {
                claim.carrier = Some(Arc::clone(call));
            }
        }
        due
    }

    /// Removes a claim from those that no call in flight renews.
    fn set_aside(&mut self, id: ClaimId) {
        let Some(last) = self.last_renewal(id) else { return };
        if let Some(by_age) = self.by_age.get_mut(&last.ttl) {
            by_age.remove(&last.order);
            if by_age.is_empty() {
                self.by_age.remove(&last.ttl);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(6);

    fn local_claims(ids: &[ClaimId]) -> LocalClaims {
        let local_claims = LocalClaims::default();
        ids.iter().for_each(|id| local_claims.add_handle(*id));
        local_claims
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_were_renewed_longest_ago_are_due_next_and_fresh_ones_are_not() {
        let ids = [0; 4].map(|_| ClaimId::random());
        let claims = local_claims(&ids);
        for id in ids {
            claims.record_renewal(id, TTL, Moment::now());
            tokio::time::advance(Duration::from_millis(800)).await;
        }
        claims.forget_renewal(ids[1]);
        assert_eq!(
            claims.due_with(&ids[..1], TTL, 9).ids,
            [ids[2]],
            "the first is in the call already, and the last is fresh"
        );
        assert!(claims.due_with(&[], TTL, 9).ids.is_empty(), "both are in a call");
        claims.record_failure(&ids[..1]);
        assert_eq!(claims.due_with(&[], TTL, 9).ids, [ids[0]], "its call has failed");
        claims.record_carried(&[ids[1], ids[2]], Moment::now());
        assert!(claims.take_carried_renewal(ids[1]).is_none(), "its renewals were forgotten");
        assert!(claims.take_carried_renewal(ids[2]).is_some(), "it was carried");
        assert!(claims.take_carried_renewal(ids[2]).is_none(), "its keeper was notified before");
        assert!(claims.take_carried_renewal(ids[3]).is_none(), "its keeper renewed it itself");
        assert!(claims.due_with(&[], TTL * 2, 9).ids.is_empty(), "no claim has this ttl");
        ids.iter().for_each(|id| claims.remove_handle(*id));
        assert!(claims.lock().by_age.is_empty(), "a claim without handles is left in the order");
        assert!(claims.lock().claims.is_empty(), "a claim without handles is left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_whose_keeper_does_not_ask_is_not_carried() {
        let id = ClaimId::random();
        let claims = local_claims(&[id]);
        claims.record_renewal(id, TTL, Moment::now());
        tokio::time::advance(TTL / 2).await;
        assert_eq!(claims.due_with(&[], TTL, 9).ids, [id], "its keeper made a request within the ttl");
        claims.record_carried(&[id], Moment::now());
        tokio::time::advance(TTL / 2).await;
        assert!(claims.due_with(&[], TTL, 9).ids.is_empty(), "it would never expire");
        claims.take_carried_renewal(id);
        assert_eq!(claims.due_with(&[], TTL, 9).ids, [id], "its keeper has made another request");
    }

    #[tokio::test(start_paused = true)]
    async fn a_keeper_waits_for_the_call_that_renews_its_hold_with_others() {
        let id = ClaimId::random();
        let claims = local_claims(&[id]);
        claims.record_renewal(id, TTL, Moment::now());
        tokio::time::advance(TTL / 3).await;
        let (call, sent) = (claims.due_with(&[], TTL, 9), Moment::now());
        assert_eq!(call.ids, [id]);
        let reply = async {
            tokio::time::sleep(TTL / 20).await;
            claims.record_carried(&call.ids, sent);
            drop(call);
        };
        let (age, ()) = tokio::join!(claims.carried_renewal(id, TTL), reply);
        assert_eq!(age, Some(TTL / 20), "it was renewed when the call was sent");
        tokio::time::advance(TTL / 3).await;
        let call = claims.due_with(&[], TTL, 9);
        assert_eq!(claims.carried_renewal(id, TTL).await, None, "the call takes too long");
        drop(call);
        assert!(claims.lock().claims[&id].carrier.is_none(), "the call is still recorded");
    }
}
