//! Handing a hold over to a ticket and back, by claims without the engine: the store knows a hold by one id at a time.

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

/// What the cases of every kind need. Only readers need the first: a writer is the claim that they keep out.
const NEEDS: [Need; 3] = [Need::Kind(Kind::Write), Need::Detach, Need::Driver];

fn of(topic: &'static str, kind: Kind, needs: &'static [Need]) -> Vec<Case> {
    cases! {
        topic (kind) needs {
            a_detached_hold_is_known_by_its_ticket_only,
            a_detachment_that_is_repeated_shortens_nothing,
            of_two_takers_of_a_ticket_one_gets_the_hold,
            a_taker_that_asks_again_gets_the_same_hold,
            a_hold_that_was_taken_over_is_handed_back_to_its_ticket,
            a_detachment_is_undone_by_its_own_claim,
            a_release_after_a_detachment_removes_the_hold,
            a_release_by_ticket_does_not_disturb_its_taker,
            a_waiting_claim_is_not_taken_over,
            a_ticket_of_no_hold_creates_nothing,
            a_renewal_never_shortens_a_hold,
        }
    }
}

/// A request of this kind for the case's lock.
pub(super) fn request(arena: &Arena, kind: Kind, ttl: Duration) -> Request {
    Request::new(LockName::new(arena.name()).expect("a legal name"), kind, ttl)
}

/// The next id of the client that makes the request.
pub(super) fn ticket_of(request: &Request) -> ClaimId {
    ClaimId::random_for(&request.who)
}

/// Asks until the claim holds.
pub(super) async fn until_granted(claim: &mut dyn Claim) {
    while !matches!(claim.attempt().await, Ok(Attempt::Granted(_))) {
        sleep(Duration::from_millis(20)).await;
    }
}

/// A claim of the case's kind that holds the lock.
async fn held(arena: &Arena, store: &Store, ttl: Duration) -> (Request, Box<dyn Claim>) {
    let request = request(arena, arena.kind(), ttl);
    let mut claim = store.backend.claim(request.clone());
    arena.soon("nobody holds it", until_granted(claim.as_mut())).await;
    (request, claim)
}

/// A claim of the case's kind that was detached, and the id that it has now.
async fn detached(arena: &Arena, store: &Store) -> (Request, Box<dyn Claim>, ClaimId) {
    let lasting = long(arena, store);
    let (request, mut claim) = held(arena, store, arena.ttl()).await;
    let ticket = ticket_of(&request);
    let told = arena.soon("it hangs", claim.detach(lasting, ticket)).await;
    assert!(matches!(told, Ok(Renewal::Renewed { .. })), "held until now, and the detachment says {told:?}");
    (request, claim, ticket)
}

/// A ttl so long that its end is not the cause of what happens in a case.
fn long(arena: &Arena, store: &Store) -> Duration {
    (arena.ttl() * 12).min(*store.backend.info().ttl.end())
}

/// A claim that is to take over the hold that `detached` has left behind.
fn taker(arena: &Arena, store: &Store, detached: &dyn Claim) -> Box<dyn Claim> {
    let request = request(arena, arena.kind(), long(arena, store)).locator(detached.locator());
    store.backend.claim(request)
}

/// Whether one try of a claim that excludes the case's kind is refused.
pub(super) async fn is_busy(arena: &Arena, store: &Store) -> bool {
    let request = request(arena, rival(arena), arena.ttl()).wait(Wait::Never);
    let mut claim = store.backend.claim(request);
    let told = arena.soon("a try hangs", claim.attempt()).await.expect("the store answers");
    arena.soon("a release hangs", claim.release()).await.expect("the store answers");
    matches!(told, Attempt::Busy { .. })
}

/// Takes the lock as a claim that excludes the case's kind, and releases it. Fails with `what` if it is not free soon.
pub(super) async fn is_free_soon(arena: &Arena, store: &Store, limit: Duration, what: &str) {
    let mut next = store.backend.claim(request(arena, rival(arena), long(arena, store)));
    arena.within(limit, what, until_granted(next.as_mut())).await;
    arena.soon("a release hangs", next.release()).await.expect("the store answers");
}

async fn takes_over(arena: &Arena, claim: &mut dyn Claim, ticket: ClaimId) -> bool {
    match arena.soon("it is never taken over", claim.resume(ticket)).await.expect("the store answers") {
        Resumption::Resumed { .. } => true,
        Resumption::Gone => false,
    }
}

pub(super) async fn is_renewed(arena: &Arena, claim: &mut dyn Claim) -> bool {
    let told = arena.soon("a renewal hangs", claim.renew()).await.expect("the store answers");
    matches!(told, Renewal::Renewed { .. })
}

