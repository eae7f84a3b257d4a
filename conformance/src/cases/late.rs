//! Requests that reach the server after their driver has given them up, at each later step of the
//! claim's life. A proxy holds them back.
//!
//! A late request must not shorten, extend, free or create a hold. `docs/backends.md` names the
//! condition that makes each request safe.

use std::{fmt, sync::Arc, time::Duration};

use dlock_core::{
    ClaimId, Kind, LockName, LockState, Result,
    driver::{Attempt, Claim, Release, Renewal, Request, Resumption, Store},
};
use tokio::time::{Instant, sleep};

use super::{
    cancel::rival,
    handover::{is_busy, is_free_soon, is_renewed, request, ticket_of, until_granted},
};
use crate::{
    Arena, Proxy,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let of_one_kind = [
        of("late", Kind::Mutex, &NEEDS[1..3], &NEEDS[1..]),
        of("late_write", Kind::Write, &NEEDS[1..3], &NEEDS[1..]),
        of("late_permit", Kind::Permit, &NEEDS[1..3], &NEEDS[1..]),
        of("late_read", Kind::Read, &NEEDS[..3], &NEEDS),
    ];
    of_one_kind.into_iter().flatten().collect()
}

/// Requirements of the cases. Only readers need the first, because a writer is the claim that must
/// wait for them.
const NEEDS: [Need; 4] = [Need::Kind(Kind::Write), Need::Network, Need::Driver, Need::Detach];

fn of(
    topic: &'static str,
    kind: Kind,
    needs: &'static [Need],
    to_detach: &'static [Need],
) -> impl Iterator<Item = Case> {
    let of_all = cases! {
        topic (kind) needs {
            a_late_attempt_takes_no_free_lock,
            a_late_attempt_does_not_disturb_the_next_holder,
            a_late_attempt_of_a_waiter_that_has_left_leaves_nothing,
            a_late_renewal_does_not_disturb_the_next_holder,
            a_late_release_does_not_disturb_the_next_holder,
        }
    };
    let of_detached = cases! {
        topic (kind) to_detach {
            a_late_attempt_does_not_change_a_detached_hold,
            a_late_renewal_does_not_shorten_a_detached_hold,
            a_late_renewal_does_not_extend_a_detached_hold,
            a_late_renewal_does_not_disturb_the_client_that_took_the_hold_over,
            a_late_release_by_ticket_does_not_disturb_the_client_that_took_the_hold_over,
            a_late_detachment_does_not_act_on_a_hold_that_was_taken_back,
            a_late_detachment_does_not_disturb_the_next_holder,
            a_late_detachment_does_not_disturb_the_client_that_took_the_hold_over,
            a_late_resumption_does_not_take_the_hold_over,
            a_late_resumption_does_not_undo_a_hand_back,
            a_late_resumption_does_not_disturb_the_client_that_took_the_hold_over,
            a_late_resumption_does_not_disturb_the_next_holder,
        }
    };
    of_all.into_iter().chain(of_detached)
}

/// Time in which a request that was held back arrives and would take effect.
const ARRIVAL: Duration = Duration::from_millis(500);

/// Difference between two readings of a hold's remaining time that is explained by clocks and a
/// busy machine.
const TOLERANCE: Duration = Duration::from_secs(1);

/// A client whose requests arrive late, and another client.
struct Scene<'a> {
    arena: &'a Arena,
    late: Store,
    proxy: Arc<Proxy>,
    other: Store,
}

impl<'a> Scene<'a> {
    async fn of(arena: &'a Arena) -> Self {
        let (late, proxy) = arena.store_behind_proxy().await;
        Self { arena, late, proxy, other: arena.store().await }
    }

    /// Returns a long ttl, which does not end during a case.
    fn long(&self) -> Duration {
        (self.arena.ttl() * 12).min(*self.other.backend.info().ttl.end())
    }

    /// Returns a shorter ttl that still outlives the timeouts of a few calls.
    fn middle(&self) -> Duration {
        (self.arena.ttl() * 4).min(*self.other.backend.info().ttl.end())
    }

