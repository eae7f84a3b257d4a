//! Several locks of one client as one. All locks are granted or none, whether the store grants
//! them in one step or one after the other.

use std::{sync::Arc, time::Duration};

use dlock_core::{DistributedLock, Error, Guard, Kind, LockOptions, Locks, MultiLock, Token};
use tokio::time::sleep;

use super::{
    cancel::{CUTS, cut_off},
    stress::Room,
};
use crate::{
    Arena,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let of_one_kind =
        [of("multi", Kind::Mutex), of("multi_fair", Kind::Fair), of("multi_write", Kind::Write)];
    let others = cases! {
        "multi" (Kind::Mutex) [] {
            of_many_clients_with_overlapping_locks_each_gets_all_of_its_own,
            several_locks_of_a_client_that_dies_are_freed_after_its_ttl_or_session,
            a_closed_client_is_granted_none_of_several_locks,
            of_a_hundred_locks_with_the_longest_names_all_are_taken_or_none,
        }
        "multi" (Kind::Mutex) [Need::Inspect] {
            a_refused_try_of_several_locks_leaves_nothing_in_the_store,
            of_several_locks_the_loss_of_one_is_reported,
        }
        "multi" (Kind::Mutex) [Need::Tokens] { each_of_several_locks_has_a_token_that_grows }
        "multi" (Kind::Mutex) [Need::Kind(Kind::Fair), Need::Kind(Kind::Write), Need::Kind(Kind::Read), Need::Kind(Kind::Permit)] {
            locks_of_all_kinds_are_taken_as_one,
        }
        "multi_fair" (Kind::Fair) [] { a_try_of_several_locks_does_not_overtake_a_waiter }
    };
    of_one_kind.into_iter().flatten().chain(others).collect()
}

fn of(topic: &'static str, kind: Kind) -> Vec<Case> {
    cases! {
        topic (kind) [] {
            of_several_locks_all_are_taken_or_none,
            a_wait_for_several_locks_ends_when_the_last_is_freed,
            a_wait_for_several_locks_that_runs_out_leaves_nothing,
            several_locks_outlast_their_ttl,
            an_acquire_of_several_locks_leaves_nothing_wherever_it_is_dropped,
            several_locks_granted_without_a_caller_are_released,
            an_answer_about_several_locks_that_is_lost_leaves_nothing,
        }
    }
}

/// Returns the names of the locks. One is a prefix of another.
fn names(arena: &Arena) -> Vec<String> {
    ["-1", "-2", "-3", "-31", "-4"].map(|suffix| arena.name_with(suffix)).into()
}

fn all(arena: &Arena, client: &Locks, names: &[String]) -> MultiLock {
    let members = names.iter().map(|name| -> Arc<dyn DistributedLock> { client.of(arena.kind(), name) });
    MultiLock::new(members).expect("there is at least one lock")
}

/// Returns options with a long ttl, so that a claim that was left behind is still in the store when
/// the next contender arrives.
fn long(arena: &Arena, client: &Locks) -> LockOptions {
    arena.options().ttl(arena.long_ttl(client))
}

async fn one(arena: &Arena, client: &Locks, name: &str, failure: &str) -> Guard {
    let (lock, options) = (client.of(arena.kind(), name), arena.options());
    arena.soon(failure, lock.lock(&options)).await.expect("an acquisition without a limit is granted")
}

/// Takes each of the locks, which must be free or be released at once, and releases it.
async fn each_is_free(arena: &Arena, client: &Locks, failure: &str) {
    for name in names(arena) {
        one(arena, client, &name, failure).await.release().await.expect("the lock is still held");
    }
}

async fn try_one(arena: &Arena, client: &Locks, name: &str) -> Option<Guard> {
    client.of(arena.kind(), name).try_lock(&arena.options()).await.expect("a busy lock is not an error")
}

pub(super) async fn of_several_locks_all_are_taken_or_none(arena: Arc<Arena>) {
    let (a, b, names) = (arena.client().await, arena.client().await, names(&arena));
    let (several, options) = (all(&arena, &b, &names), arena.options());
    for taken in [0, 2, 4] {
        let held = one(&arena, &a, &names[taken], "a free lock was not granted").await;
        let tried = several.try_lock(&options).await.expect("a busy lock is not an error");
        assert!(tried.is_none(), "two claims hold one of the locks");
        for (_, name) in names.iter().enumerate().filter(|(at, _)| *at != taken) {
            let free = try_one(&arena, &a, name).await;
            free.expect("the lock is free because not all were granted")
                .release()
                .await
                .expect("the lock is still held");
        }
        held.release().await.expect("the lock is still held");
    }
    let held =
        several.try_lock(&options).await.expect("a busy lock is not an error").expect("the locks are free");
    for name in &names {
        assert!(try_one(&arena, &a, name).await.is_none(), "one of the held locks is free");
    }
    held.release().await.expect("the lock is still held");
    each_is_free(&arena, &a, "a released lock is still held").await;
}

