//! If the store cannot be reached, a call fails in time. It never hangs, and never says that the lock is busy or free.

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
            a_waiter_whose_store_dies_is_told,
            a_try_of_a_dead_store_is_an_error,
            a_release_to_a_dead_store_ends_when_the_hold_would,
            a_blip_of_the_store_is_not_noticed_by_a_waiter,
        }
    }
}

pub(super) async fn a_bounded_wait_for_a_dead_store_ends_in_time_and_says_why(arena: Arc<Arena>) {
    let (a, line) = arena.client_with_switch().await;
    line.cut();
    let options = arena.options().wait(Duration::from_millis(200));
    let told = arena.soon("it waits on", arena.lock(&a).lock(&options)).await;
    assert!(
        matches!(told, Err(Error::Timeout { source: Some(_), .. })),
        "a wait for a store that is down is a timeout with the last failure, not {told:?}"
    );
}

pub(super) async fn an_unbounded_wait_for_a_dead_store_is_an_error(arena: Arc<Arena>) {
    let (a, line) = arena.client_with_switch().await;
    line.cut();
    let told = arena.soon("it hangs", arena.lock(&a).lock(&arena.options())).await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "the store is down, and `lock` says {told:?}");
}

/// Not before its place in the queue may be gone: it survives an outage that is shorter than its ttl.
pub(super) async fn a_waiter_whose_store_dies_is_told(arena: Arc<Arena>) {
    let ((a, line), b) = (arena.client_with_switch().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &b).await;
    let (lock, options) = (arena.lock(&a), arena.short());
    let waiter = arena.go(async move { lock.lock(&options).await });
    arena.until_contenders(&b, 2).await;
    line.cut();
    let told = arena.within(arena.short_ttl() * 2, "it hangs", waiter).await.expect("no panic");
    assert!(
        matches!(told, Err(Error::Unavailable { .. })),
        "the store is down, and a waiter is told {told:?}"
    );
    held.release().await.expect("held until now");
}

pub(super) async fn a_try_of_a_dead_store_is_an_error(arena: Arc<Arena>) {
    let (a, line) = arena.client_with_switch().await;
    line.cut();
    let told = arena.soon("it hangs", arena.lock(&a).try_lock(&arena.options())).await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "neither busy nor free is known: {told:?}");
}

pub(super) async fn a_release_to_a_dead_store_ends_when_the_hold_would(arena: Arc<Arena>) {
    let (a, line) = arena.client_with_switch().await;
    let held = arena.lock(&a).lock(&arena.short()).await.expect("nobody holds it");
    line.cut();
    let told = arena.within(arena.short_ttl(), "it hangs", held.release()).await;
    assert!(
        matches!(told, Err(Error::Unavailable { .. } | Error::Lost { .. })),
        "the store is down, and `release` says {told:?}"
    );
}

pub(super) async fn a_blip_of_the_store_is_not_noticed_by_a_waiter(arena: Arc<Arena>) {
    let (a, line) = arena.client_with_switch().await;
    line.cut();
    let (lock, options) = (arena.lock(&a), arena.options());
    let waiter = arena.go(async move { lock.lock(&options).await });
    sleep(Duration::from_millis(20)).await;
    line.connect();
    let held = arena.soon("it hangs", waiter).await.expect("no panic");
    drop(held.expect("the store was back in time"));
}
