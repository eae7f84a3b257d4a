//! The store shows who really holds and waits, and breaking a lock lets the next waiter in.

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
            a_free_lock_shows_nobody,
            a_held_lock_shows_its_holder,
            a_list_shows_what_begins_with_its_prefix_in_order,
            a_prefix_is_taken_literally,
            breaking_a_free_lock_breaks_nothing,
            breaking_a_lock_lets_the_next_one_in,
        }
        "look" (Kind::Fair) [Need::Inspect] {
            those_who_wait_are_shown_in_order,
            breaking_a_lock_leaves_those_who_wait_in_their_places,
        }
        "look" (Kind::Read) [Need::Kind(Kind::Write), Need::Inspect] { breaking_a_lock_breaks_every_reader }
    }
}

async fn clients(arena: &Arena) -> (Locks, Locks) {
    (arena.client().await, arena.client().await)
}

/// What is the same in all ids that a store shows of one claim: the id. A RedLock shows the id on one of its members, now on this
/// member, now on that, and these ids agree in their first 30 characters.
pub(super) fn claim_of(client: &Locks, one: &Contender) -> String {
    let common = if client.info().store == "redlock" { 30 } else { usize::MAX };
    one.id.chars().take(common).collect()
}

async fn state(arena: &Arena, client: &Locks) -> LockState {
    client.inspect(arena.name()).await.expect("the store can be asked").expect("somebody is there")
}

/// Contenders that come one after the other, when `held` guards are there.
async fn queue(arena: &Arena, client: &Locks, held: usize, kinds: &[Kind]) -> Vec<JoinHandle<Result<Guard>>> {
    let mut waiting = Vec::new();
    for kind in kinds {
        let (lock, options) = (client.of(*kind, arena.name()), arena.options());
        waiting.push(arena.go(async move { lock.lock(&options).await }));
        arena.until_contenders(client, held + waiting.len()).await;
    }
    waiting
}

pub(super) async fn a_free_lock_shows_nobody(arena: Arc<Arena>) {
    let (a, b) = clients(&arena).await;
    assert_eq!(b.inspect(arena.name()).await.expect("the store can be asked"), None);
    let held = arena.take_soon("nobody holds it", &a).await;
    held.release().await.expect("held until now");
    assert_eq!(
        b.inspect(arena.name()).await.expect("the store can be asked"),
        None,
        "a released claim is shown"
    );
}

pub(super) async fn a_held_lock_shows_its_holder(arena: Arc<Arena>) {
    let (a, b) = clients(&arena).await;
    let held = arena.take_soon("nobody holds it", &a).await;
    let state = state(&arena, &b).await;
    assert_eq!(state.name.as_str(), arena.name());
    assert_eq!((state.holders.len(), state.queue.len()), (1, 0));
    let holder = &state.holders[0];
    assert_eq!(holder.kind, arena.kind());
    let ttl = arena.ttl();
    assert!(
        holder.ttl_left.is_none_or(|left| left <= ttl),
        "its ttl is {ttl:?}, and the store shows {holder:?}"
    );
    assert!(
        holder.token.is_none() || holder.token == held.token(),
        "{holder:?}, but the guard says {held:?}"
    );
    drop(held);
}

pub(super) async fn those_who_wait_are_shown_in_order(arena: Arc<Arena>) {
    let (a, b) = clients(&arena).await;
    let held = arena.take_soon("nobody holds it", &a).await;
    let waiting = queue(&arena, &b, 1, &[arena.kind(); 3]).await;
    let order: Vec<_> = state(&arena, &b).await.queue.iter().map(|one| claim_of(&b, one)).collect();
    let mut held = held;
    for (waiter, id) in waiting.into_iter().zip(&order) {
        held.release().await.expect("held until now");
        held = arena.soon("its turn does not come", waiter).await.expect("no panic").expect("it is first");
        let holder = claim_of(&b, &state(&arena, &b).await.holders[0]);
        assert_eq!(holder, *id, "not in the order that was shown: {order:?}");
    }
}