/// More locks than any store grants in one request.
pub(super) async fn of_a_hundred_locks_with_the_longest_names_all_are_taken_or_none(arena: Arc<Arena>) {
    const LOCKS: usize = 101;
    let (a, b) = (arena.client().await, arena.client().await);
    let width = 1024 - arena.name().len();
    let names: Vec<_> = (0..LOCKS).map(|number| arena.name_with(&format!("{number:/>width$}"))).collect();
    let (several, options) = (all(&arena, &b, &names), long(&arena, &b));
    let held = one(&arena, &a, &names[LOCKS / 2], "a free lock was not granted").await;
    let tried = arena.soon("the try does not end", several.try_lock(&options)).await;
    assert!(tried.expect("a busy lock is not an error").is_none(), "two claims hold one of the locks");
    for at in [0, LOCKS - 1] {
        let free = one(&arena, &a, &names[at], "a lock is held because not all were granted").await;
        free.release().await.expect("the lock is still held");
    }
    let mut waiting = several.lock(&options);
    arena.still_waits("two claims hold one of the locks", &mut waiting).await;
    held.release().await.expect("the lock is still held");
    let held = arena.soon("the free locks were not granted", waiting).await.expect("the locks are free");
    for at in [0, LOCKS / 2, LOCKS - 1] {
        assert!(try_one(&arena, &a, &names[at]).await.is_none(), "one of the held locks is free");
    }
    held.release().await.expect("the locks are still held");
}

pub(super) async fn a_wait_for_several_locks_ends_when_the_last_is_freed(arena: Arc<Arena>) {
    let (a, b, names) = (arena.client().await, arena.client().await, names(&arena));
    let (first, last) = (
        one(&arena, &a, &names[1], "a free lock was not granted").await,
        one(&arena, &a, &names[3], "a free lock was not granted").await,
    );
    let (several, options) = (all(&arena, &b, &names), long(&arena, &b));
    let mut waiting = several.lock(&options);
    arena.still_waits("two claims hold one of the locks", &mut waiting).await;
    first.release().await.expect("the lock is still held");
    arena.still_waits("two claims hold one of the locks", &mut waiting).await;
    last.release().await.expect("the lock is still held");
    let held = arena
        .soon("all locks are free, but the waiter is not woken", waiting)
        .await
        .expect("the locks are free");
    for name in &names {
        assert!(try_one(&arena, &a, name).await.is_none(), "one of the held locks is free");
    }
    held.release().await.expect("the lock is still held");
}

pub(super) async fn a_wait_for_several_locks_that_runs_out_leaves_nothing(arena: Arc<Arena>) {
    let (a, b, names) = (arena.client().await, arena.client().await, names(&arena));
    let held = one(&arena, &a, &names[2], "a free lock was not granted").await;
    let options = long(&arena, &b).wait(Duration::from_millis(100));
    let late = all(&arena, &b, &names).lock(&options).await;
    assert!(matches!(late, Err(Error::Timeout { .. })), "one lock is held, but the wait ended with {late:?}");
    held.release().await.expect("the lock is still held");
    each_is_free(&arena, &a, "one lock is held although not all were granted").await;
}

pub(super) async fn several_locks_outlast_their_ttl(arena: Arc<Arena>) {
    let (a, b, names) = (arena.client().await, arena.client().await, names(&arena));
    let ttl = arena.kept_ttl();
    let held = all(&arena, &b, &names).lock(&arena.options().ttl(ttl)).await.expect("the locks are free");
    sleep(ttl * 2).await;
    assert!(!held.is_lost(), "the lock was lost although it was renewed");
    for name in &names {
        assert!(try_one(&arena, &a, name).await.is_none(), "one of several locks was not renewed");
    }
    held.release().await.expect("the lock is still held");
}

