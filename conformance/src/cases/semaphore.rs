//! Several permits under one name: so many hold at once, and no more. Over the usual length: the cases of one topic.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use dlock_core::{
    DistributedLock, Error, Guard, Kind, LockName, LockOptions, Locks,
    driver::{Attempt, Claim, Request},
};
use futures_util::{FutureExt, future::join_all};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    Arena,
    case::{Case, Need, cases},
    cases::cancel::{CUTS, cut_off},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "semaphore" (Kind::Permit) [] {
            as_many_hold_as_the_limit_says_and_the_next_waits,
            one_client_may_hold_several_permits,
            a_try_beyond_the_limit_is_busy_and_leaves_nothing,
            a_permit_given_back_wakes_a_waiter_long_before_the_ttl_ends,
            permits_are_granted_in_order_of_arrival,
            permits_outlast_the_ttl_side_by_side,
            an_acquire_beyond_the_limit_leaves_nothing_wherever_it_is_dropped,
            a_limit_of_zero_is_refused_without_asking_the_store,
            a_wider_limit_does_not_exceed_a_narrower_one,
            a_narrower_limit_waits_until_it_is_kept,
            a_narrow_waiter_that_leaves_lets_others_in,
        }
        "semaphore" (Kind::Permit) [Need::Driver] { a_permit_given_back_wakes_no_more_waiters_than_may_hold }
        "semaphore" (Kind::Permit) [Need::Tokens] { permits_that_are_held_together_have_distinct_tokens_that_grow }
        "semaphore" (Kind::Permit) [Need::Inspect] {
            the_store_shows_who_holds_permits_and_who_waits,
            breaking_a_semaphore_breaks_every_permit,
        }
    }
}

/// So long a ttl that neither its end nor a waiter's heartbeat can be the cause of what happens soon.
pub(super) fn long(arena: &Arena, client: &Locks) -> LockOptions {
    arena.options().ttl(arena.long_ttl(client))
}

/// A permit that must be granted at once. Otherwise the case fails with `what`.
#[track_caller]
pub(super) fn take(arena: &Arena, client: &Locks, limit: u32, what: &str) -> impl Future<Output = Guard> {
    let (lock, options) = (client.semaphore(arena.name(), limit), long(arena, client));
    let acquire = async move { lock.lock(&options).await.expect("granted in the end") };
    arena.soon(what, acquire)
}

/// So many permits, each of a client of its own.
pub(super) async fn take_all(arena: &Arena, limits: &[u32]) -> Vec<Guard> {
    let mut held = Vec::new();
    for limit in limits {
        let client = arena.client().await;
        held.push(take(arena, &client, *limit, "a permit is free").await);
    }
    held
}

/// A contender with a client of its own, as a task. The store has it, as the last of `contenders`, when this returns.
pub(super) async fn arrive(arena: &Arena, limit: u32, contenders: usize) -> JoinHandle<Guard> {
    let client = arena.client().await;
    let (lock, options) = (client.semaphore(arena.name(), limit), long(arena, &client));
    let task = arena.go(async move { lock.lock(&options).await.expect("granted in the end") });
    arena.until_contenders(&client, contenders).await;
    task
}

/// Whether one try for a permit is refused.
pub(super) async fn is_full(arena: &Arena, client: &Locks, limit: u32) -> bool {
    let tried = client.semaphore(arena.name(), limit).try_acquire().ttl(arena.ttl()).await;
    tried.expect("busy is no error").is_none()
}

pub(super) async fn as_many_hold_as_the_limit_says_and_the_next_waits(arena: Arc<Arena>) {
    let (mut held, client) = (take_all(&arena, &[3; 3]).await, arena.client().await);
    let next = client.semaphore(arena.name(), 3);
    let mut waiting = Box::pin(next.acquire().ttl(arena.ttl()));
    arena.still_waits("four hold it, and the limit is three", &mut waiting).await;
    held.remove(1).release().await.expect("held until now");
    held.push(arena.soon("one of three permits is free", waiting).await.expect("granted in the end"));
    assert!(held.iter().all(|guard| !guard.is_lost()), "a permit was taken from its holder");
    assert!(is_full(&arena, &client, 3).await, "four hold it, and the limit is three");
}

pub(super) async fn one_client_may_hold_several_permits(arena: Arc<Arena>) {
    let client = arena.client().await;
    let held =
        [take(&arena, &client, 2, "nobody holds one").await, take(&arena, &client, 2, "one is free").await];
    assert!(is_full(&arena, &client, 2).await, "three hold it, and the limit is two");
    assert_ne!(held[0].id(), held[1].id(), "one claim was counted twice");
}

