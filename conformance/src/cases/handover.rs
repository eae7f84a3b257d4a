//! Hands a hold over to a ticket and back, with claims that the case drives itself. The store knows
//! a hold by one id at a time.

use std::{sync::Arc, time::Duration};

use dlock_core::{
    ClaimId, Kind, LockName, Wait,
    driver::{Attempt, Claim, Release, Renewal, Request, Resumption, Store},
};
use tokio::time::sleep;

use super::cancel::rival;
use crate::{
    Arena,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let of_one_kind = [
        of("handover", Kind::Mutex, &NEEDS[1..]),
        of("handover_fair", Kind::Fair, &NEEDS[1..]),
        of("handover_write", Kind::Write, &NEEDS[1..]),
        of("handover_permit", Kind::Permit, &NEEDS[1..]),
        of("handover_read", Kind::Read, &NEEDS),
    ];
    of_one_kind.into_iter().flatten().collect()
}

/// Requirements of the cases for every kind. Only readers need the first, because a writer is the
/// claim that must wait for them.
const NEEDS: [Need; 3] = [Need::Kind(Kind::Write), Need::Detach, Need::Driver];

fn of(topic: &'static str, kind: Kind, needs: &'static [Need]) -> Vec<Case> {
    cases! {
        topic (kind) needs {
            a_detached_hold_is_known_by_its_ticket_only,
            a_detachment_that_is_repeated_shortens_nothing,
            of_two_takers_of_a_ticket_one_gets_the_hold,
            a_repeated_resume_returns_the_same_hold,
            a_hold_that_was_taken_over_is_handed_back_to_its_ticket,
            a_detachment_is_undone_by_its_own_claim,
            a_release_after_a_detachment_removes_the_hold,
            a_release_by_ticket_does_not_disturb_its_taker,
            a_claim_that_found_no_hold_to_hand_back_does_not_release_the_ticket,
            a_waiting_claim_is_not_taken_over,
            a_ticket_of_no_hold_creates_nothing,
            a_renewal_never_shortens_a_hold,
        }
    }
}

/// Creates a request of this kind for the case's lock.
pub(super) fn request(arena: &Arena, kind: Kind, ttl: Duration) -> Request {
    Request::new(LockName::new(arena.name()).expect("the name is legal"), kind, ttl)
}

/// Creates a ticket id for the client that makes the request.
pub(super) fn ticket_of(request: &Request) -> ClaimId {
    ClaimId::random_for(&request.who)
}

/// Repeats the attempt until the claim holds.
pub(super) async fn until_granted(claim: &mut dyn Claim) {
    while !matches!(claim.attempt().await, Ok(Attempt::Granted(_))) {
        sleep(Duration::from_millis(20)).await;
    }
}

/// Creates a claim of the case's kind that holds the lock.
async fn held(arena: &Arena, store: &Store, ttl: Duration) -> (Request, Box<dyn Claim>) {
    let request = request(arena, arena.kind(), ttl);
    let mut claim = store.backend.claim(request.clone());
    arena.soon("a free lock was not granted", until_granted(claim.as_mut())).await;
    (request, claim)
}

/// Creates a claim of the case's kind and detaches it. Returns its request, the claim and its
/// ticket.
async fn detached(arena: &Arena, store: &Store) -> (Request, Box<dyn Claim>, ClaimId) {
    let lasting = long(arena, store);
    let (request, mut claim) = held(arena, store, arena.ttl()).await;
    let ticket = ticket_of(&request);
    let result = arena.soon("the call does not return", claim.detach(lasting, ticket)).await;
    assert!(
        matches!(result, Ok(Renewal::Renewed { .. })),
        "the claim was held, but the detachment returned {result:?}"
    );
    (request, claim, ticket)
}

/// Returns a long ttl, which does not end during a case.
fn long(arena: &Arena, store: &Store) -> Duration {
    (arena.ttl() * 12).min(*store.backend.info().ttl.end())
}

/// Creates a claim that is to take over the hold of `detached`.
fn taker(arena: &Arena, store: &Store, detached: &dyn Claim) -> Box<dyn Claim> {
    let request = request(arena, arena.kind(), long(arena, store)).locator(detached.locator());
    store.backend.claim(request)
}

