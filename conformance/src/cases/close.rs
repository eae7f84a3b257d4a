//! A closed client takes no lock. Closing ends when all holds of the client have ended.

use std::sync::Arc;

use dlock_core::{Error, Kind};

use crate::{
    Arena,
    case::{Case, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "close" (Kind::Mutex) [] {
            closing_ends_the_wait,
            a_closed_client_takes_no_lock,
            closing_waits_for_what_is_held,
            a_dropped_hold_has_ended_when_closing_ends,
        }
    }
}

pub(super) async fn closing_ends_the_wait(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let waiter = arena.go(b.mutex(arena.name()).lock());
    arena.until_contenders(&a, 2).await;
    arena.soon("closing a client does not end its wait", b.close()).await;
    let result = waiter.await.expect("the task does not panic");
    assert!(
        matches!(result, Err(Error::Closed { .. })),
        "the client was closed, but its waiter got {result:?}"
    );
    held.release().await.expect("the lock is still held");
    drop(arena.take_soon("a waiter of the closed client still waits", &a).await);
}

pub(super) async fn a_closed_client_takes_no_lock(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    a.close().await;
    let result =
        [arena.lock(&a).lock(&arena.options()).await.map(Some), a.mutex(arena.name()).try_lock().await];
    for result in result {
        assert!(matches!(result, Err(Error::Closed { .. })), "a closed client returned {result:?}");
    }
    drop(arena.take_soon("a client is closed together with another one", &b).await);
}

pub(super) async fn closing_waits_for_what_is_held(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let mut closing = Box::pin(a.close());
    arena.still_waits("closing ended while a lock was held", &mut closing).await;
    assert!(!held.is_lost(), "closing a client lost its lock");
    assert!(arena.is_busy(&b).await, "two claims hold the lock");
    drop(held);
    arena.soon("closing does not end after the last lock was released", closing).await;
}

pub(super) async fn a_dropped_hold_has_ended_when_closing_ends(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    drop(arena.take_soon("a free lock was not granted", &a).await);
    arena.soon("closing a client without locks does not end", a.close()).await;
    assert!(!arena.is_busy(&b).await, "the lock is still held after closing");
}