async fn released(arena: &Arena, claim: &mut dyn Claim) -> Release {
    arena.soon("a release hangs", claim.release()).await.expect("the store answers")
}

/// A claim with the id that the hold had before is what a late request comes from.
pub(super) async fn a_detached_hold_is_known_by_its_ticket_only(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let (request, claim, ticket) = detached(&arena, &a).await;
    let mut former = a.backend.claim(request);
    assert!(!is_renewed(&arena, former.as_mut()).await, "the hold is still known by its former id");
    let told = released(&arena, former.as_mut()).await;
    assert_eq!(told, Release::Gone, "the hold is still known by its former id");
    assert!(is_busy(&arena, &b).await, "a release by the former id removed the hold of the ticket");
    let mut taker = taker(&arena, &b, claim.as_ref());
    assert!(takes_over(&arena, taker.as_mut(), ticket).await, "nobody has used the ticket, and it is gone");
    assert!(is_renewed(&arena, taker.as_mut()).await, "taken over, and lost at once");
    assert_eq!(released(&arena, taker.as_mut()).await, Release::Done, "its taker does not hold it");
    is_free_soon(&arena, &a, Duration::ZERO, "it was released").await;
}

pub(super) async fn a_detachment_that_is_repeated_shortens_nothing(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let (_, mut claim, ticket) = detached(&arena, &a).await;
    let told = arena.soon("it hangs", claim.detach(arena.short_ttl(), ticket)).await;
    assert!(matches!(told, Ok(Renewal::Renewed { .. })), "a detachment that is repeated says {told:?}");
    let mut taker = taker(&arena, &b, claim.as_ref());
    let told = arena.soon("it is never taken over", taker.resume(ticket)).await.expect("the store answers");
    let Resumption::Resumed { remaining, .. } = told else { panic!("held until now, and gone") };
    let is_short = remaining.is_some_and(|left| left <= arena.short_ttl());
    assert!(!is_short, "the second detachment has shortened the first: {remaining:?}");
    assert_eq!(released(&arena, taker.as_mut()).await, Release::Done, "held until now, and gone");
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
        assert!(first || second, "the ticket of round {round} is gone for both of its takers");
        assert!(!(first && second), "two clients took over one hold with the same ticket in round {round}");
        let (mut winner, mut loser) = if first { (one, other) } else { (other, one) };
        assert!(!takes_over(&arena, loser.as_mut(), ticket).await, "a ticket that is in use was taken over");
        released(&arena, loser.as_mut()).await;
        assert!(is_renewed(&arena, winner.as_mut()).await, "a refused taker took the lock from the first");
        assert!(is_busy(&arena, &b).await, "a refused taker freed the lock of the first");
        assert_eq!(released(&arena, winner.as_mut()).await, Release::Done, "its taker does not hold it");
    }
}

pub(super) async fn a_taker_that_asks_again_gets_the_same_hold(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let (_, claim, ticket) = detached(&arena, &a).await;
    let mut taker = taker(&arena, &b, claim.as_ref());
    for _ in 0..3 {
        assert!(takes_over(&arena, taker.as_mut(), ticket).await, "the ticket is gone for its own taker");
    }
    assert_eq!(released(&arena, taker.as_mut()).await, Release::Done, "its taker does not hold it");
    is_free_soon(&arena, &a, Duration::ZERO, "a taker that asked again left something").await;
}

/// As the engine does when the caller of `resume` is gone by the time of the answer.
pub(super) async fn a_hold_that_was_taken_over_is_handed_back_to_its_ticket(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let (_, claim, ticket) = detached(&arena, &a).await;
    let mut gone = taker(&arena, &b, claim.as_ref());
    assert!(takes_over(&arena, gone.as_mut(), ticket).await, "nobody has used the ticket, and it is gone");
    let told = arena.soon("it hangs", gone.detach(long(&arena, &b), ticket)).await;
    assert!(matches!(told, Ok(Renewal::Renewed { .. })), "held until now, and handing it back says {told:?}");
    assert!(is_busy(&arena, &a).await, "handing a hold back to its ticket released it");
    let mut next = taker(&arena, &a, gone.as_ref());
    assert!(takes_over(&arena, next.as_mut(), ticket).await, "handed back, and the ticket is gone");
    assert_eq!(released(&arena, next.as_mut()).await, Release::Done, "its taker does not hold it");
    is_free_soon(&arena, &a, Duration::ZERO, "it was released").await;
}

pub(super) async fn a_detachment_is_undone_by_its_own_claim(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let (_, mut claim, ticket) = detached(&arena, &a).await;
    assert!(takes_over(&arena, claim.as_mut(), ticket).await, "its own claim does not get the hold back");
    assert!(is_renewed(&arena, claim.as_mut()).await, "taken back, and lost at once");
    let mut late = taker(&arena, &b, claim.as_ref());
    assert!(!takes_over(&arena, late.as_mut(), ticket).await, "two hold it");
    released(&arena, late.as_mut()).await;
    assert!(is_busy(&arena, &b).await, "a refused taker freed the lock");
    assert_eq!(released(&arena, claim.as_mut()).await, Release::Done, "its own claim does not hold it");
    is_free_soon(&arena, &b, Duration::ZERO, "it was released").await;
}