/// Tries the lock once as a claim that excludes the case's kind. Returns whether it was busy.
pub(super) async fn is_busy(arena: &Arena, store: &Store) -> bool {
    let request = request(arena, rival(arena), arena.ttl()).wait(Wait::Never);
    let mut claim = store.backend.claim(request);
    let result = arena.soon("a try does not return", claim.attempt()).await.expect("the store replies");
    arena.soon("a release does not return", claim.release()).await.expect("the store replies");
    matches!(result, Attempt::Busy { .. })
}

/// Takes the lock as a claim that excludes the case's kind, and releases it. Fails with `failure`
/// if the lock is not granted within `limit`.
pub(super) async fn is_free_soon(arena: &Arena, store: &Store, limit: Duration, failure: &str) {
    let mut next = store.backend.claim(request(arena, rival(arena), long(arena, store)));
    arena.within(limit, failure, until_granted(next.as_mut())).await;
    arena.soon("a release does not return", next.release()).await.expect("the store replies");
}

async fn takes_over(arena: &Arena, claim: &mut dyn Claim, ticket: ClaimId) -> bool {
    match arena
        .soon("the call to take the hold over does not return", claim.resume(ticket))
        .await
        .expect("the store replies")
    {
        Resumption::Resumed { .. } => true,
        Resumption::Gone => false,
    }
}

pub(super) async fn is_renewed(arena: &Arena, claim: &mut dyn Claim) -> bool {
    let result = arena.soon("a renewal does not return", claim.renew()).await.expect("the store replies");
    matches!(result, Renewal::Renewed { .. })
}

async fn released(arena: &Arena, claim: &mut dyn Claim) -> Release {
    arena.soon("a release does not return", claim.release()).await.expect("the store replies")
}

/// A late request has the id that the hold had before.
pub(super) async fn a_detached_hold_is_known_by_its_ticket_only(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let (request, claim, ticket) = detached(&arena, &a).await;
    let mut former = a.backend.claim(request);
    assert!(!is_renewed(&arena, former.as_mut()).await, "the hold is still known by its former id");
    let result = released(&arena, former.as_mut()).await;
    assert_eq!(result, Release::Gone, "the hold is still known by its former id");
    assert!(is_busy(&arena, &b).await, "a release by the former id removed the hold of the ticket");
    let mut taker = taker(&arena, &b, claim.as_ref());
    assert!(takes_over(&arena, taker.as_mut(), ticket).await, "an unused ticket is not valid");
    assert!(is_renewed(&arena, taker.as_mut()).await, "the hold was taken over and lost at once");
    assert_eq!(
        released(&arena, taker.as_mut()).await,
        Release::Done,
        "the claim that took the hold over does not hold it"
    );
    is_free_soon(&arena, &a, Duration::ZERO, "a released lock is not free").await;
}

pub(super) async fn a_detachment_that_is_repeated_shortens_nothing(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let (_, mut claim, ticket) = detached(&arena, &a).await;
    let result = arena.soon("the call does not return", claim.detach(arena.short_ttl(), ticket)).await;
    assert!(matches!(result, Ok(Renewal::Renewed { .. })), "a repeated detachment returned {result:?}");
    let mut taker = taker(&arena, &b, claim.as_ref());
    let result = arena
        .soon("the call to take the hold over does not return", taker.resume(ticket))
        .await
        .expect("the store replies");
    let Resumption::Resumed { remaining, .. } = result else {
        panic!("the claim was held, but its release found nothing")
    };
    let is_short = remaining.is_some_and(|left| left <= arena.short_ttl());
    assert!(!is_short, "the second detachment shortened the first: {remaining:?}");
    assert_eq!(
        released(&arena, taker.as_mut()).await,
        Release::Done,
        "the claim was held, but its release found nothing"
    );
}

pub(super) async fn of_two_takers_of_a_ticket_one_gets_the_hold(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    for round in 0..5 {
        let (_, claim, ticket) = detached(&arena, &a).await;
        let (mut one, mut other) = (taker(&arena, &a, claim.as_ref()), taker(&arena, &b, claim.as_ref()));
        let (first, second) = tokio::join!(
            takes_over(&arena, one.as_mut(), ticket),
            takes_over(&arena, other.as_mut(), ticket),
        );
        assert!(first || second, "in round {round} neither client could take over the hold");
        assert!(!(first && second), "two clients took over one hold with the same ticket in round {round}");
        let (mut winner, mut loser) = if first { (one, other) } else { (other, one) };
        assert!(!takes_over(&arena, loser.as_mut(), ticket).await, "a ticket in use was taken over");
        released(&arena, loser.as_mut()).await;
        assert!(is_renewed(&arena, winner.as_mut()).await, "a refused taker took the lock from the first");
        assert!(is_busy(&arena, &b).await, "a refused taker freed the lock of the first");
        assert_eq!(
            released(&arena, winner.as_mut()).await,
            Release::Done,
            "the claim that took the hold over does not hold it"
        );
    }
}

