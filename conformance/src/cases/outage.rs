//! If the store is unreachable, a call fails in time. It never hangs, and never reports the lock as
//! busy or free.

use std::{sync::Arc, time::Duration};

use dlock_core::{Error, Kind};
use tokio::time::sleep;

use crate::{
    Arena,
    case::{Case, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "outage" (Kind::Mutex) [] {
            a_bounded_wait_for_a_dead_store_ends_in_time_and_says_why,
            an_unbounded_wait_for_a_dead_store_is_an_error,
            a_waiter_whose_store_dies_gets_an_error,
            a_try_of_a_dead_store_is_an_error,
            a_release_to_a_dead_store_ends_when_the_hold_would,
            a_blip_of_the_store_is_not_noticed_by_a_waiter,
        }
    }
}

pub(super) async fn a_bounded_wait_for_a_dead_store_ends_in_time_and_says_why(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    switch.cut();
    let options = arena.options().wait(Duration::from_millis(200));
    let result = arena.soon("a limited wait does not end", arena.lock(&a).lock(&options)).await;
    assert!(
        matches!(result, Err(Error::Timeout { source: Some(_), .. })),
        "a limited wait without a reachable store must be a timeout with the last failure, not {result:?}"
    );
}

pub(super) async fn an_unbounded_wait_for_a_dead_store_is_an_error(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    switch.cut();
    let result = arena.soon("the call does not return", arena.lock(&a).lock(&arena.options())).await;
    assert!(
        matches!(result, Err(Error::Unavailable { .. })),
        "the store is unreachable, but `lock` returned {result:?}"
    );
}

/// The error is returned only when the waiter's place in the queue may have expired. An outage
/// shorter than the ttl leaves the place in the queue.
pub(super) async fn a_waiter_whose_store_dies_gets_an_error(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &b).await;
    let (lock, options) = (arena.lock(&a), arena.short());
    let waiter = arena.go(async move { lock.lock(&options).await });
    arena.until_contenders(&b, 2).await;
    switch.cut();
    let result = arena
        .within(arena.short_ttl() * 2, "the call does not return", waiter)
        .await
        .expect("the task does not panic");
    assert!(
        matches!(result, Err(Error::Unavailable { .. })),
        "the store is unreachable, but a waiter got {result:?}"
    );
    held.release().await.expect("the lock is still held");
}

pub(super) async fn a_try_of_a_dead_store_is_an_error(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    switch.cut();
    let result = arena.soon("the call does not return", arena.lock(&a).try_lock(&arena.options())).await;
    assert!(
        matches!(result, Err(Error::Unavailable { .. })),
        "the state of the lock is unknown, but the call returned {result:?}"
    );
}

pub(super) async fn a_release_to_a_dead_store_ends_when_the_hold_would(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    let held = arena.lock(&a).lock(&arena.short()).await.expect("the lock is free");
    switch.cut();
    let result = arena.within(arena.short_ttl(), "the call does not return", held.release()).await;
    assert!(
        matches!(result, Err(Error::Unavailable { .. } | Error::Lost { .. })),
        "the store is unreachable, but `release` returned {result:?}"
    );
}

pub(super) async fn a_blip_of_the_store_is_not_noticed_by_a_waiter(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    switch.cut();
    let (lock, options) = (arena.lock(&a), arena.options());
    let waiter = arena.go(async move { lock.lock(&options).await });
    sleep(Duration::from_millis(20)).await;
    switch.connect();
    let held = arena.soon("the call does not return", waiter).await.expect("the task does not panic");
    drop(held.expect("the store was reachable again in time"));
}
