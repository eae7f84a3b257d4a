//! `at_least`. A lock that is released early stays taken until its time ends, a lost lock or the
//! lock of a dead client does not.

use std::{sync::Arc, time::Duration};

use dlock_core::{DistributedLock, Error, Guard, Kind, LockOptions, Locks, MultiLock};
use tokio::time::{Instant, sleep};

use super::{
    cancel::{CUTS, cut_off, rival},
    detached::{span, take_at},
    loss::stays_undisturbed,
};
use crate::{
    Arena,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let of_one_kind = [
        of("stay", Kind::Mutex, &[Need::Detach]),
        of("stay_fair", Kind::Fair, &[Need::Detach]),
        of("stay_write", Kind::Write, &[Need::Detach]),
        of("stay_permit", Kind::Permit, &[Need::Detach]),
        of("stay_read", Kind::Read, &[Need::Detach, Need::Kind(Kind::Write)]),
    ];
    let others = cases! {
        "stay" (Kind::Mutex) [Need::Detach] {
            a_hold_that_is_cut_off_does_not_stay,
            a_try_that_is_busy_leaves_nothing_that_stays,
            an_acquire_that_is_dropped_leaves_nothing_that_stays,
            of_several_locks_that_were_not_all_free_none_stays,
            of_several_locks_that_are_released_each_stays,
        }
        "stay" (Kind::Mutex) [Need::Detach, Need::Inspect] { a_force_released_hold_does_not_stay }
    };
    of_one_kind.into_iter().flatten().chain(others).collect()
}

fn of(topic: &'static str, kind: Kind, needs: &'static [Need]) -> Vec<Case> {
    cases! {
        topic (kind) needs {
            a_release_leaves_it_taken_until_its_time,
            a_drop_leaves_it_taken_until_its_time_though_the_client_is_closed,
            a_release_after_its_time_frees_it_at_once,
            a_holder_that_dies_frees_it_after_its_ttl,
        }
    }
}

/// Returns options with an `at_least` far beyond the end of the case.
fn long(arena: &Arena, client: &Locks) -> LockOptions {
    arena.options().at_least((arena.long_ttl(client) * 10).min(*client.info().leases.end()))
}

/// Takes the lock with an `at_least` of [`span`]. Also returns its earliest end.
async fn take(arena: &Arena, client: &Locks) -> (Guard, Instant) {
    let (lock, options) = (arena.lock(client), arena.options().at_least(span(arena)));
    let end = Instant::now() + span(arena);
    let held =
        arena.soon("a free lock was not granted", lock.lock(&options)).await.expect("the lock is free");
    (held, end)
}

pub(super) async fn a_release_leaves_it_taken_until_its_time(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (held, end) = take(&arena, &a).await;
    let (token, signal) = (held.token(), held.lost_signal());
    arena
        .soon("the release waits for the end of `at_least`", held.release())
        .await
        .expect("the lock is still held");
    drop(take_at(&arena, &b, end, token).await);
    assert!(!signal.is_lost(), "a release was reported as a loss");
}

pub(super) async fn a_drop_leaves_it_taken_until_its_time_though_the_client_is_closed(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (held, end) = take(&arena, &a).await;
    let token = held.token();
    drop(held);
    arena.soon("closing waits for the end of `at_least`", a.close()).await;
    drop(take_at(&arena, &b, end, token).await);
}

pub(super) async fn a_release_after_its_time_frees_it_at_once(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let least = Duration::from_millis(200).max(*a.info().leases.start());
    let options = arena.options().ttl(arena.long_ttl(&a));
    let held = arena.lock(&a).lock(&options.clone().at_least(least)).await.expect("the lock is free");
    sleep(least).await;
    let lock = b.of(rival(&arena), arena.name());
    let mut next = lock.lock(&options);
    arena.still_waits("two claims hold the lock", &mut next).await;
    held.release().await.expect("the lock is still held");
    let next = arena
        .soon("the time of `at_least` has ended, but the release wakes no waiter", next)
        .await
        .expect("the lock is free");
    drop(next);
}

pub(super) async fn a_holder_that_dies_frees_it_after_its_ttl(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    let options = long(&arena, &a).ttl(arena.short_ttl());
    let held = arena.lock(&a).lock(&options).await.expect("the lock is free");
    switch.kill();
    drop(held);
    let limit = arena.forgotten_after(&b, arena.short_ttl());
    drop(arena.within(limit, "the lock of a dead holder stays taken", arena.take(&b, rival(&arena))).await);
}