pub(super) async fn a_repeated_resume_returns_the_same_hold(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let (_, claim, ticket) = detached(&arena, &a).await;
    let mut taker = taker(&arena, &b, claim.as_ref());
    for _ in 0..3 {
        assert!(
            takes_over(&arena, taker.as_mut(), ticket).await,
            "the ticket is not valid for the client that used it"
        );
    }
    assert_eq!(
        released(&arena, taker.as_mut()).await,
        Release::Done,
        "the claim that took the hold over does not hold it"
    );
    is_free_soon(&arena, &a, Duration::ZERO, "a repeated takeover has left a claim").await;
}

/// The engine does the same when the caller of `resume` leaves before the reply.
pub(super) async fn a_hold_that_was_taken_over_is_handed_back_to_its_ticket(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let (_, claim, ticket) = detached(&arena, &a).await;
    let mut abandoned_taker = taker(&arena, &b, claim.as_ref());
    assert!(takes_over(&arena, abandoned_taker.as_mut(), ticket).await, "an unused ticket is not valid");
    let result =
        arena.soon("the call does not return", abandoned_taker.detach(long(&arena, &b), ticket)).await;
    assert!(
        matches!(result, Ok(Renewal::Renewed { .. })),
        "the claim was held, but handing it back returned {result:?}"
    );
    assert!(is_busy(&arena, &a).await, "handing a hold back to its ticket released it");
    let mut next = taker(&arena, &a, abandoned_taker.as_ref());
    assert!(
        takes_over(&arena, next.as_mut(), ticket).await,
        "the hold was handed back, but its ticket is not valid"
    );
    assert_eq!(
        released(&arena, next.as_mut()).await,
        Release::Done,
        "the claim that took the hold over does not hold it"
    );
    is_free_soon(&arena, &a, Duration::ZERO, "a released lock is not free").await;
}

pub(super) async fn a_detachment_is_undone_by_its_own_claim(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let (_, mut claim, ticket) = detached(&arena, &a).await;
    assert!(
        takes_over(&arena, claim.as_mut(), ticket).await,
        "the claim that detached the hold cannot resume it"
    );
    assert!(is_renewed(&arena, claim.as_mut()).await, "the hold was resumed and lost at once");
    let mut late = taker(&arena, &b, claim.as_ref());
    assert!(!takes_over(&arena, late.as_mut(), ticket).await, "two claims hold the lock");
    released(&arena, late.as_mut()).await;
    assert!(is_busy(&arena, &b).await, "a refused taker freed the lock");
    assert_eq!(
        released(&arena, claim.as_mut()).await,
        Release::Done,
        "the claim that resumed the hold does not hold it"
    );
    is_free_soon(&arena, &b, Duration::ZERO, "a released lock is not free").await;
}

pub(super) async fn a_release_after_a_detachment_removes_the_hold(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let (_, mut claim, ticket) = detached(&arena, &a).await;
    let mut late = taker(&arena, &b, claim.as_ref());
    assert_eq!(
        released(&arena, claim.as_mut()).await,
        Release::Done,
        "the claim that detached the hold cannot release it"
    );
    assert!(!takes_over(&arena, late.as_mut(), ticket).await, "a released hold was taken over");
    is_free_soon(&arena, &b, Duration::ZERO, "a released lock is not free").await;
}

pub(super) async fn a_release_by_ticket_does_not_disturb_its_taker(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let (_, claim, ticket) = detached(&arena, &a).await;
    let mut taker = taker(&arena, &b, claim.as_ref());
    assert!(takes_over(&arena, taker.as_mut(), ticket).await, "an unused ticket is not valid");
    let by_ticket = request(&arena, arena.kind(), arena.ttl()).id(ticket).locator(claim.locator());
    let result = released(&arena, a.backend.claim(by_ticket).as_mut()).await;
    assert_eq!(result, Release::Gone, "the ticket is in use, but a release by the ticket removed a hold");
    assert!(
        is_renewed(&arena, taker.as_mut()).await,
        "a release by ticket removed the hold of the client that took it over"
    );
    assert!(
        is_busy(&arena, &a).await,
        "a release by ticket removed the hold of the client that took it over"
    );
    assert_eq!(
        released(&arena, taker.as_mut()).await,
        Release::Done,
        "the claim that took the hold over does not hold it"
    );
}