pub(super) async fn an_acquire_of_several_locks_leaves_nothing_wherever_it_is_dropped(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (several, options) = (all(&arena, &a, &names(&arena)), long(&arena, &a));
    for cut in 0..CUTS {
        drop(cut_off(several.lock(&options), cut).await);
        each_is_free(&arena, &b, &format!("a claim was left behind at cut {cut}")).await;
    }
}

pub(super) async fn several_locks_granted_without_a_caller_are_released(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    switch.freeze();
    let (several, options) = (all(&arena, &a, &names(&arena)), long(&arena, &a));
    let outcome = cut_off(several.lock(&options), 8).await;
    assert!(outcome.is_none(), "the request cannot have a reply yet");
    switch.connect();
    each_is_free(&arena, &b, "a lock granted without a caller is still held").await;
}

pub(super) async fn an_answer_about_several_locks_that_is_lost_leaves_nothing(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    switch.lose_answers();
    let result = all(&arena, &a, &names(&arena)).try_lock(&long(&arena, &a)).await;
    assert!(
        matches!(result, Err(Error::Unavailable { .. })),
        "the state of the lock is unknown, but the call returned {result:?}"
    );
    switch.connect();
    each_is_free(&arena, &b, "a lock granted without a caller is still held").await;
}

pub(super) async fn of_many_clients_with_overlapping_locks_each_gets_all_of_its_own(arena: Arc<Arena>) {
    const CLIENTS: usize = 6;
    const ROUNDS: usize = 4;
    let names = names(&arena);
    let rooms: Arc<Vec<Room>> = Arc::new(names.iter().map(|_| Room::default()).collect());
    let mut contenders = Vec::new();
    for contender in 0..CLIENTS {
        let (client, rooms, options) = (arena.client().await, Arc::clone(&rooms), arena.options());
        let wanted: Vec<_> =
            (0..3).map(|nth| (contender + nth * (1 + contender % 2)) % names.len()).collect();
        let mine: Vec<_> = wanted.iter().map(|at| names[*at].clone()).collect();
        let (several, kind) = (all(&arena, &client, &mine), arena.kind());
        contenders.push(arena.go(async move {
            for round in 0..ROUNDS {
                let held = several.lock(&options).await.expect("an acquisition without a limit is granted");
                for at in &wanted {
                    rooms[*at].visit(kind, Duration::from_millis(1)).await;
                }
                if round % 2 == 0 {
                    held.release().await.expect("the lock is still held");
                }
            }
        }));
    }
    // Each grant may happen only with the heartbeat of a waiter.
    let limit = arena.ttl() * (CLIENTS * ROUNDS) as u32 / 3;
    for contender in contenders {
        arena
            .within(limit, "a client never gets all of its locks", contender)
            .await
            .expect("two claims held one of the locks");
    }
}

pub(super) async fn several_locks_of_a_client_that_dies_are_freed_after_its_ttl_or_session(
    arena: Arc<Arena>,
) {
    let ((a, switch), b, names) = (arena.client_with_switch().await, arena.client().await, names(&arena));
    let held = all(&arena, &a, &names).lock(&arena.short()).await.expect("the locks are free");
    switch.kill();
    let limit = arena.forgotten_after(&b, arena.short_ttl());
    let (several, options) = (all(&arena, &b, &names), arena.options());
    let next =
        arena.within(limit, "the locks of a dead holder are never freed", several.lock(&options)).await;
    assert!(held.is_lost(), "two claims hold the locks");
    next.expect("the lock is free").release().await.expect("the lock is still held");
}

pub(super) async fn a_closed_client_is_granted_none_of_several_locks(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let several = all(&arena, &a, &names(&arena));
    a.close().await;
    let result = several.try_lock(&arena.options()).await;
    assert!(matches!(result, Err(Error::Closed { .. })), "a closed client returned {result:?}");
    each_is_free(&arena, &b, "a closed client holds a lock").await;
}

pub(super) async fn a_refused_try_of_several_locks_leaves_nothing_in_the_store(arena: Arc<Arena>) {
    let (a, b, names) = (arena.client().await, arena.client().await, names(&arena));
    let held = one(&arena, &a, &names[3], "a free lock was not granted").await;
    let tried =
        all(&arena, &b, &names).try_lock(&long(&arena, &b)).await.expect("a busy lock is not an error");
    assert!(tried.is_none(), "two claims hold one of the locks");
    for name in &names {
        let state = a.inspect(name).await.expect("the store is reachable");
        let claims = state.map_or(0, |state| state.holders.len() + state.queue.len());
        assert_eq!(claims, usize::from(*name == names[3]), "a refused try has left a claim in the store");
    }
    held.release().await.expect("the lock is still held");
}