pub(super) async fn a_try_beyond_the_limit_is_busy_and_leaves_nothing(arena: Arc<Arena>) {
    let (held, client) = (take_all(&arena, &[2; 2]).await, arena.client().await);
    for _ in 0..3 {
        assert!(is_full(&arena, &client, 2).await, "three hold it, and the limit is two");
    }
    for guard in held {
        guard.release().await.expect("held until now");
    }
    let held = take_all(&arena, &[2; 2]).await;
    assert_eq!(held.len(), 2, "a refused try counts");
}

pub(super) async fn a_permit_given_back_wakes_a_waiter_long_before_the_ttl_ends(arena: Arc<Arena>) {
    let mut held = take_all(&arena, &[2; 2]).await;
    for round in 0..4 {
        let waiter = arrive(&arena, 2, 3).await;
        // The older permit in one round, the newer in the next.
        held.remove(round % 2).release().await.expect("held until now");
        held.push(arena.soon("the waiter is not woken", waiter).await.expect("no panic"));
    }
}

/// Hints may come without cause. But if each release woke all who wait, a thousand waiters would ask for each permit. A
/// store that can only watch wakes as many as may hold together, and no store need wake more.
pub(super) async fn a_permit_given_back_wakes_no_more_waiters_than_may_hold(arena: Arc<Arena>) {
    const WAITERS: usize = 12;
    let (store, client) = (arena.store().await, arena.client().await);
    let name = LockName::new(arena.name()).expect("legal");
    let limit = NonZeroU32::new(2).expect("not zero");
    let request = || Request::new(name.clone(), Kind::Permit, arena.long_ttl(&client)).limit(limit);
    let mut claims = Vec::new();
    for number in 0..2 + WAITERS {
        let mut claim = store.backend.claim(request());
        // A waiter that subscribes asks twice.
        for _ in 0..2 {
            let answer = claim.attempt().await.expect("the store can be asked");
            assert_eq!(matches!(answer, Attempt::Granted(_)), number < 2, "the limit is two: {answer:?}");
        }
        claims.push(claim);
    }
    let mut holders = claims.drain(..2).collect::<Vec<_>>();
    while join_all(claims.iter_mut().map(is_woken)).await.contains(&true) {}
    holders.remove(0).release().await.expect("the store can be asked");
    let woken = join_all(claims.iter_mut().map(is_woken)).await.into_iter().filter(|woken| *woken).count();
    for claim in claims.iter_mut().chain(&mut holders) {
        claim.release().await.expect("the store can be asked");
    }
    assert!(woken <= 2, "{woken} of {WAITERS} waiters were woken by one release, and the limit is two");
}

/// Whether the claim is told within a moment that it is worth asking again.
async fn is_woken(claim: &mut Box<dyn Claim>) -> bool {
    timeout(Duration::from_millis(200), claim.changed().boxed()).await.is_ok()
}

pub(super) async fn permits_are_granted_in_order_of_arrival(arena: Arc<Arena>) {
    let (mut held, mut waiters) = (take_all(&arena, &[2; 2]).await, Vec::new());
    for number in 0..4 {
        waiters.push(arrive(&arena, 2, 3 + number).await);
    }
    for number in 0..4 {
        held.remove(0).release().await.expect("held until now");
        let next = arena.soon("the first who waits is not granted", &mut waiters[number]).await;
        held.push(next.expect("no panic"));
        sleep(Duration::from_millis(20)).await;
        let ahead = waiters[number + 1..].iter().filter(|waiter| waiter.is_finished()).count();
        assert_eq!(ahead, 0, "somebody behind the first was granted too");
    }
}

pub(super) async fn permits_outlast_the_ttl_side_by_side(arena: Arc<Arena>) {
    let (client, mut held) = (arena.client().await, Vec::new());
    for _ in 0..2 {
        held.push(
            client.semaphore(arena.name(), 2).acquire().ttl(arena.kept_ttl()).await.expect("one is free"),
        );
    }
    sleep(arena.kept_ttl() * 2).await;
    assert!(held.iter().all(|guard| !guard.is_lost()), "a permit was not renewed");
    assert!(is_full(&arena, &client, 2).await, "the store has forgotten a permit");
}

pub(super) async fn an_acquire_beyond_the_limit_leaves_nothing_wherever_it_is_dropped(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (lock, options) = (a.semaphore(arena.name(), 2), long(&arena, &a));
    for cut in 0..CUTS {
        let what = format!("left behind at cut {cut}");
        let held = [take(&arena, &b, 2, &what).await, take(&arena, &b, 2, &what).await];
        let asked = lock.lock(&options);
        assert!(cut_off(asked, cut).await.is_none(), "three hold it, and the limit is two");
        join_all(held.map(Guard::release)).await.into_iter().for_each(|told| told.expect("held until now"));
    }
    drop(take(&arena, &b, 1, "left behind at the last cut").await);
}

