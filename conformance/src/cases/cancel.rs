//! A contender that leaves, at any point and in any way, leaves no claim behind.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use dlock_core::{Error, Guard, Kind, LockOptions, Locks};
use futures_util::FutureExt;
use tokio::{
    task::yield_now,
    time::{sleep, timeout},
};

use crate::{
    Arena,
    case::{Case, Need, cases},
    cases::downgrade,
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let of_one_kind = [
        of("cancel", Kind::Mutex, &[]),
        of("cancel_fair", Kind::Fair, &[]),
        of("cancel_write", Kind::Write, &[]),
        of("cancel_permit", Kind::Permit, &[]),
        of("cancel_read", Kind::Read, &[Need::Kind(Kind::Write)]),
    ];
    let downgraded = downgrade::TOPICS.into_iter().flat_map(|(topic, kind)| of_downgraded(topic, kind));
    let others = cases! {
        "cancel" (Kind::Mutex) [] {
            an_acquire_that_is_never_polled_does_nothing,
            another_arm_of_a_select_ends_the_wait,
            a_task_that_is_aborted_leaves_nothing,
            a_grant_without_a_caller_is_released,
            a_try_whose_answer_is_lost_leaves_nothing,
            an_acquire_whose_answers_are_all_lost_leaves_nothing,
            a_release_whose_answers_are_lost_still_releases,
            a_refused_try_leaves_nothing,
        }
    };
    of_one_kind.into_iter().flatten().chain(others).chain(downgraded).collect()
}

fn of(topic: &'static str, kind: Kind, needs: &'static [Need]) -> Vec<Case> {
    cases! {
        topic (kind) needs {
            an_acquire_of_a_free_lock_leaves_nothing_wherever_it_is_dropped,
            an_acquire_of_a_held_lock_leaves_nothing_wherever_it_is_dropped,
            a_try_leaves_nothing_wherever_it_is_dropped,
            a_release_that_is_dropped_still_releases,
            a_waiter_that_is_dropped_when_woken_passes_the_turn_on,
        }
    }
}

fn of_downgraded(topic: &'static str, kind: Kind) -> Vec<Case> {
    cases! {
        topic (kind) [Need::Kind(Kind::Read), Need::Downgrade] { a_downgrade_that_is_dropped_releases }
    }
}

/// Number of points at which [`cut_off`] drops a future.
pub(super) const CUTS: u32 = 20;

/// Runs a future up to one of several points and drops it there. The first points are numbers of
/// polls, with polls of the keeper in between. The later points are times of increasing length, up
/// to the time that a slow store takes for a retry. Returns the output if the future ends earlier.
pub(super) async fn cut_off<T>(future: impl Future<Output = T>, cut: u32) -> Option<T> {
    const POLLS: u32 = 8;
    let mut future = pin!(future);
    for _ in 0..=cut.min(POLLS) {
        if let Some(output) = future.as_mut().now_or_never() {
            return Some(output);
        }
        yield_now().await;
    }
    let span = Duration::from_micros(100) * 2_u32.pow(cut.saturating_sub(POLLS));
    if cut > POLLS { timeout(span, future).await.ok() } else { None }
}

/// Returns options with a long ttl, so that a claim that was left behind is still in the store when
/// the next contender arrives.
fn long(arena: &Arena, client: &Locks) -> LockOptions {
    arena.options().ttl(arena.long_ttl(client))
}

/// Returns a kind that must wait for a claim of the case's kind: a writer for a reader, otherwise
/// the same kind.
pub(super) fn rival(arena: &Arena) -> Kind {
    if arena.kind() == Kind::Read { Kind::Write } else { arena.kind() }
}

async fn take_as_rival(arena: &Arena, client: &Locks, failure: &str) -> Guard {
    arena.soon(failure, arena.take(client, rival(arena))).await
}

pub(super) async fn an_acquire_of_a_free_lock_leaves_nothing_wherever_it_is_dropped(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (lock, options) = (arena.lock(&a), long(&arena, &a));
    for cut in 0..CUTS {
        drop(cut_off(lock.lock(&options), cut).await);
        drop(take_as_rival(&arena, &b, &format!("a claim was left behind at cut {cut}")).await);
    }
}

pub(super) async fn an_acquire_of_a_held_lock_leaves_nothing_wherever_it_is_dropped(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (lock, options) = (arena.lock(&a), long(&arena, &a));
    for cut in 0..CUTS {
        let held = take_as_rival(&arena, &b, &format!("a claim was left behind at cut {cut}")).await;
        let dropped = cut_off(lock.lock(&options), cut).await;
        assert!(dropped.is_none(), "two claims hold the lock");
        held.release().await.expect("the lock is still held");
    }
    drop(take_as_rival(&arena, &b, "a claim was left behind at the last cut").await);
}

pub(super) async fn a_try_leaves_nothing_wherever_it_is_dropped(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (lock, options) = (arena.lock(&a), long(&arena, &a));
    for cut in 0..CUTS {
        drop(cut_off(lock.try_lock(&options), cut).await);
        drop(take_as_rival(&arena, &b, &format!("a claim was left behind at cut {cut}")).await);
    }
}

pub(super) async fn a_release_that_is_dropped_still_releases(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (lock, options) = (arena.lock(&a), long(&arena, &a));
    for cut in 0..CUTS {
        let held = lock.lock(&options).await.expect("the lock is free");
        cut_off(held.release(), cut).await;
        drop(take_as_rival(&arena, &b, &format!("the lock is still held after cut {cut}")).await);
    }
}