    fn request(&self, ttl: Duration) -> Request {
        request(self.arena, self.arena.kind(), ttl)
    }

    /// Creates a claim of the late client that holds the lock.
    async fn held(&self, ttl: Duration) -> (Request, Box<dyn Claim>) {
        let request = self.request(ttl);
        let mut claim = self.late.backend.claim(request.clone());
        self.arena.soon("a free lock was not granted", until_granted(claim.as_mut())).await;
        (request, claim)
    }

    /// Calls a claim of the late client while its requests are held back, until the driver gives
    /// the call up. From then on the requests of new connections pass.
    async fn give_up<T: fmt::Debug>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.proxy.hold_requests();
        let result = self.arena.within(self.arena.call_bound(), "a call outlives its bound", call).await;
        self.proxy.hold_open_connections();
        result
    }

    /// Calls a claim as [`give_up`](Self::give_up) does, and checks that the call fails.
    async fn is_given_up<T: fmt::Debug>(&self, call: impl Future<Output = Result<T>>) {
        let result = self.give_up(call).await;
        let is_unanswered = matches!(&result, Err(error) if error.is_transient());
        assert!(is_unanswered, "the request was held back, but the call returned {result:?}");
    }

    /// Returns the time that the late client may need to use a new connection. In a store with
    /// sessions the client may first have to give its old connection up.
    fn reconnect_limit(&self) -> Duration {
        self.late.backend.info().session.unwrap_or_default().max(self.arena.call_bound() * 2)
    }

    async fn until_released(&self, claim: &mut dyn Claim) {
        let repeated = async {
            while claim.release().await.is_err() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        self.arena
            .within(self.reconnect_limit(), "new connections pass, but nothing is released", repeated)
            .await;
    }

    async fn until_detached(&self, claim: &mut dyn Claim, lasting: Duration, ticket: ClaimId) {
        let repeated = async {
            loop {
                match claim.detach(lasting, ticket).await {
                    Ok(result) => return result,
                    Err(error) => {
                        assert!(error.is_transient(), "new connections pass, but the call returned {error:?}")
                    }
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        let result = self.arena.within(
            self.reconnect_limit(),
            "new connections pass, but nothing is detached",
            repeated,
        );
        let result = result.await;
        assert!(
            matches!(result, Renewal::Renewed { .. }),
            "the claim was held, but its detachment returned {result:?}"
        );
    }

    async fn until_resumed(&self, claim: &mut dyn Claim, ticket: ClaimId) -> Resumption {
        let repeated = async {
            loop {
                match claim.resume(ticket).await {
                    Ok(result) => return result,
                    Err(error) => {
                        assert!(error.is_transient(), "new connections pass, but the call returned {error:?}")
                    }
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        let what = "new connections pass, but nothing is taken over";
        self.arena.within(self.reconnect_limit(), what, repeated).await
    }

    /// Creates a claim of the other client that holds the lock next.
    async fn next_holder(&self) -> Box<dyn Claim> {
        let mut next = self.other.backend.claim(self.request(self.long()));
        self.arena
            .soon(
                "the lock is not free after the release of the previous claim",
                until_granted(next.as_mut()),
            )
            .await;
        next
    }

    /// Creates a hold that the other client has detached for a long time. Returns its claim and its
    /// ticket.
    async fn ticket(&self) -> (Box<dyn Claim>, ClaimId) {
        let request = self.request(self.long());
        let ticket = ticket_of(&request);
        let mut claim = self.other.backend.claim(request);
        self.arena.soon("a free lock was not granted", until_granted(claim.as_mut())).await;
        self.until_detached(claim.as_mut(), self.long(), ticket).await;
        (claim, ticket)
    }

    /// Takes over a detached hold as the other client.
    async fn taken_over(&self, locator: Option<Arc<str>>, ticket: ClaimId) -> Box<dyn Claim> {
        let mut taker = self.other.backend.claim(self.request(self.long()).locator(locator));
        let result = self.until_resumed(taker.as_mut(), ticket).await;
        assert!(matches!(result, Resumption::Resumed { .. }), "an unused ticket is not valid");
        taker
    }

    /// Returns the ids of the claims in the store, and the remaining time of the holder if the
    /// store reports it.
    async fn claims_and_time(&self) -> (Vec<String>, Option<Duration>) {
        let name = LockName::new(self.arena.name()).expect("the name is legal");
        let Some(inspect) = &self.other.inspect else { return (Vec::new(), None) };
        let state = inspect.inspect(&name).await.expect("the store is reachable");
        let state = state.unwrap_or_else(|| LockState::new(name));
        let all = state.holders.iter().chain(&state.queue).map(|contender| contender.id.clone()).collect();
        (all, state.holders.first().and_then(|holder| holder.ttl_left))
    }

    /// Delivers the requests that were held back, and checks that they change nothing.
    async fn deliver(&self) {
        let ((before, left), at) = (self.claims_and_time().await, Instant::now());
        self.proxy.pass();
        sleep(ARRIVAL).await;
        let (after, still_left) = self.claims_and_time().await;
        // The remains of a late attempt may stay until the store's rule deletes them.
        assert!(
            after.starts_with(&before),
            "a request that arrived late changed the claims {before:?} to {after:?}"
        );
        if let (Some(left), Some(still_left)) = (left, still_left) {
            let expected = left.saturating_sub(at.elapsed());
            assert!(
                still_left + TOLERANCE >= expected,
                "a request that arrived late shortened the hold: {still_left:?} remain instead of {expected:?}"
            );
            assert!(
                still_left <= expected + TOLERANCE,
                "a request that arrived late extended the hold: {still_left:?} remain instead of {expected:?}"
            );
        }
    }

    /// Delivers the requests that were held back, and checks that they do not disturb the holder
    /// and leave nothing behind.
    async fn does_not_disturb(&self, holder: &mut dyn Claim) {
        self.deliver().await;
        assert!(
            is_renewed(self.arena, holder).await,
            "a request that arrived late took the lock from its holder"
        );
        assert!(
            is_busy(self.arena, &self.other).await,
            "a request that arrived late freed the lock of its holder"
        );
        let result = holder.release().await.expect("the store replies");
        assert_eq!(result, Release::Done, "a request that arrived late took the lock from its holder");
        self.leaves_nothing().await;
    }

    /// In a store with sessions, the result of a late request may stay until the session of its
    /// client ends.
    async fn leaves_nothing(&self) {
        let limit = self.other.backend.info().session.unwrap_or_default();
        let what = "the result of a late request blocks other clients";
        is_free_soon(self.arena, &self.other, limit, what).await;
        self.late.backend.close().await;
    }
}

pub(super) async fn a_late_attempt_takes_no_free_lock(arena: Arc<Arena>) {
    let scene = Scene::of(&arena).await;
    let mut claim = scene.late.backend.claim(scene.request(scene.long()));
    scene.is_given_up(claim.attempt()).await;
    scene.until_released(claim.as_mut()).await;
    scene.proxy.pass();
    sleep(ARRIVAL).await;
    scene.leaves_nothing().await;
}

pub(super) async fn a_late_attempt_does_not_disturb_the_next_holder(arena: Arc<Arena>) {
    let scene = Scene::of(&arena).await;
    let mut claim = scene.late.backend.claim(scene.request(scene.long()));
    scene.is_given_up(claim.attempt()).await;
    scene.until_released(claim.as_mut()).await;
    let mut next = scene.next_holder().await;
    scene.does_not_disturb(next.as_mut()).await;
}

pub(super) async fn a_late_attempt_of_a_waiter_that_has_left_leaves_nothing(arena: Arc<Arena>) {
    let scene = Scene::of(&arena).await;
    let mut holder = scene.other.backend.claim(request(&arena, rival(&arena), scene.long()));
    arena.soon("a free lock was not granted", until_granted(holder.as_mut())).await;
    let mut waiter = scene.late.backend.claim(scene.request(scene.long()));
    let result = arena.soon("the call does not return", waiter.attempt()).await.expect("the store replies");
    assert!(matches!(result, Attempt::Busy { .. }), "two claims hold the lock");
    // A driver with an established subscription may reply without a request.
    scene.give_up(waiter.attempt()).await.ok();
    scene.until_released(waiter.as_mut()).await;
    scene.does_not_disturb(holder.as_mut()).await;
}

pub(super) async fn a_late_renewal_does_not_disturb_the_next_holder(arena: Arc<Arena>) {
    let scene = Scene::of(&arena).await;
    let (_, mut claim) = scene.held(scene.middle()).await;
    // If the client has a session, its last heartbeat may confirm the claim.
    scene.give_up(claim.renew()).await.ok();
    scene.until_released(claim.as_mut()).await;
    let mut next = scene.next_holder().await;
    scene.does_not_disturb(next.as_mut()).await;
}

pub(super) async fn a_late_release_does_not_disturb_the_next_holder(arena: Arc<Arena>) {
    let scene = Scene::of(&arena).await;
    let (_, mut claim) = scene.held(scene.middle()).await;
    scene.is_given_up(claim.release()).await;
    scene.until_released(claim.as_mut()).await;
    let mut next = scene.next_holder().await;
    scene.does_not_disturb(next.as_mut()).await;
}

pub(super) async fn a_late_attempt_does_not_change_a_detached_hold(arena: Arc<Arena>) {
    let scene = Scene::of(&arena).await;
    let request = scene.request(scene.middle());
    let mut claim = scene.late.backend.claim(request.clone());
    scene.is_given_up(claim.attempt()).await;
    let granted = until_granted(claim.as_mut());
    arena.within(scene.reconnect_limit(), "new connections pass, but nothing is granted", granted).await;
    let ticket = ticket_of(&request);
    scene.until_detached(claim.as_mut(), scene.long(), ticket).await;
    scene.deliver().await;
    let mut taker = scene.taken_over(claim.locator(), ticket).await;
    scene.does_not_disturb(taker.as_mut()).await;
}

/// Gives up a renewal of a hold, and detaches the hold for `lasting` instead of its ttl. Then the
/// renewal arrives.
async fn renewed_late(arena: &Arena, times: impl FnOnce(&Scene<'_>) -> (Duration, Duration)) {
    let scene = Scene::of(arena).await;
    let (ttl, lasting) = times(&scene);
    let (request, mut claim) = scene.held(ttl).await;
    let ticket = ticket_of(&request);
    scene.give_up(claim.renew()).await.ok();
    scene.until_detached(claim.as_mut(), lasting, ticket).await;
    scene.deliver().await;
    let mut taker = scene.taken_over(claim.locator(), ticket).await;
    scene.does_not_disturb(taker.as_mut()).await;
}

pub(super) async fn a_late_renewal_does_not_shorten_a_detached_hold(arena: Arc<Arena>) {
    renewed_late(&arena, |scene| (scene.middle(), scene.long())).await;
}

pub(super) async fn a_late_renewal_does_not_extend_a_detached_hold(arena: Arc<Arena>) {
    renewed_late(&arena, |scene| (scene.long(), scene.middle())).await;
}

pub(super) async fn a_late_renewal_does_not_disturb_the_client_that_took_the_hold_over(arena: Arc<Arena>) {
    let scene = Scene::of(&arena).await;
    let (request, mut claim) = scene.held(scene.middle()).await;
    let ticket = ticket_of(&request);
    scene.give_up(claim.renew()).await.ok();
    scene.until_detached(claim.as_mut(), scene.middle(), ticket).await;
    let mut taker = scene.taken_over(claim.locator(), ticket).await;
    scene.does_not_disturb(taker.as_mut()).await;
}

pub(super) async fn a_late_release_by_ticket_does_not_disturb_the_client_that_took_the_hold_over(
    arena: Arc<Arena>,
) {
    let scene = Scene::of(&arena).await;
    let (detached, ticket) = scene.ticket().await;
    let by_ticket = scene.request(scene.long()).id(ticket).locator(detached.locator());
    scene.is_given_up(scene.late.backend.claim(by_ticket).release()).await;
    let mut taker = scene.taken_over(detached.locator(), ticket).await;
    scene.does_not_disturb(taker.as_mut()).await;
}

pub(super) async fn a_late_detachment_does_not_act_on_a_hold_that_was_taken_back(arena: Arc<Arena>) {
    let scene = Scene::of(&arena).await;
    let (request, mut claim) = scene.held(scene.middle()).await;
    let ticket = ticket_of(&request);
    scene.is_given_up(claim.detach(scene.long(), ticket)).await;
    let result = scene.until_resumed(claim.as_mut(), ticket).await;
    assert!(
        matches!(result, Resumption::Resumed { .. }),
        "the claim was held, but resuming it returned {result:?}"
    );
    scene.does_not_disturb(claim.as_mut()).await;
}

pub(super) async fn a_late_detachment_does_not_disturb_the_next_holder(arena: Arc<Arena>) {
    let scene = Scene::of(&arena).await;
    let (request, mut claim) = scene.held(scene.middle()).await;
    scene.is_given_up(claim.detach(scene.long(), ticket_of(&request))).await;
    scene.until_released(claim.as_mut()).await;
    let mut next = scene.next_holder().await;
    scene.does_not_disturb(next.as_mut()).await;
}

pub(super) async fn a_late_detachment_does_not_disturb_the_client_that_took_the_hold_over(arena: Arc<Arena>) {
    let scene = Scene::of(&arena).await;
    let (request, mut claim) = scene.held(scene.middle()).await;
    let ticket = ticket_of(&request);
    scene.is_given_up(claim.detach(scene.long(), ticket)).await;
    scene.until_detached(claim.as_mut(), scene.middle(), ticket).await;
    let mut taker = scene.taken_over(claim.locator(), ticket).await;
    scene.does_not_disturb(taker.as_mut()).await;
}

/// Creates a claim of the late client whose request to take the hold over is held back.
async fn resumed_late(scene: &Scene<'_>, locator: Option<Arc<str>>, ticket: ClaimId) -> Box<dyn Claim> {
    let mut claim = scene.late.backend.claim(scene.request(scene.middle()).locator(locator));
    scene.is_given_up(claim.resume(ticket)).await;
    claim
}

/// As if the process that used the ticket had ended.
pub(super) async fn a_late_resumption_does_not_take_the_hold_over(arena: Arc<Arena>) {
    let scene = Scene::of(&arena).await;
    let (detached, ticket) = scene.ticket().await;
    drop(resumed_late(&scene, detached.locator(), ticket).await);
    scene.deliver().await;
    let mut taker = scene.taken_over(detached.locator(), ticket).await;
    scene.does_not_disturb(taker.as_mut()).await;
}

pub(super) async fn a_late_resumption_does_not_undo_a_hand_back(arena: Arc<Arena>) {
    let scene = Scene::of(&arena).await;
    let (detached, ticket) = scene.ticket().await;
    let mut claim = resumed_late(&scene, detached.locator(), ticket).await;
    scene.until_detached(claim.as_mut(), scene.long(), ticket).await;
    scene.deliver().await;
    let mut taker = scene.taken_over(detached.locator(), ticket).await;
    scene.does_not_disturb(taker.as_mut()).await;
}

pub(super) async fn a_late_resumption_does_not_disturb_the_client_that_took_the_hold_over(arena: Arc<Arena>) {
    let scene = Scene::of(&arena).await;
    let (detached, ticket) = scene.ticket().await;
    let claim = resumed_late(&scene, detached.locator(), ticket).await;
    let mut taker = scene.taken_over(detached.locator(), ticket).await;
    scene.does_not_disturb(taker.as_mut()).await;
    drop(claim);
}

pub(super) async fn a_late_resumption_does_not_disturb_the_next_holder(arena: Arc<Arena>) {
    let scene = Scene::of(&arena).await;
    let (mut detached, ticket) = scene.ticket().await;
    let claim = resumed_late(&scene, detached.locator(), ticket).await;
    let result = detached.release().await.expect("the store replies");
    assert_eq!(result, Release::Done, "the release found no detached hold");
    let mut next = scene.next_holder().await;
    scene.does_not_disturb(next.as_mut()).await;
    drop(claim);
}
