//! The store reports the actual holders and waiters, and breaking a lock lets the next waiter in.

use std::sync::Arc;

use dlock_core::{Contender, Guard, Kind, LockState, Locks, Result};
use tokio::task::JoinHandle;

use crate::{
    Arena,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "look" (Kind::Mutex) [Need::Inspect] {
            a_free_lock_has_no_holder_and_no_waiter,
            a_held_lock_shows_its_holder,
            a_list_shows_what_begins_with_its_prefix_in_order,
            a_prefix_is_taken_literally,
            breaking_a_free_lock_breaks_nothing,
            breaking_a_lock_lets_the_next_one_in,
        }
        "look" (Kind::Fair) [Need::Order, Need::Inspect] {
            waiters_are_shown_in_order,
            breaking_a_lock_leaves_the_waiters_in_their_places,
        }
        "look" (Kind::Read) [Need::Kind(Kind::Write), Need::Inspect] { breaking_a_lock_breaks_every_reader }
    }
}

async fn clients(arena: &Arena) -> (Locks, Locks) {
    (arena.client().await, arena.client().await)
}

/// Returns the part of an id that is the same in all reports of a claim. A RedLock reports the id
/// that the claim has on one of its members, which may be another member each time. These ids agree
/// in their first 30 characters.
pub(super) fn claim_of(client: &Locks, contender: &Contender) -> String {
    let common = if client.info().store == "redlock" { 30 } else { usize::MAX };
    contender.id.chars().take(common).collect()
}

async fn state(arena: &Arena, client: &Locks) -> LockState {
    client.inspect(arena.name()).await.expect("the store is reachable").expect("the lock has a contender")
}

/// Starts contenders one after the other, behind `held` guards.
async fn queue(arena: &Arena, client: &Locks, held: usize, kinds: &[Kind]) -> Vec<JoinHandle<Result<Guard>>> {
    let mut waiting = Vec::new();
    for kind in kinds {
        let (lock, options) = (client.of(*kind, arena.name()), arena.options());
        waiting.push(arena.go(async move { lock.lock(&options).await }));
        arena.until_contenders(client, held + waiting.len()).await;
    }
    waiting
}

pub(super) async fn a_free_lock_has_no_holder_and_no_waiter(arena: Arc<Arena>) {
    let (a, b) = clients(&arena).await;
    assert_eq!(b.inspect(arena.name()).await.expect("the store is reachable"), None);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    held.release().await.expect("the lock is still held");
    assert_eq!(
        b.inspect(arena.name()).await.expect("the store is reachable"),
        None,
        "the store reports a released claim"
    );
}

pub(super) async fn a_held_lock_shows_its_holder(arena: Arc<Arena>) {
    let (a, b) = clients(&arena).await;
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let state = state(&arena, &b).await;
    assert_eq!(state.name.as_str(), arena.name());
    assert_eq!((state.holders.len(), state.queue.len()), (1, 0));
    let holder = &state.holders[0];
    assert_eq!(holder.kind, arena.kind());
    let ttl = arena.ttl();
    assert!(
        holder.ttl_left.is_none_or(|left| left <= ttl),
        "the ttl is {ttl:?}, but the store reports {holder:?}"
    );
    assert!(
        holder.token.is_none() || holder.token == held.token(),
        "the store reports {holder:?}, but the guard has {held:?}"
    );
    drop(held);
}

pub(super) async fn waiters_are_shown_in_order(arena: Arc<Arena>) {
    let (a, b) = clients(&arena).await;
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let waiting = queue(&arena, &b, 1, &[arena.kind(); 3]).await;
    let order: Vec<_> =
        state(&arena, &b).await.queue.iter().map(|contender| claim_of(&b, contender)).collect();
    let mut held = held;
    for (waiter, id) in waiting.into_iter().zip(&order) {
        held.release().await.expect("the lock is still held");
        held = arena
            .soon("the next waiter is not granted", waiter)
            .await
            .expect("the task does not panic")
            .expect("the waiter is first");
        let holder = claim_of(&b, &state(&arena, &b).await.holders[0]);
        assert_eq!(holder, *id, "the grants are not in the reported order {order:?}");
    }
}