pub(super) async fn of_several_locks_the_loss_of_one_is_reported(arena: Arc<Arena>) {
    let (a, b, names) = (arena.client().await, arena.client().await, names(&arena));
    let ttl = arena.kept_ttl();
    let held = all(&arena, &a, &names).lock(&arena.options().ttl(ttl)).await.expect("the locks are free");
    let was_held = b.force_release(&names[4]).await.expect("the store is reachable");
    assert!(was_held, "the lock was not held, and its guard is {held:?}");
    arena.within(ttl, "the loss is never reported", held.lost()).await;
    let result = held.release().await;
    assert!(
        matches!(&result, Err(Error::Lost { name, .. }) if name.as_str() == names[4]),
        "the error does not name the lost lock: {result:?}"
    );
}

pub(super) async fn each_of_several_locks_has_a_token_that_grows(arena: Arc<Arena>) {
    let (a, b, names) = (arena.client().await, arena.client().await, names(&arena));
    let mut last = vec![0; names.len()];
    let mut grows = |at: usize, token: Token| {
        assert!(token.get() > last[at], "the token does not grow: {token} after {}", last[at]);
        last[at] = token.get();
    };
    for _ in 0..3 {
        let held = all(&arena, &a, &names).lock(&arena.options()).await.expect("the lock is free");
        assert_eq!(held.tokens().len(), names.len(), "the store declares that it has tokens");
        for (name, token) in held.tokens() {
            let at =
                names.iter().position(|other| other == name.as_str()).expect("the name is one of the locks");
            grows(at, token);
        }
        held.release().await.expect("the lock is still held");
        for (at, name) in names.iter().enumerate() {
            let held = one(&arena, &b, name, "a released lock is still held").await;
            grows(at, held.token().expect("the store declares that it has tokens"));
            held.release().await.expect("the lock is still held");
        }
    }
}

pub(super) async fn locks_of_all_kinds_are_taken_as_one(arena: Arc<Arena>) {
    let (a, b, names) = (arena.client().await, arena.client().await, names(&arena));
    let kinds = [Kind::Read, Kind::Mutex, Kind::Permit, Kind::Write, Kind::Fair];
    let members = kinds.iter().zip(&names).map(|(kind, name)| b.of(*kind, name));
    let several = MultiLock::new(members).expect("there is at least one lock");
    let mut rival = Vec::new();
    for (kind, name) in kinds.iter().zip(&names) {
        // A reader would be granted beside a reader.
        rival.push(a.of(if *kind == Kind::Read { Kind::Write } else { *kind }, name));
    }
    let options = arena.options();
    for lock in &rival {
        let held =
            arena.soon("a claim was left behind", lock.lock(&options)).await.expect("the lock is free");
        let tried = several.try_lock(&options).await.expect("a busy lock is not an error");
        assert!(tried.is_none(), "two claims hold one of the locks");
        held.release().await.expect("the lock is still held");
    }
    let held = several.lock(&options).await.expect("the locks are free");
    for lock in &rival {
        let tried = lock.try_lock(&options).await.expect("a busy lock is not an error");
        assert!(tried.is_none(), "one of the held locks is free");
    }
    held.release().await.expect("the lock is still held");
}

pub(super) async fn a_try_of_several_locks_does_not_overtake_a_waiter(arena: Arc<Arena>) {
    let (a, b, names) = (arena.client().await, arena.client().await, names(&arena));
    let (slow, switch) = arena.client_with_switch().await;
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let (lock, options) = (arena.lock(&slow), long(&arena, &slow));
    let waiter = arena.go(async move { lock.lock(&options).await });
    arena.until_contenders(&a, 2).await;
    // The waiter is frozen. The lock is free, but the next turn is the waiter's.
    switch.freeze();
    held.release().await.expect("the lock is still held");
    let several = all(&arena, &b, &[names[0].clone(), arena.name().to_owned(), names[1].clone()]);
    let tried = several.try_lock(&arena.options()).await.expect("a busy lock is not an error");
    assert!(tried.is_none(), "a try of several locks was granted before a waiter");
    switch.connect();
    let next =
        arena.soon("the waiter is never granted the lock", waiter).await.expect("the task does not panic");
    next.expect("the waiter is granted").release().await.expect("the lock is still held");
}