pub(super) async fn a_downgrade_that_is_dropped_releases(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (lock, options) = (arena.lock(&a), long(&arena, &a));
    for cut in 0..CUTS {
        let held = lock.lock(&options).await.expect("the lock is free");
        drop(cut_off(held.downgrade(), cut).await);
        drop(take_as_rival(&arena, &b, &format!("the lock is still held after cut {cut}")).await);
    }
}

pub(super) async fn a_waiter_that_is_dropped_when_woken_passes_the_turn_on(arena: Arc<Arena>) {
    let (a, b, c) = (arena.client().await, arena.client().await, arena.client().await);
    for yields in 0..6 {
        let held = take_as_rival(&arena, &a, "the lock is still held after the previous round").await;
        let (lock, options) = (arena.lock(&b), long(&arena, &b));
        let woken = arena.go(async move { lock.lock(&options).await });
        arena.until_contenders(&a, 2).await;
        let (lock, options) = (c.of(rival(&arena), arena.name()), long(&arena, &c));
        let next = arena.go(async move { lock.lock(&options).await });
        arena.until_contenders(&a, 3).await;
        held.release().await.expect("the lock is still held");
        for _ in 0..yields {
            yield_now().await;
        }
        // On a store that is not fair the other waiter may have won. The case checks only that the
        // other waiter is granted.
        woken.abort();
        drop(woken.await);
        let next = arena
            .soon("the wake-up was lost with the waiter that left", next)
            .await
            .expect("the task does not panic");
        next.expect("the lock is free").release().await.expect("the lock is still held");
    }
}

pub(super) async fn an_acquire_that_is_never_polled_does_nothing(arena: Arc<Arena>) {
    let a = arena.client().await;
    let (lock, options) = (arena.lock(&a), long(&arena, &a));
    drop((lock.lock(&options), a.mutex(arena.name()).lock()));
    if let Ok(state) = a.inspect(arena.name()).await {
        assert_eq!(state, None, "an acquisition that was never polled sent a request");
    }
    let taken = a.mutex(arena.name()).try_lock().await.expect("a busy lock is not an error");
    assert!(taken.is_some(), "an acquisition that was never polled sent a request");
}

pub(super) async fn another_arm_of_a_select_ends_the_wait(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    tokio::select! {
        _ = b.mutex(arena.name()).lock().ttl(arena.long_ttl(&b)) => panic!("two claims hold the lock"),
        () = sleep(Duration::from_millis(30)) => {}
    }
    held.release().await.expect("the lock is still held");
    drop(arena.take_soon("the cancelled arm of the select still waits", &a).await);
}

pub(super) async fn a_task_that_is_aborted_leaves_nothing(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let waiter = arena.go(b.mutex(arena.name()).lock().ttl(arena.long_ttl(&b)));
    arena.until_contenders(&a, 2).await;
    waiter.abort();
    assert!(waiter.await.is_err_and(|error| error.is_cancelled()));
    held.release().await.expect("the lock is still held");
    drop(arena.take_soon("the aborted task still waits", &a).await);
}

pub(super) async fn a_grant_without_a_caller_is_released(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    switch.freeze();
    let (lock, options) = (arena.lock(&a), long(&arena, &a));
    let outcome = cut_off(lock.lock(&options), 8).await;
    assert!(outcome.is_none(), "the request cannot have a reply yet");
    switch.connect();
    drop(arena.take_soon("a lock granted without a caller is still held", &b).await);
}

pub(super) async fn a_try_whose_answer_is_lost_leaves_nothing(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    switch.lose_answers();
    let result = arena.lock(&a).try_lock(&long(&arena, &a)).await;
    assert!(
        matches!(result, Err(Error::Unavailable { .. })),
        "the state of the lock is unknown, but the call returned {result:?}"
    );
    switch.connect();
    drop(arena.take_soon("a lock granted without a caller is still held", &b).await);
}

pub(super) async fn an_acquire_whose_answers_are_all_lost_leaves_nothing(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    switch.lose_answers();
    let result = arena.soon("the call does not return", arena.lock(&a).lock(&long(&arena, &a))).await;
    assert!(
        matches!(result, Err(Error::Unavailable { .. })),
        "every reply was lost, but `lock` returned {result:?}"
    );
    switch.connect();
    drop(arena.take_soon("a lock granted without a caller is still held", &b).await);
}

pub(super) async fn a_release_whose_answers_are_lost_still_releases(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    let held = arena.lock(&a).lock(&long(&arena, &a)).await.expect("the lock is free");
    switch.lose_answers();
    drop(held);
    drop(arena.take_soon("the lock is still held after its guard was dropped", &b).await);
}

pub(super) async fn a_refused_try_leaves_nothing(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    for _ in 0..3 {
        assert!(arena.is_busy(&b).await, "two claims hold the lock");
    }
    if let Ok(state) = b.inspect(arena.name()).await {
        let state = state.expect("the lock is held");
        assert_eq!(
            (state.holders.len(), state.queue.len()),
            (1, 0),
            "a refused try has left a claim in the queue"
        );
    }
    held.release().await.expect("the lock is still held");
    drop(arena.take_soon("a refused try still waits", &a).await);
}
