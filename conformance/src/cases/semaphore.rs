//! Several permits under one name. As many claims hold at once as the limit allows, and no more.

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
            a_released_permit_wakes_a_waiter_long_before_the_ttl_ends,
            permits_are_granted_in_order_of_arrival,
            permits_outlast_the_ttl_side_by_side,
            an_acquire_beyond_the_limit_leaves_nothing_wherever_it_is_dropped,
            a_limit_of_zero_is_refused_before_any_io,
            a_wider_limit_does_not_exceed_a_narrower_one,
            a_narrower_limit_waits_until_it_is_kept,
            a_narrow_waiter_that_leaves_lets_others_in,
            the_greatest_limit_is_a_limit,
        }
        "semaphore" (Kind::Permit) [Need::Driver] { a_permit_given_back_wakes_no_more_waiters_than_may_hold }
        "semaphore" (Kind::Permit) [Need::Tokens] { permits_that_are_held_together_have_distinct_tokens_that_grow }
        "semaphore" (Kind::Permit) [Need::Inspect] {
            the_store_shows_the_holders_and_the_waiters_of_a_semaphore,
            breaking_a_semaphore_breaks_every_permit,
        }
    }
}

/// Returns options with a long ttl. Neither its end nor a waiter's heartbeat can be the cause of an
/// immediate effect.
pub(super) fn long(arena: &Arena, client: &Locks) -> LockOptions {
    arena.options().ttl(arena.long_ttl(client))
}

/// Takes a permit that must be granted at once. Otherwise the case fails with `failure`.
#[track_caller]
pub(super) fn take(arena: &Arena, client: &Locks, limit: u32, failure: &str) -> impl Future<Output = Guard> {
    let (lock, options) = (client.semaphore(arena.name(), limit), long(arena, client));
    let acquire =
        async move { lock.lock(&options).await.expect("an acquisition without a limit is granted") };
    arena.soon(failure, acquire)
}

/// Takes a permit for each of these limits, each with a new client.
pub(super) async fn take_all(arena: &Arena, limits: &[u32]) -> Vec<Guard> {
    let mut held = Vec::new();
    for limit in limits {
        let client = arena.client().await;
        held.push(take(arena, &client, *limit, "a permit is free").await);
    }
    held
}

/// Starts a contender as a task with a new client. When this function returns, the store has its
/// claim as the last of `contenders` claims.
pub(super) async fn arrive(arena: &Arena, limit: u32, contenders: usize) -> JoinHandle<Guard> {
    let client = arena.client().await;
    let (lock, options) = (client.semaphore(arena.name(), limit), long(arena, &client));
    let task = arena
        .go(async move { lock.lock(&options).await.expect("an acquisition without a limit is granted") });
    arena.until_contenders(&client, contenders).await;
    task
}

/// Tries to take a permit once. Returns whether none was free.
pub(super) async fn is_full(arena: &Arena, client: &Locks, limit: u32) -> bool {
    let tried = client.semaphore(arena.name(), limit).try_acquire().ttl(arena.ttl()).await;
    tried.expect("a busy lock is not an error").is_none()
}

pub(super) async fn as_many_hold_as_the_limit_says_and_the_next_waits(arena: Arc<Arena>) {
    let (mut held, client) = (take_all(&arena, &[3; 3]).await, arena.client().await);
    let next = client.semaphore(arena.name(), 3);
    let mut waiting = Box::pin(next.acquire().ttl(arena.ttl()));
    arena.still_waits("four claims hold the semaphore, but its limit is three", &mut waiting).await;
    held.remove(1).release().await.expect("the lock is still held");
    held.push(
        arena
            .soon("a released permit was not granted", waiting)
            .await
            .expect("an acquisition without a limit is granted"),
    );
    assert!(held.iter().all(|guard| !guard.is_lost()), "a holder lost its permit");
    assert!(is_full(&arena, &client, 3).await, "four claims hold the semaphore, but its limit is three");
}