pub(super) async fn a_release_after_a_detachment_removes_the_hold(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let (_, mut claim, ticket) = detached(&arena, &a).await;
    let mut late = taker(&arena, &b, claim.as_ref());
    assert_eq!(released(&arena, claim.as_mut()).await, Release::Done, "its own claim does not find the hold");
    assert!(!takes_over(&arena, late.as_mut(), ticket).await, "a hold that was released is taken over");
    is_free_soon(&arena, &b, Duration::ZERO, "it was released").await;
}

pub(super) async fn a_release_by_ticket_does_not_disturb_its_taker(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let (_, claim, ticket) = detached(&arena, &a).await;
    let mut taker = taker(&arena, &b, claim.as_ref());
    assert!(takes_over(&arena, taker.as_mut(), ticket).await, "nobody has used the ticket, and it is gone");
    let by_ticket = request(&arena, arena.kind(), arena.ttl()).id(ticket).locator(claim.locator());
    let told = released(&arena, a.backend.claim(by_ticket).as_mut()).await;
    assert_eq!(
        told,
        Release::Gone,
        "the ticket is in use, and a release by it says that it removed the hold"
    );
    assert!(is_renewed(&arena, taker.as_mut()).await, "a release by ticket removed the hold of its taker");
    assert!(is_busy(&arena, &a).await, "a release by ticket removed the hold of its taker");
    assert_eq!(released(&arena, taker.as_mut()).await, Release::Done, "its taker does not hold it");
}

pub(super) async fn a_waiting_claim_is_not_taken_over(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let mut holder = a.backend.claim(request(&arena, rival(&arena), long(&arena, &a)));
    arena.soon("nobody holds it", until_granted(holder.as_mut())).await;
    let waits = request(&arena, arena.kind(), long(&arena, &a));
    let mut waiter = a.backend.claim(waits.clone());
    let told = arena.soon("it hangs", waiter.attempt()).await.expect("the store answers");
    assert!(matches!(told, Attempt::Busy { .. }), "two hold it");
    let mut thief = taker(&arena, &b, waiter.as_ref());
    assert!(!takes_over(&arena, thief.as_mut(), waits.id).await, "a claim that only waits was taken over");
    released(&arena, thief.as_mut()).await;
    released(&arena, holder.as_mut()).await;
    let turn = until_granted(waiter.as_mut());
    arena.soon("the waiter lost its place to a claim that named its id", turn).await;
    assert!(!takes_over(&arena, thief.as_mut(), ticket_of(&waits)).await, "an id of no claim was taken over");
    assert!(is_busy(&arena, &b).await, "the waiter was granted, and the lock is free");
    assert_eq!(released(&arena, waiter.as_mut()).await, Release::Done, "granted, and gone");
}

pub(super) async fn a_ticket_of_no_hold_creates_nothing(arena: Arc<Arena>) {
    let a = arena.store().await;
    let unknown = request(&arena, arena.kind(), long(&arena, &a));
    let ticket = ticket_of(&unknown);
    let mut claim = a.backend.claim(unknown.clone());
    assert!(!takes_over(&arena, claim.as_mut(), ticket).await, "there is no hold, and it was taken over");
    let mut claim = a.backend.claim(unknown);
    let told = arena.soon("it hangs", claim.detach(arena.ttl(), ticket)).await;
    assert!(matches!(told, Ok(Renewal::Lost)), "there is no hold, and its detachment says {told:?}");
    assert!(!is_busy(&arena, &a).await, "a claim that was never asked for holds the lock");
}

/// The renewal comes from another client with the same id and a shorter ttl, as a renewal of an earlier hold may.
pub(super) async fn a_renewal_never_shortens_a_hold(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    let (request, mut claim) = held(&arena, &a, long(&arena, &a)).await;
    let mut late = b.backend.claim(request.ttl(arena.short_ttl()));
    // In a store with sessions another client has no part in the hold, and may say so.
    arena.soon("a renewal hangs", late.renew()).await.ok();
    sleep(arena.short_ttl() * 5 / 4).await;
    assert!(is_busy(&arena, &b).await, "a renewal with a shorter ttl shortened the hold");
    assert!(is_renewed(&arena, claim.as_mut()).await, "a renewal with a shorter ttl ended the hold");
    assert_eq!(released(&arena, claim.as_mut()).await, Release::Done, "held until now, and gone");
}
