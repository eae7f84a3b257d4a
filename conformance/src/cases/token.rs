//! Fencing tokens grow with every grant of a name, whatever happens between the grants. Each grant
//! has its own token.

use std::{sync::Arc, time::Duration};

use dlock_core::{Guard, Kind, Locks, Owner, Token};
use tokio::time::{Instant, timeout};

use crate::{
    Arena,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "token" (Kind::Mutex) [Need::Tokens] {
            tokens_grow_from_hold_to_hold,
            tokens_grow_from_client_to_client,
            a_token_is_greater_than_that_of_a_claim_that_expired,
            tokens_grow_across_the_kinds_of_a_name,
            tokens_grow_past_contenders_that_gave_up,
            a_token_stays_the_same_through_renewals,
            a_token_stays_the_same_when_its_owner_enters_again,
            a_second_attempt_after_a_lost_answer_is_one_grant,
        }
        "token" (Kind::Mutex) [Need::Tokens, Need::Inspect] { a_token_is_greater_than_that_of_a_broken_hold }
        "token" (Kind::Read) [Need::Tokens] { two_readers_have_two_tokens }
    }
}

/// Takes and releases the lock. Returns the token of the hold.
async fn next_token(arena: &Arena, client: &Locks) -> Token {
    let held = arena.take_soon("a free lock was not granted", client).await;
    let token = token(&held);
    held.release().await.expect("the lock is still held");
    token
}

fn token(held: &Guard) -> Token {
    held.token().expect("the store declares that it has tokens")
}

pub(super) async fn tokens_grow_from_hold_to_hold(arena: Arc<Arena>) {
    let a = arena.client().await;
    let mut last = next_token(&arena, &a).await;
    for _ in 0..5 {
        let next = next_token(&arena, &a).await;
        assert!(next > last, "the token did not grow: {next} after {last}");
        last = next;
    }
}

pub(super) async fn tokens_grow_from_client_to_client(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let mut last = next_token(&arena, &a).await;
    for client in [&b, &a, &a, &b] {
        let next = next_token(&arena, client).await;
        assert!(next > last, "the token did not grow: {next} after {last}");
        last = next;
    }
}

pub(super) async fn a_token_is_greater_than_that_of_a_claim_that_expired(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    let dead = arena.lock(&a).lock(&arena.short()).await.expect("the lock is free");
    switch.kill();
    let limit = arena.forgotten_after(&b, arena.short_ttl());
    let next = arena.within(limit, "the claim never expires", arena.take(&b, arena.kind())).await;
    assert!(next.token() > dead.token(), "the token did not grow: {next:?} after {dead:?}");
}

pub(super) async fn a_token_is_greater_than_that_of_a_broken_hold(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let broken = arena.take_soon("a free lock was not granted", &a).await;
    b.force_release(arena.name()).await.expect("the store is reachable");
    let next = arena.take_soon("a lock is not free after a forced release", &b).await;
    assert!(next.token() > broken.token(), "the token did not grow: {next:?} after {broken:?}");
}

pub(super) async fn tokens_grow_across_the_kinds_of_a_name(arena: Arc<Arena>) {
    let a = arena.client().await;
    let mut last = None;
    for kind in a.info().kinds.iter().cycle().take(8) {
        let held = arena.soon("a free lock was not granted", arena.take(&a, *kind)).await;
        assert!(held.token() > last, "the token did not grow: {kind} got {:?} after {last:?}", held.token());
        last = held.token();
        held.release().await.expect("the lock is still held");
    }
}

pub(super) async fn tokens_grow_past_contenders_that_gave_up(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let first = token(&held);
    timeout(Duration::from_millis(20), b.mutex(arena.name()).lock())
        .await
        .expect_err("two claims hold the lock");
    assert!(arena.is_busy(&b).await, "two claims hold the lock");
    held.release().await.expect("the lock is still held");
    let next = next_token(&arena, &a).await;
    assert!(next > first, "the token did not grow: {next} after {first}");
}

pub(super) async fn two_readers_have_two_tokens(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let first = arena.take_soon("a free lock was not granted", &a).await;
    let second = arena.take_soon("a reader was not granted beside a reader", &b).await;
    assert!(second.token() > first.token(), "two readers have the tokens {second:?} and {first:?}");
}

pub(super) async fn a_token_stays_the_same_through_renewals(arena: Arc<Arena>) {
    let a = arena.client().await;
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let (first, end) = (token(&held), Instant::now() + held.remaining());
    let renewed = || Instant::now() + held.remaining() > end + arena.ttl() / 10;
    arena.until("the lock was not renewed", renewed).await;
    assert_eq!(token(&held), first);
    if let Ok(state) = a.inspect(arena.name()).await {
        let reported = state.expect("the lock is held").holders[0].token;
        assert!(
            reported.is_none_or(|reported| reported == first),
            "the store reports the token {reported:?}, but the guard has {first}"
        );
    }
}

pub(super) async fn a_token_stays_the_same_when_its_owner_enters_again(arena: Arc<Arena>) {
    let (a, owner) = (arena.client().await, Owner::new());
    let lock = a.mutex(arena.name()).owned_by(&owner);
    let outer = lock.lock().await.expect("the lock is free");
    let inner = lock.lock().await.expect("the owner holds the lock");
    assert_eq!(inner.token(), outer.token(), "one hold has two tokens");
}

pub(super) async fn a_second_attempt_after_a_lost_answer_is_one_grant(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    switch.lose_answers();
    let (lock, options) = (arena.lock(&a), arena.options());
    let acquiring = arena.go(async move { lock.lock(&options).await });
    arena.until_contenders(&b, 1).await;
    switch.connect();
    let held = arena
        .soon("the attempt is never repeated", acquiring)
        .await
        .expect("the task does not panic")
        .expect("the lock is free");
    if let Ok(state) = b.inspect(arena.name()).await {
        let state = state.expect("the lock is held");
        assert_eq!(
            (state.holders.len(), state.queue.len()),
            (1, 0),
            "a second attempt created another claim"
        );
        let reported = state.holders[0].token;
        assert!(
            reported.is_none_or(|reported| reported == token(&held)),
            "the store reports the token {reported:?}, but the guard has {held:?}"
        );
    }
    held.release().await.expect("the lock is still held");
    drop(arena.take_soon("a second attempt created another claim", &b).await);
}
