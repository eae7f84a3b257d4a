//! Fencing tokens grow with every grant of a name, whatever happens in between. Each grant has its own.

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
            asking_again_after_a_lost_answer_is_one_grant,
        }
        "token" (Kind::Mutex) [Need::Tokens, Need::Inspect] { a_token_is_greater_than_that_of_a_broken_hold }
        "token" (Kind::Read) [Need::Tokens] { two_readers_have_two_tokens }
    }
}

/// The token of a hold that is taken and released.
async fn next_token(arena: &Arena, client: &Locks) -> Token {
    let held = arena.take_soon("nobody holds it", client).await;
    let token = token(&held);
    held.release().await.expect("held until now");
    token
}

fn token(held: &Guard) -> Token {
    held.token().expect("the store says that it has tokens")
}

pub(super) async fn tokens_grow_from_hold_to_hold(arena: Arc<Arena>) {
    let a = arena.client().await;
    let mut last = next_token(&arena, &a).await;
    for _ in 0..5 {
        let next = next_token(&arena, &a).await;
        assert!(next > last, "{next} after {last}");
        last = next;
    }
}

pub(super) async fn tokens_grow_from_client_to_client(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let mut last = next_token(&arena, &a).await;
    for client in [&b, &a, &a, &b] {
        let next = next_token(&arena, client).await;
        assert!(next > last, "{next} after {last}");
        last = next;
    }
}

pub(super) async fn a_token_is_greater_than_that_of_a_claim_that_expired(arena: Arc<Arena>) {
    let ((a, line), b) = (arena.client_with_switch().await, arena.client().await);
    let dead = arena.lock(&a).lock(&arena.short()).await.expect("nobody holds it");
    line.kill();
    let limit = arena.forgotten_after(&b, arena.short_ttl());
    let next = arena.within(limit, "it never expires", arena.take(&b, arena.kind())).await;
    assert!(next.token() > dead.token(), "{next:?} after {dead:?}");
}

pub(super) async fn a_token_is_greater_than_that_of_a_broken_hold(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let broken = arena.take_soon("nobody holds it", &a).await;
    b.force_release(arena.name()).await.expect("the store can be asked");
    let next = arena.take_soon("it was broken", &b).await;
    assert!(next.token() > broken.token(), "{next:?} after {broken:?}");
}

pub(super) async fn tokens_grow_across_the_kinds_of_a_name(arena: Arc<Arena>) {
    let a = arena.client().await;
    let mut last = None;
    for kind in a.info().kinds.iter().cycle().take(8) {
        let held = arena.soon("nobody holds it", arena.take(&a, *kind)).await;
        assert!(held.token() > last, "{kind} got {:?} after {last:?}", held.token());
        last = held.token();
        held.release().await.expect("held until now");
    }
}

pub(super) async fn tokens_grow_past_contenders_that_gave_up(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    let first = token(&held);
    timeout(Duration::from_millis(20), b.mutex(arena.name()).lock()).await.expect_err("two hold it");
    assert!(arena.is_busy(&b).await, "two hold it");
    held.release().await.expect("held until now");
    let next = next_token(&arena, &a).await;
    assert!(next > first, "{next} after {first}");
}

pub(super) async fn two_readers_have_two_tokens(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let first = arena.take_soon("nobody holds it", &a).await;
    let second = arena.take_soon("readers share", &b).await;
    assert!(second.token() > first.token(), "{second:?} beside {first:?}");
}

pub(super) async fn a_token_stays_the_same_through_renewals(arena: Arc<Arena>) {
    let a = arena.client().await;
    let held = arena.take_soon("nobody holds it", &a).await;
    let (first, end) = (token(&held), Instant::now() + held.remaining());
    let renewed = || Instant::now() + held.remaining() > end + arena.ttl() / 10;
    arena.until("it was not renewed", renewed).await;
    assert_eq!(token(&held), first);
    if let Ok(state) = a.inspect(arena.name()).await {
        let seen = state.expect("it is held").holders[0].token;
        assert!(seen.is_none_or(|seen| seen == first), "the store says {seen:?}, the guard {first}");
    }
}

pub(super) async fn a_token_stays_the_same_when_its_owner_enters_again(arena: Arc<Arena>) {
    let (a, me) = (arena.client().await, Owner::new());
    let lock = a.mutex(arena.name()).owned_by(&me);
    let outer = lock.lock().await.expect("nobody holds it");
    let inner = lock.lock().await.expect("it is ours");
    assert_eq!(inner.token(), outer.token(), "one hold has one token");
}

pub(super) async fn asking_again_after_a_lost_answer_is_one_grant(arena: Arc<Arena>) {
    let ((a, line), b) = (arena.client_with_switch().await, arena.client().await);
    line.lose_answers();
    let (lock, options) = (arena.lock(&a), arena.options());
    let asked = arena.go(async move { lock.lock(&options).await });
    arena.until_contenders(&b, 1).await;
    line.connect();
    let held =
        arena.soon("it never asks again", asked).await.expect("no panic").expect("nobody else holds it");
    if let Ok(state) = b.inspect(arena.name()).await {
        let state = state.expect("it is held");
        assert_eq!((state.holders.len(), state.queue.len()), (1, 0), "asking twice made two claims");
        let seen = state.holders[0].token;
        assert!(seen.is_none_or(|seen| seen == token(&held)), "the store says {seen:?}, the guard {held:?}");
    }
    held.release().await.expect("held until now");
    drop(arena.take_soon("asking twice made two claims", &b).await);
}