pub(super) async fn a_list_shows_what_begins_with_its_prefix_in_order(arena: Arc<Arena>) {
    let (a, b) = clients(&arena).await;
    let mut held = Vec::new();
    for suffix in ["/b", "/a", "/ab", "/é", "/Z", "", "-else"] {
        held.push(a.mutex(arena.name_with(suffix)).lock().await.expect("the lock is free"));
    }
    let prefix = arena.name_with("/");
    let listed = b.list(&prefix).await.expect("the store is reachable");
    let listed: Vec<_> = listed.iter().map(|state| &state.name.as_str()[prefix.len()..]).collect();
    assert_eq!(listed, ["Z", "a", "ab", "b", "é"], "the names are not in byte order");
    drop(held);
}

pub(super) async fn a_prefix_is_taken_literally(arena: Arc<Arena>) {
    let (a, b) = clients(&arena).await;
    let odd = ["%", "_", "*", "?", "[a]", "{a}", "\\", "^", "'"];
    let mut held = vec![a.mutex(arena.name_with("a")).lock().await.expect("the lock is free")];
    for suffix in odd {
        held.push(a.mutex(arena.name_with(suffix)).lock().await.expect("the lock is free"));
    }
    for suffix in odd {
        let name = arena.name_with(suffix);
        let listed = b.list(&name).await.expect("the store is reachable");
        let listed: Vec<_> = listed.iter().map(|state| state.name.as_str()).collect();
        assert_eq!(listed, [name]);
    }
    drop(held);
}

pub(super) async fn breaking_a_free_lock_breaks_nothing(arena: Arc<Arena>) {
    let (a, _) = clients(&arena).await;
    assert!(
        !a.force_release(arena.name()).await.expect("the store is reachable"),
        "a lock without a holder was broken"
    );
    drop(arena.take_soon("a free lock was not granted", &a).await);
}

pub(super) async fn breaking_a_lock_lets_the_next_one_in(arena: Arc<Arena>) {
    let (a, b) = clients(&arena).await;
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let (lock, options) = (arena.lock(&b), arena.options().ttl(arena.long_ttl(&b)));
    let next = arena.go(async move { lock.lock(&options).await });
    arena.until_contenders(&b, 2).await;
    assert!(b.force_release(arena.name()).await.expect("the store is reachable"), "the lock was held");
    drop(
        arena
            .soon("the waiter was not woken", next)
            .await
            .expect("the task does not panic")
            .expect("the lock is free"),
    );
    drop(held);
}

pub(super) async fn breaking_a_lock_breaks_every_reader(arena: Arc<Arena>) {
    let (a, b) = clients(&arena).await;
    let readers = [arena.take(&a, Kind::Read).await, arena.take(&b, Kind::Read).await];
    assert!(b.force_release(arena.name()).await.expect("the store is reachable"), "two claims held the lock");
    let writer = arena.soon("a reader still holds the lock", arena.take(&b, Kind::Write)).await;
    for reader in &readers {
        arena.within(arena.ttl(), "the loss is never reported", reader.lost()).await;
    }
    drop(writer);
}

pub(super) async fn breaking_a_lock_leaves_the_waiters_in_their_places(arena: Arc<Arena>) {
    let (a, b) = clients(&arena).await;
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let mut waiting = queue(&arena, &b, 1, &[arena.kind(); 2]).await.into_iter();
    let before: Vec<_> =
        state(&arena, &b).await.queue.iter().map(|contender| claim_of(&b, contender)).collect();
    assert!(b.force_release(arena.name()).await.expect("the store is reachable"), "the lock was held");
    let after = state(&arena, &b).await;
    // A holder that renews on a RedLock at the same time may request new grants from the members.
    let is_of_holder = |id: &String| held.id().is_some_and(|own| own.to_string().starts_with(id));
    let ids = after.holders.iter().chain(&after.queue).map(|contender| claim_of(&b, contender));
    let ids: Vec<_> = ids.filter(|id| !is_of_holder(id)).collect();
    assert_eq!(ids, before, "the waiters were removed, or have changed places");
    let first = waiting.next().expect("two claims wait");
    let first = arena
        .soon("the first waiter is not granted", first)
        .await
        .expect("the task does not panic")
        .expect("the waiter is first");
    first.release().await.expect("the lock is still held");
    let second = waiting.next().expect("two claims wait");
    drop(
        arena
            .soon("the second waiter is not granted", second)
            .await
            .expect("the task does not panic")
            .expect("the waiter is first"),
    );
    drop(held);
}