/// The reply to the other claim's resumption was lost, so it hands back a hold that it may have.
pub(super) async fn a_claim_that_found_no_hold_to_hand_back_does_not_release_the_ticket(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let (_, claim, ticket) = detached(&arena, &a).await;
    let mut first = taker(&arena, &b, claim.as_ref());
    assert!(takes_over(&arena, first.as_mut(), ticket).await, "an unused ticket is not valid");
    let mut other = taker(&arena, &a, claim.as_ref());
    let lasting = long(&arena, &a);
    let result = arena.soon("the call does not return", other.detach(lasting, ticket)).await;
    assert!(matches!(result, Ok(Renewal::Lost)), "another claim has the hold, but got {result:?}");
    let result = arena.soon("the call does not return", first.detach(lasting, ticket)).await;
    assert!(matches!(result, Ok(Renewal::Renewed { .. })), "the taker has the hold, but got {result:?}");
    released(&arena, other.as_mut()).await;
    assert!(is_busy(&arena, &b).await, "a claim without a hold has released the ticket");
    let mut next = taker(&arena, &b, claim.as_ref());
    assert!(takes_over(&arena, next.as_mut(), ticket).await, "the ticket that was handed back is not valid");
    released(&arena, next.as_mut()).await;
}

pub(super) async fn a_waiting_claim_is_not_taken_over(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let mut holder = a.backend.claim(request(&arena, rival(&arena), long(&arena, &a)));
    arena.soon("a free lock was not granted", until_granted(holder.as_mut())).await;
    let waiting_request = request(&arena, arena.kind(), long(&arena, &a));
    let mut waiter = a.backend.claim(waiting_request.clone());
    let result = arena.soon("the call does not return", waiter.attempt()).await.expect("the store replies");
    assert!(matches!(result, Attempt::Busy { .. }), "two claims hold the lock");
    let mut other_claim = taker(&arena, &b, waiter.as_ref());
    assert!(
        !takes_over(&arena, other_claim.as_mut(), waiting_request.id).await,
        "a claim that only waits was taken over"
    );
    released(&arena, other_claim.as_mut()).await;
    released(&arena, holder.as_mut()).await;
    let turn = until_granted(waiter.as_mut());
    arena.soon("a waiter lost its place to a claim that named its id", turn).await;
    assert!(
        !takes_over(&arena, other_claim.as_mut(), ticket_of(&waiting_request)).await,
        "an id without a claim was taken over"
    );
    assert!(is_busy(&arena, &b).await, "the waiter was granted, but the lock is free");
    assert_eq!(
        released(&arena, waiter.as_mut()).await,
        Release::Done,
        "the waiter was granted, but its release found nothing"
    );
}

pub(super) async fn a_ticket_of_no_hold_creates_nothing(arena: Arc<Arena>) {
    let a = arena.store().await;
    let unknown = request(&arena, arena.kind(), long(&arena, &a));
    let ticket = ticket_of(&unknown);
    let mut claim = a.backend.claim(unknown.clone());
    assert!(!takes_over(&arena, claim.as_mut(), ticket).await, "a hold that does not exist was taken over");
    let mut claim = a.backend.claim(unknown);
    let result = arena.soon("the call does not return", claim.detach(arena.ttl(), ticket)).await;
    assert!(
        matches!(result, Ok(Renewal::Lost)),
        "the hold does not exist, but its detachment returned {result:?}"
    );
    assert!(!is_busy(&arena, &a).await, "a claim without an attempt holds the lock");
}

/// The renewal comes from another client with the same id and a shorter ttl, as a late renewal of
/// an earlier hold may.
pub(super) async fn a_renewal_never_shortens_a_hold(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let (request, mut claim) = held(&arena, &a, long(&arena, &a)).await;
    let mut late = b.backend.claim(request.ttl(arena.short_ttl()));
    // In a store with sessions another client cannot renew the hold, and may return an error.
    arena.soon("a renewal does not return", late.renew()).await.ok();
    sleep(arena.short_ttl() * 5 / 4).await;
    assert!(is_busy(&arena, &b).await, "a renewal with a shorter ttl shortened the hold");
    assert!(is_renewed(&arena, claim.as_mut()).await, "a renewal with a shorter ttl ended the hold");
    assert_eq!(
        released(&arena, claim.as_mut()).await,
        Release::Done,
        "the claim was held, but its release found nothing"
    );
}