pub(super) async fn a_limit_of_zero_is_refused_without_asking_the_store(arena: Arc<Arena>) {
    let (client, switch) = arena.client_with_switch().await;
    switch.cut();
    let error = client.semaphore(arena.name(), 0).acquire().await.expect_err("nobody could hold it");
    assert!(matches!(error, Error::InvalidOptions { .. }), "{error:?}");
    assert!(error.to_string().contains(arena.name()), "does not name the semaphore: {error}");
}

pub(super) async fn a_wider_limit_does_not_exceed_a_narrower_one(arena: Arc<Arena>) {
    let (mut held, client) = (take_all(&arena, &[4; 4]).await, arena.client().await);
    assert!(is_full(&arena, &client, 5).await, "a fifth came in beside four that know of four");
    let next = arrive(&arena, 5, 5).await;
    assert!(!next.is_finished(), "a fifth came in beside four that know of four");
    held.remove(0).release().await.expect("held until now");
    held.push(arena.soon("there are three beside it", next).await.expect("no panic"));
    assert!(is_full(&arena, &client, 5).await, "a fifth came in beside three that know of four");
    for old in held.drain(..3) {
        old.release().await.expect("held until now");
    }
    held.extend(take_all(&arena, &[5; 4]).await);
    assert!(is_full(&arena, &client, 5).await, "six hold it, and all know of five");
}

pub(super) async fn a_narrower_limit_waits_until_it_is_kept(arena: Arc<Arena>) {
    let mut held = take_all(&arena, &[3; 3]).await;
    let mut narrow = arrive(&arena, 2, 4).await;
    held.remove(0).release().await.expect("held until now");
    arena.still_waits("it is beside two others, and knows of two", &mut narrow).await;
    held.remove(0).release().await.expect("held until now");
    let narrow = arena.soon("there is one beside it", narrow).await.expect("no panic");
    let client = arena.client().await;
    assert!(is_full(&arena, &client, 3).await, "a third came in beside one that knows of two");
    narrow.release().await.expect("held until now");
    drop(take(&arena, &client, 3, "the narrow one has left").await);
}

pub(super) async fn a_narrow_waiter_that_leaves_lets_others_in(arena: Arc<Arena>) {
    let _held = take_all(&arena, &[3]).await;
    let narrow = arrive(&arena, 1, 2).await;
    let behind = [arrive(&arena, 3, 3).await, arrive(&arena, 3, 4).await];
    narrow.abort();
    // Joined, so that both hold at once.
    let both = arena.soon("nobody is in the way any more", join_all(behind)).await;
    assert!(both.into_iter().all(|guard| !guard.expect("no panic").is_lost()));
}

pub(super) async fn permits_that_are_held_together_have_distinct_tokens_that_grow(arena: Arc<Arena>) {
    let held = take_all(&arena, &[3; 3]).await;
    let tokens: Vec<_> = held.iter().map(|guard| guard.token().expect("the store has tokens")).collect();
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}, in order of the grants");
    drop(held);
    let client = arena.client().await;
    let next = take(&arena, &client, 1, "all were given back").await;
    assert!(next.token() > tokens.last().copied(), "{next:?} after {tokens:?}");
}

pub(super) async fn the_store_shows_who_holds_permits_and_who_waits(arena: Arc<Arena>) {
    let (held, client) = (take_all(&arena, &[2; 2]).await, arena.client().await);
    let waiter = arrive(&arena, 2, 3).await;
    let state = client.inspect(arena.name()).await.expect("the store can be asked").expect("it is held");
    assert_eq!((state.holders.len(), state.queue.len()), (2, 1), "{state:?}");
    for (shown, guard) in state.holders.iter().zip(&held) {
        assert_eq!(shown.kind, Kind::Permit);
        assert!(shown.token.is_none_or(|token| Some(token) == guard.token()), "{shown:?} for {guard:?}");
        let id = guard.id().expect("one claim").to_string();
        assert!(state.holders.iter().any(|shown| shown.id.starts_with(&id)), "{guard:?} is not in {state:?}");
    }
    assert_eq!(state.queue[0].kind, Kind::Permit);
    waiter.abort();
}

pub(super) async fn breaking_a_semaphore_breaks_every_permit(arena: Arc<Arena>) {
    let (client, mut held) = (arena.client().await, Vec::new());
    for _ in 0..2 {
        // No longer: a holder may be told by its next renewal.
        let permit = client.semaphore(arena.name(), 2).acquire().ttl(arena.ttl()).await;
        held.push(permit.expect("granted in the end"));
    }
    let waiter = arrive(&arena, 2, 3).await;
    assert!(client.force_release(arena.name()).await.expect("the store can be asked"), "two held it");
    let next = arena.soon("the permits are free", waiter).await.expect("no panic");
    for guard in &held {
        arena.within(arena.ttl(), "a robbed holder is not told", guard.lost()).await;
    }
    assert!(!next.is_lost(), "the next holder was robbed too");
}