pub(super) async fn a_hold_that_is_cut_off_does_not_stay(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    let options = long(&arena, &a).ttl(arena.short_ttl());
    let held = arena.lock(&a).lock(&options).await.expect("the lock is free");
    switch.cut();
    arena.within(arena.short_ttl(), "the loss is never reported", held.lost()).await;
    switch.connect();
    let result = held.release().await;
    assert!(matches!(result, Err(Error::Lost { .. })), "{result:?}");
    drop(arena.take_soon("a lost lock stays taken", &b).await);
}

pub(super) async fn a_force_released_hold_does_not_stay(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.lock(&a).lock(&long(&arena, &a)).await.expect("the lock is free");
    b.force_release(arena.name()).await.expect("the store is reachable");
    let next = arena.take_soon("a lock is not free after a forced release", &b).await;
    stays_undisturbed(&arena, &b, &next, async || drop(held)).await;
    next.release().await.expect("the lock is still held");
    drop(arena.take_soon("a lock stays taken after a forced release", &a).await);
}

pub(super) async fn a_try_that_is_busy_leaves_nothing_that_stays(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let tried = arena.lock(&b).try_lock(&long(&arena, &b)).await.expect("a busy lock is not an error");
    assert!(tried.is_none(), "two claims hold the lock");
    let outcome = arena.lock(&b).lock(&long(&arena, &b).wait(Duration::from_millis(100))).await;
    assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
    held.release().await.expect("the lock is still held");
    drop(arena.take_soon("no claim was granted, but the lock stays taken", &a).await);
}

pub(super) async fn an_acquire_that_is_dropped_leaves_nothing_that_stays(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (lock, options) = (arena.lock(&a), long(&arena, &a));
    for cut in 0..CUTS {
        if let Some(granted) = cut_off(lock.lock(&options), cut).await {
            // The caller may use a guard that it received in any way.
            let ticket =
                granted.expect("the lock is free").detach(arena.ttl()).await.expect("the lock is still held");
            b.release(&ticket).await.expect("the lock is still held");
        }
        drop(
            arena
                .take_soon(&format!("granted without a caller at cut {cut}, but the lock stays taken"), &b)
                .await,
        );
    }
}

/// Creates a MultiLock of these names, for one client.
fn several(arena: &Arena, client: &Locks, names: &[String]) -> MultiLock {
    let members = names.iter().map(|name| -> Arc<dyn DistributedLock> { client.of(arena.kind(), name) });
    MultiLock::new(members).expect("there is at least one lock")
}

pub(super) async fn of_several_locks_that_were_not_all_free_none_stays(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let names = ["-1", "-2", "-3"].map(|suffix| arena.name_with(suffix));
    let held = b.mutex(&names[1]).lock().await.expect("the lock is free");
    let all = several(&arena, &a, &names);
    let tried = all.try_lock(&long(&arena, &a)).await.expect("a busy lock is not an error");
    assert!(tried.is_none(), "two claims hold the lock");
    let outcome = all.lock(&long(&arena, &a).wait(Duration::from_millis(100))).await;
    assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
    held.release().await.expect("the lock is still held");
    for name in &names {
        let taken = b.mutex(name).lock();
        drop(
            arena
                .soon("not all locks were granted, but one stays taken", taken)
                .await
                .expect("the lock is free"),
        );
    }
}

pub(super) async fn of_several_locks_that_are_released_each_stays(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let names = ["-1", "-2"].map(|suffix| arena.name_with(suffix));
    let options = arena.options().at_least(span(&arena));
    let end = Instant::now() + span(&arena);
    let held = several(&arena, &a, &names).lock(&options).await.expect("the locks are free");
    held.release().await.expect("the lock is still held");
    for name in &names {
        let tried = b.mutex(name).try_lock().await.expect("a busy lock is not an error");
        assert!(tried.is_none() || Instant::now() >= end, "the lock is free before the end of `at_least`");
    }
    for name in &names {
        let left = end.saturating_duration_since(Instant::now());
        let taken = b.mutex(name).lock();
        drop(
            arena
                .within(left + arena.ttl(), "the lock stays taken forever", taken)
                .await
                .expect("the lock is free"),
        );
    }
}