pub(super) async fn a_list_shows_what_begins_with_its_prefix_in_order(arena: Arc<Arena>) {
    let (a, b) = clients(&arena).await;
    let mut held = Vec::new();
    for suffix in ["/b", "/a", "/ab", "/é", "/Z", "", "-else"] {
        held.push(a.mutex(arena.name_with(suffix)).lock().await.expect("nobody holds it"));
    }
    let prefix = arena.name_with("/");
    let listed = b.list(&prefix).await.expect("the store can be asked");
    let listed: Vec<_> = listed.iter().map(|state| &state.name.as_str()[prefix.len()..]).collect();
    assert_eq!(listed, ["Z", "a", "ab", "b", "é"], "by bytes");
    drop(held);
}

pub(super) async fn a_prefix_is_taken_literally(arena: Arc<Arena>) {
    let (a, b) = clients(&arena).await;
    let odd = ["%", "_", "*", "?", "[a]", "{a}", "\\", "^", "'"];
    let mut held = vec![a.mutex(arena.name_with("a")).lock().await.expect("nobody holds it")];
    for suffix in odd {
        held.push(a.mutex(arena.name_with(suffix)).lock().await.expect("nobody holds it"));
    }
    for suffix in odd {
        let name = arena.name_with(suffix);
        let listed = b.list(&name).await.expect("the store can be asked");
        let listed: Vec<_> = listed.iter().map(|state| state.name.as_str()).collect();
        assert_eq!(listed, [name]);
    }
    drop(held);
}

pub(super) async fn breaking_a_free_lock_breaks_nothing(arena: Arc<Arena>) {
    let (a, _) = clients(&arena).await;
    assert!(!a.force_release(arena.name()).await.expect("the store can be asked"), "nobody held it");
    drop(arena.take_soon("nobody holds it", &a).await);
}

pub(super) async fn breaking_a_lock_lets_the_next_one_in(arena: Arc<Arena>) {
    let (a, b) = clients(&arena).await;
    let held = arena.take_soon("nobody holds it", &a).await;
    let (lock, options) = (arena.lock(&b), arena.options().ttl(arena.long_ttl(&b)));
    let next = arena.go(async move { lock.lock(&options).await });
    arena.until_contenders(&b, 2).await;
    assert!(b.force_release(arena.name()).await.expect("the store can be asked"), "somebody held it");
    drop(arena.soon("it was not woken", next).await.expect("no panic").expect("it is free"));
    drop(held);
}

pub(super) async fn breaking_a_lock_breaks_every_reader(arena: Arc<Arena>) {
    let (a, b) = clients(&arena).await;
    let readers = [arena.take(&a, Kind::Read).await, arena.take(&b, Kind::Read).await];
    assert!(b.force_release(arena.name()).await.expect("the store can be asked"), "two held it");
    let writer = arena.soon("a reader is left", arena.take(&b, Kind::Write)).await;
    for reader in &readers {
        arena.within(arena.ttl(), "it was never told", reader.lost()).await;
    }
    drop(writer);
}

pub(super) async fn breaking_a_lock_leaves_those_who_wait_in_their_places(arena: Arc<Arena>) {
    let (a, b) = clients(&arena).await;
    let held = arena.take_soon("nobody holds it", &a).await;
    let mut waiting = queue(&arena, &b, 1, &[arena.kind(); 2]).await.into_iter();
    let before: Vec<_> = state(&arena, &b).await.queue.iter().map(|one| claim_of(&b, one)).collect();
    assert!(b.force_release(arena.name()).await.expect("the store can be asked"), "somebody held it");
    let after = state(&arena, &b).await;
    // A holder that renews on a RedLock at this moment asks the members for new grants.
    let is_of_holder = |id: &String| held.id().is_some_and(|own| own.to_string().starts_with(id));
    let ids = after.holders.iter().chain(&after.queue).map(|one| claim_of(&b, one));
    let ids: Vec<_> = ids.filter(|id| !is_of_holder(id)).collect();
    assert_eq!(ids, before, "those who wait were sent away, or have changed places");
    let first = waiting.next().expect("two wait");
    let first = arena.soon("the first is not let in", first).await.expect("no panic").expect("it is first");
    first.release().await.expect("held until now");
    let second = waiting.next().expect("two wait");
    drop(arena.soon("the second is not let in", second).await.expect("no panic").expect("it is first"));
    drop(held);
}
