//! What every exclusive lock does, whatever its kind.

use std::sync::Arc;

use crate::Arena;

pub(super) async fn a_second_contender_waits_until_the_release(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let first = arena.lock(&a).lock(&arena.options()).await.expect("free");
    let (lock, options) = (arena.lock(&b), arena.options());
    let mut second = lock.lock(&options);
    arena.still_waits("two hold it", &mut second).await;
    first.release().await.expect("held until now");
    let second = second.await.expect("free again");
    assert!(!second.is_lost());
}

pub(super) async fn a_try_of_a_held_lock_is_busy(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.lock(&a).lock(&arena.options()).await.expect("free");
    let tried = arena.lock(&b).try_lock(&arena.options()).await.expect("busy is no error");
    assert!(tried.is_none(), "two hold it");
    held.release().await.expect("held until now");
}