pub(super) async fn one_client_may_hold_several_permits(arena: Arc<Arena>) {
    let client = arena.client().await;
    let held = [
        take(&arena, &client, 2, "a free permit was not granted").await,
        take(&arena, &client, 2, "a free permit was not granted").await,
    ];
    assert!(is_full(&arena, &client, 2).await, "three claims hold the semaphore, but its limit is two");
    assert_ne!(held[0].id(), held[1].id(), "one claim counts as two");
}

pub(super) async fn a_try_beyond_the_limit_is_busy_and_leaves_nothing(arena: Arc<Arena>) {
    let (held, client) = (take_all(&arena, &[2; 2]).await, arena.client().await);
    for _ in 0..3 {
        assert!(is_full(&arena, &client, 2).await, "three claims hold the semaphore, but its limit is two");
    }
    for guard in held {
        guard.release().await.expect("the lock is still held");
    }
    let held = take_all(&arena, &[2; 2]).await;
    assert_eq!(held.len(), 2, "a refused try uses a permit");
}

pub(super) async fn a_released_permit_wakes_a_waiter_long_before_the_ttl_ends(arena: Arc<Arena>) {
    let mut held = take_all(&arena, &[2; 2]).await;
    for round in 0..4 {
        let waiter = arrive(&arena, 2, 3).await;
        // Releases the older permit in one round, the newer in the next.
        held.remove(round % 2).release().await.expect("the lock is still held");
        held.push(arena.soon("the waiter is not woken", waiter).await.expect("the task does not panic"));
    }
}

/// Hints may be unfounded. But if each release woke all waiters, a thousand waiters would request
/// each permit. A store that can only watch wakes as many waiters as may hold together, and no
/// store needs to wake more.
pub(super) async fn a_permit_given_back_wakes_no_more_waiters_than_may_hold(arena: Arc<Arena>) {
    const WAITERS: usize = 12;
    let (store, client) = (arena.store().await, arena.client().await);
    let name = LockName::new(arena.name()).expect("the name is legal");
    let limit = NonZeroU32::new(2).expect("the limit is not zero");
    let request = || Request::new(name.clone(), Kind::Permit, arena.long_ttl(&client)).limit(limit);
    let mut claims = Vec::new();
    for number in 0..2 + WAITERS {
        let mut claim = store.backend.claim(request());
        // A waiter that subscribes attempts twice.
        for _ in 0..2 {
            let reply = claim.attempt().await.expect("the store is reachable");
            assert_eq!(
                matches!(reply, Attempt::Granted(_)),
                number < 2,
                "the limit is two, but an attempt returned {reply:?}"
            );
        }
        claims.push(claim);
    }
    let mut holders = claims.drain(..2).collect::<Vec<_>>();
    while join_all(claims.iter_mut().map(is_woken)).await.contains(&true) {}
    holders.remove(0).release().await.expect("the store is reachable");
    let woken = join_all(claims.iter_mut().map(is_woken)).await.into_iter().filter(|woken| *woken).count();
    for claim in claims.iter_mut().chain(&mut holders) {
        claim.release().await.expect("the store is reachable");
    }
    assert!(woken <= 2, "{woken} of {WAITERS} waiters were woken by one release, and the limit is two");
}

/// Returns whether the claim gets a hint within 200 ms.
async fn is_woken(claim: &mut Box<dyn Claim>) -> bool {
    timeout(Duration::from_millis(200), claim.changed().boxed()).await.is_ok()
}

pub(super) async fn permits_are_granted_in_order_of_arrival(arena: Arc<Arena>) {
    let (mut held, mut waiters) = (take_all(&arena, &[2; 2]).await, Vec::new());
    for number in 0..4 {
        waiters.push(arrive(&arena, 2, 3 + number).await);
    }
    for number in 0..4 {
        held.remove(0).release().await.expect("the lock is still held");
        let next = arena.soon("the first waiter is not granted", &mut waiters[number]).await;
        held.push(next.expect("the task does not panic"));
        sleep(Duration::from_millis(20)).await;
        let ahead = waiters[number + 1..].iter().filter(|waiter| waiter.is_finished()).count();
        assert_eq!(ahead, 0, "a waiter behind the first was granted too");
    }
}

