//! A server that stops and restarts, with its data or without.

use std::{sync::Arc, time::Duration};

use dlock_core::{Guard, Kind, Locks};
use futures_util::FutureExt;
use tokio::time::{Instant, sleep};

use crate::{
    Arena, Data,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "restart" (Kind::Mutex) [Need::Restart] {
            a_lock_outlives_a_restart_that_keeps_the_data,
            a_holder_is_notified_when_the_store_lost_its_data,
        }
        "restart" (Kind::Mutex) [Need::Restart, Need::Tokens, Need::TokenFloor] {
            tokens_grow_although_the_store_lost_its_data,
        }
    }
}

/// Tries until the store replies and the lock is free.
async fn taken_again(client: &Locks, name: &str) -> Guard {
    loop {
        match client.mutex(name).try_lock().await {
            Ok(Some(guard)) => return guard,
            Ok(None) => {}
            Err(error) => assert!(error.is_transient(), "an unreachable server was reported as {error:?}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

pub(super) async fn a_lock_outlives_a_restart_that_keeps_the_data(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (ttl, lock) = (arena.long_ttl(&a), arena.lock(&a));
    // Renews so frequently that a renewal follows soon after the restart.
    let held =
        lock.lock(&arena.options().ttl(ttl).renew_every(arena.ttl() / 5)).await.expect("the lock is free");
    arena.restart(Data::Kept).await;
    let end = Instant::now() + held.remaining();
    // Enough time remains for the release on a busy machine.
    let renewed = || {
        let remaining = held.remaining();
        held.is_lost() || remaining > ttl / 2 && Instant::now() + remaining > end
    };
    arena.until("the lock was not renewed after the restart", renewed).await;
    assert_eq!(held.lost().now_or_never(), None, "the lock was lost although the server kept its data");
    assert!(arena.is_busy(&b).await, "two claims hold the lock");
    held.release().await.expect("the lock is still held");
}

pub(super) async fn tokens_grow_although_the_store_lost_its_data(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let before = arena.take_soon("a free lock was not granted", &a).await;
    let token = before.token();
    before.release().await.expect("the lock is still held");
    arena.restart(Data::Lost).await;
    for client in [&a, &b] {
        let after = taken_again(client, arena.name());
        let after = arena
            .within(arena.ttl(), "the server is reachable again, but the client does not use it", after)
            .await;
        assert!(
            after.token() > token,
            "the token did not grow: {after:?} after the loss of the data, {token:?} before it"
        );
        after.release().await.expect("the lock is still held");
    }
}

pub(super) async fn a_holder_is_notified_when_the_store_lost_its_data(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    arena.restart(Data::Lost).await;
    arena.within(arena.ttl(), "the loss is never reported", held.lost()).await;
    let next = taken_again(&b, arena.name());
    drop(arena.within(arena.ttl(), "the claim was lost with the data, but the lock is not free", next).await);
}
