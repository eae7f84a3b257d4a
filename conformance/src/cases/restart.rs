//! A server that dies and comes back, with its data or without.

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
            a_holder_is_told_when_the_store_lost_its_data,
        }
        "restart" (Kind::Mutex) [Need::Restart, Need::Tokens, Need::TokenFloor] {
            tokens_grow_although_the_store_lost_its_data,
        }
    }
}

/// Tries until the store answers and the lock is free.
async fn taken_again(client: &Locks, name: &str) -> Guard {
    loop {
        match client.mutex(name).try_lock().await {
            Ok(Some(guard)) => return guard,
            Ok(None) => {}
            Err(error) => assert!(error.is_transient(), "a server that was away is told as {error:?}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

pub(super) async fn a_lock_outlives_a_restart_that_keeps_the_data(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (ttl, lock) = (arena.long_ttl(&a), arena.lock(&a));
    // Renews so often that a renewal follows soon after the restart.
    let held =
        lock.lock(&arena.options().ttl(ttl).renew_every(arena.ttl() / 5)).await.expect("nobody holds it");
    arena.restart(Data::Kept).await;
    let end = Instant::now() + held.remaining();
    let renewed = || held.is_lost() || Instant::now() + held.remaining() > end;
    arena.until("it was not renewed after the restart", renewed).await;
    assert_eq!(held.lost().now_or_never(), None, "lost, though the server kept its data");
    assert!(arena.is_busy(&b).await, "two hold it");
    held.release().await.expect("held until now");
}

pub(super) async fn tokens_grow_although_the_store_lost_its_data(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let before = arena.take_soon("nobody holds it", &a).await;
    let token = before.token();
    before.release().await.expect("held until now");
    arena.restart(Data::Lost).await;
    for client in [&a, &b] {
        let after = taken_again(client, arena.name());
        let after = arena.within(arena.ttl(), "the server is there again, but it is not used", after).await;
        assert!(after.token() > token, "after the loss {after:?}, before it {token:?}");
        after.release().await.expect("held until now");
    }
}

pub(super) async fn a_holder_is_told_when_the_store_lost_its_data(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    arena.restart(Data::Lost).await;
    arena.within(arena.ttl(), "it was never told", held.lost()).await;
    let next = taken_again(&b, arena.name());
    drop(arena.within(arena.ttl(), "the lock is gone, but nobody else gets in", next).await);
}