pub(super) async fn permits_outlast_the_ttl_side_by_side(arena: Arc<Arena>) {
    let (client, mut held) = (arena.client().await, Vec::new());
    for _ in 0..2 {
        held.push(
            client
                .semaphore(arena.name(), 2)
                .acquire()
                .ttl(arena.kept_ttl())
                .await
                .expect("a permit is free"),
        );
    }
    sleep(arena.kept_ttl() * 2).await;
    assert!(held.iter().all(|guard| !guard.is_lost()), "a permit was not renewed");
    assert!(is_full(&arena, &client, 2).await, "the store has deleted a live permit");
}

pub(super) async fn an_acquire_beyond_the_limit_leaves_nothing_wherever_it_is_dropped(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (lock, options) = (a.semaphore(arena.name(), 2), long(&arena, &a));
    for cut in 0..CUTS {
        let failure = format!("a claim was left behind at cut {cut}");
        let held = [take(&arena, &b, 2, &failure).await, take(&arena, &b, 2, &failure).await];
        let acquiring = lock.lock(&options);
        assert!(
            cut_off(acquiring, cut).await.is_none(),
            "three claims hold the semaphore, but its limit is two"
        );
        join_all(held.map(Guard::release))
            .await
            .into_iter()
            .for_each(|result| result.expect("the lock is still held"));
    }
    drop(take(&arena, &b, 1, "a claim was left behind at the last cut").await);
}

pub(super) async fn the_greatest_limit_is_a_limit(arena: Arc<Arena>) {
    let held = take_all(&arena, &[u32::MAX, u32::MAX, 3]).await;
    let client = arena.client().await;
    for limit in [u32::MAX, 4] {
        let tried = client.semaphore(arena.name(), limit).try_lock(&arena.options()).await;
        let tried = tried.expect("a busy lock is not an error");
        assert!(tried.is_none(), "a fourth claim holds beside one with the limit 3");
    }
    for held in held {
        held.release().await.expect("the permit is still held");
    }
    drop(take(&arena, &client, u32::MAX, "a permit is free").await);
}

pub(super) async fn a_limit_of_zero_is_refused_before_any_io(arena: Arc<Arena>) {
    let (client, switch) = arena.client_with_switch().await;
    switch.cut();
    let error =
        client.semaphore(arena.name(), 0).acquire().await.expect_err("a limit of zero must be refused");
    assert!(matches!(error, Error::InvalidOptions { .. }), "{error:?}");
    assert!(error.to_string().contains(arena.name()), "the error does not name the semaphore: {error}");
}

pub(super) async fn a_wider_limit_does_not_exceed_a_narrower_one(arena: Arc<Arena>) {
    let (mut held, client) = (take_all(&arena, &[4; 4]).await, arena.client().await);
    assert!(is_full(&arena, &client, 5).await, "a fifth permit was granted beside four that know of four");
    let next = arrive(&arena, 5, 5).await;
    assert!(!next.is_finished(), "a fifth permit was granted beside four that know of four");
    held.remove(0).release().await.expect("the lock is still held");
    held.push(
        arena
            .soon("a permit was not granted beside three others", next)
            .await
            .expect("the task does not panic"),
    );
    assert!(is_full(&arena, &client, 5).await, "a fifth permit was granted beside three that know of four");
    for old in held.drain(..3) {
        old.release().await.expect("the lock is still held");
    }
    held.extend(take_all(&arena, &[5; 4]).await);
    assert!(is_full(&arena, &client, 5).await, "six permits are held with limits of five");
}

