//! A client that is closed takes nothing more, and leaves when all it held is gone.

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
            what_was_dropped_has_left_when_closing_ends,
        }
    }
}

pub(super) async fn closing_ends_the_wait(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    let waiter = arena.go(b.mutex(arena.name()).lock());
    arena.until_contenders(&a, 2).await;
    arena.soon("it waits for its waiter", b.close()).await;
    let told = waiter.await.expect("no panic");
    assert!(
        matches!(told, Err(Error::Closed { .. })),
        "its client was closed, and a waiter is told {told:?}"
    );
    held.release().await.expect("held until now");
    drop(arena.take_soon("the waiter that was sent away still waits", &a).await);
}

pub(super) async fn a_closed_client_takes_no_lock(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    a.close().await;
    let told =
        [arena.lock(&a).lock(&arena.options()).await.map(Some), a.mutex(arena.name()).try_lock().await];
    for told in told {
        assert!(matches!(told, Err(Error::Closed { .. })), "a client that is closed answers {told:?}");
    }
    drop(arena.take_soon("another client is not closed", &b).await);
}

pub(super) async fn closing_waits_for_what_is_held(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    let mut closing = Box::pin(a.close());
    arena.still_waits("it is closed, but holds a lock", &mut closing).await;
    assert!(!held.is_lost(), "closing is no loss");
    assert!(arena.is_busy(&b).await, "two hold it");
    drop(held);
    arena.soon("it holds nothing any more", closing).await;
}

pub(super) async fn what_was_dropped_has_left_when_closing_ends(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    drop(arena.take_soon("nobody holds it", &a).await);
    arena.soon("it holds nothing", a.close()).await;
    assert!(!arena.is_busy(&b).await, "closed, and still held");
}