pub(super) async fn a_narrower_limit_waits_until_it_is_kept(arena: Arc<Arena>) {
    let mut held = take_all(&arena, &[3; 3]).await;
    let mut narrow = arrive(&arena, 2, 4).await;
    held.remove(0).release().await.expect("the lock is still held");
    arena.still_waits("a permit with a limit of two was granted beside two others", &mut narrow).await;
    held.remove(0).release().await.expect("the lock is still held");
    let narrow = arena
        .soon("a permit with a limit of two was not granted beside one other", narrow)
        .await
        .expect("the task does not panic");
    let client = arena.client().await;
    assert!(is_full(&arena, &client, 3).await, "a third permit was granted beside one with a limit of two");
    narrow.release().await.expect("the lock is still held");
    drop(take(&arena, &client, 3, "a permit was not granted after the release of the narrower one").await);
}

pub(super) async fn a_narrow_waiter_that_leaves_lets_others_in(arena: Arc<Arena>) {
    let _held = take_all(&arena, &[3]).await;
    let narrow = arrive(&arena, 1, 2).await;
    let behind = [arrive(&arena, 3, 3).await, arrive(&arena, 3, 4).await];
    narrow.abort();
    // Joined, so that both hold at once.
    let both = arena.soon("the waiters were not granted after the narrower one left", join_all(behind)).await;
    assert!(both.into_iter().all(|guard| !guard.expect("the task does not panic").is_lost()));
}

pub(super) async fn permits_that_are_held_together_have_distinct_tokens_that_grow(arena: Arc<Arena>) {
    let held = take_all(&arena, &[3; 3]).await;
    let tokens: Vec<_> =
        held.iter().map(|guard| guard.token().expect("the store declares that it has tokens")).collect();
    assert!(
        tokens.is_sorted_by(|one, next| one < next),
        "the tokens do not grow in the order of the grants: {tokens:?}"
    );
    drop(held);
    let client = arena.client().await;
    let next = take(&arena, &client, 1, "a permit was not granted after all others were released").await;
    assert!(next.token() > tokens.last().copied(), "the token did not grow: {next:?} after {tokens:?}");
}

pub(super) async fn the_store_shows_the_holders_and_the_waiters_of_a_semaphore(arena: Arc<Arena>) {
    let (held, client) = (take_all(&arena, &[2; 2]).await, arena.client().await);
    let waiter = arrive(&arena, 2, 3).await;
    let state =
        client.inspect(arena.name()).await.expect("the store is reachable").expect("the lock is held");
    assert_eq!((state.holders.len(), state.queue.len()), (2, 1), "{state:?}");
    for (reported, guard) in state.holders.iter().zip(&held) {
        assert_eq!(reported.kind, Kind::Permit);
        assert!(
            reported.token.is_none_or(|token| Some(token) == guard.token()),
            "the store reports {reported:?} for {guard:?}"
        );
        let id = guard.id().expect("the guard has one claim").to_string();
        assert!(
            state.holders.iter().any(|reported| reported.id.starts_with(&id)),
            "{guard:?} is not in {state:?}"
        );
    }
    assert_eq!(state.queue[0].kind, Kind::Permit);
    waiter.abort();
}

pub(super) async fn breaking_a_semaphore_breaks_every_permit(arena: Arc<Arena>) {
    let (client, mut held) = (arena.client().await, Vec::new());
    for _ in 0..2 {
        // The usual ttl, because the loss may be reported only by the next renewal.
        let permit = client.semaphore(arena.name(), 2).acquire().ttl(arena.ttl()).await;
        held.push(permit.expect("an acquisition without a limit is granted"));
    }
    let waiter = arrive(&arena, 2, 3).await;
    assert!(
        client.force_release(arena.name()).await.expect("the store is reachable"),
        "two claims held the lock"
    );
    let next = arena
        .soon("the waiter is not granted after all permits were broken", waiter)
        .await
        .expect("the task does not panic");
    for guard in &held {
        arena.within(arena.ttl(), "the loss is not reported after a forced release", guard.lost()).await;
    }
    assert!(!next.is_lost(), "the next holder lost its permit too");
}
