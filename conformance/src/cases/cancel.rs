//! A contender that goes away, at any point and in any way, leaves nothing behind.

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
            a_grant_that_nobody_takes_any_more_is_released,
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

/// How many points there are at which [`cut_off`] cuts.
pub(super) const CUTS: u32 = 20;

/// Lets a future run up to one of several points and drops it there: after so many polls first, with the keeper
/// polled in between, and then after ever longer times, up to what a slow store takes for a retry.
pub(super) async fn cut_off<T>(future: impl Future<Output = T>, cut: u32) -> Option<T> {
    const POLLS: u32 = 8;
    let mut future = pin!(future);
    for _ in 0..=cut.min(POLLS) {
        if let Some(done) = future.as_mut().now_or_never() {
            return Some(done);
        }
        yield_now().await;
    }
    let span = Duration::from_micros(100) * 2_u32.pow(cut.saturating_sub(POLLS));
    if cut > POLLS { timeout(span, future).await.ok() } else { None }
}

/// So long a ttl that a claim that was left behind is still there when the next contender comes.
fn long(arena: &Arena, client: &Locks) -> LockOptions {
    arena.options().ttl(arena.long_ttl(client))
}

/// The kind that must wait for a claim of the case's kind: the same kind, or a writer in the case of a reader.
pub(super) fn rival(arena: &Arena) -> Kind {
    if arena.kind() == Kind::Read { Kind::Write } else { arena.kind() }
}

async fn take_as_rival(arena: &Arena, client: &Locks, what: &str) -> Guard {
    arena.soon(what, arena.take(client, rival(arena))).await
}

pub(super) async fn an_acquire_of_a_free_lock_leaves_nothing_wherever_it_is_dropped(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (lock, options) = (arena.lock(&a), long(&arena, &a));
    for cut in 0..CUTS {
        drop(cut_off(lock.lock(&options), cut).await);
        drop(take_as_rival(&arena, &b, &format!("left behind at cut {cut}")).await);
    }
}

pub(super) async fn an_acquire_of_a_held_lock_leaves_nothing_wherever_it_is_dropped(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (lock, options) = (arena.lock(&a), long(&arena, &a));
    for cut in 0..CUTS {
        let held = take_as_rival(&arena, &b, &format!("left behind at cut {cut}")).await;
        let dropped = cut_off(lock.lock(&options), cut).await;
        assert!(dropped.is_none(), "two hold it");
        held.release().await.expect("held until now");
    }
    drop(take_as_rival(&arena, &b, "left behind at the last cut").await);
}

pub(super) async fn a_try_leaves_nothing_wherever_it_is_dropped(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (lock, options) = (arena.lock(&a), long(&arena, &a));
    for cut in 0..CUTS {
        drop(cut_off(lock.try_lock(&options), cut).await);
        drop(take_as_rival(&arena, &b, &format!("left behind at cut {cut}")).await);
    }
}

pub(super) async fn a_release_that_is_dropped_still_releases(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (lock, options) = (arena.lock(&a), long(&arena, &a));
    for cut in 0..CUTS {
        let held = lock.lock(&options).await.expect("nobody holds it");
        cut_off(held.release(), cut).await;
        drop(take_as_rival(&arena, &b, &format!("still held after cut {cut}")).await);
    }
}

pub(super) async fn a_downgrade_that_is_dropped_releases(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (lock, options) = (arena.lock(&a), long(&arena, &a));
    for cut in 0..CUTS {
        let held = lock.lock(&options).await.expect("nobody holds it");
        drop(cut_off(held.downgrade(), cut).await);
        drop(take_as_rival(&arena, &b, &format!("still held after cut {cut}")).await);
    }
}

pub(super) async fn a_waiter_that_is_dropped_when_woken_passes_the_turn_on(arena: Arc<Arena>) {
    let (a, b, c) = (arena.client().await, arena.client().await, arena.client().await);
    for yields in 0..6 {
        let held = take_as_rival(&arena, &a, "the last round left it held").await;
        let (lock, options) = (arena.lock(&b), long(&arena, &b));
        let woken = arena.go(async move { lock.lock(&options).await });
        arena.until_contenders(&a, 2).await;
        let (lock, options) = (c.of(rival(&arena), arena.name()), long(&arena, &c));
        let next = arena.go(async move { lock.lock(&options).await });
        arena.until_contenders(&a, 3).await;
        held.release().await.expect("held until now");
        for _ in 0..yields {
            yield_now().await;
        }
        // On a store that is not fair the other may have won; that it does win is what counts.
        woken.abort();
        drop(woken.await);
        let next = arena.soon("the wake-up was lost with its waiter", next).await.expect("no panic");
        next.expect("nobody holds it").release().await.expect("held until now");
    }
}

pub(super) async fn an_acquire_that_is_never_polled_does_nothing(arena: Arc<Arena>) {
    let a = arena.client().await;
    let (lock, options) = (arena.lock(&a), long(&arena, &a));
    drop((lock.lock(&options), a.mutex(arena.name()).lock()));
    if let Ok(state) = a.inspect(arena.name()).await {
        assert_eq!(state, None, "it was asked for all the same");
    }
    let taken = a.mutex(arena.name()).try_lock().await.expect("busy is no error");
    assert!(taken.is_some(), "it was asked for all the same");
}

pub(super) async fn another_arm_of_a_select_ends_the_wait(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    tokio::select! {
        _ = b.mutex(arena.name()).lock().ttl(arena.long_ttl(&b)) => panic!("two hold it"),
        () = sleep(Duration::from_millis(30)) => {}
    }
    held.release().await.expect("held until now");
    drop(arena.take_soon("the arm that was not chosen still waits", &a).await);
}

pub(super) async fn a_task_that_is_aborted_leaves_nothing(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    let waiter = arena.go(b.mutex(arena.name()).lock().ttl(arena.long_ttl(&b)));
    arena.until_contenders(&a, 2).await;
    waiter.abort();
    assert!(waiter.await.is_err_and(|error| error.is_cancelled()));
    held.release().await.expect("held until now");
    drop(arena.take_soon("the aborted task still waits", &a).await);
}

pub(super) async fn a_grant_that_nobody_takes_any_more_is_released(arena: Arc<Arena>) {
    let ((a, line), b) = (arena.client_with_switch().await, arena.client().await);
    line.freeze();
    let (lock, options) = (arena.lock(&a), long(&arena, &a));
    let asked = cut_off(lock.lock(&options), 8).await;
    assert!(asked.is_none(), "its request cannot have been answered");
    line.connect();
    drop(arena.take_soon("granted to nobody, and kept", &b).await);
}

pub(super) async fn a_try_whose_answer_is_lost_leaves_nothing(arena: Arc<Arena>) {
    let ((a, line), b) = (arena.client_with_switch().await, arena.client().await);
    line.lose_answers();
    let told = arena.lock(&a).try_lock(&long(&arena, &a)).await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "neither busy nor free is known: {told:?}");
    line.connect();
    drop(arena.take_soon("granted to nobody, and kept", &b).await);
}

pub(super) async fn an_acquire_whose_answers_are_all_lost_leaves_nothing(arena: Arc<Arena>) {
    let ((a, line), b) = (arena.client_with_switch().await, arena.client().await);
    line.lose_answers();
    let told = arena.soon("it hangs", arena.lock(&a).lock(&long(&arena, &a))).await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "no answer came, and `lock` says {told:?}");
    line.connect();
    drop(arena.take_soon("granted to nobody, and kept", &b).await);
}

pub(super) async fn a_release_whose_answers_are_lost_still_releases(arena: Arc<Arena>) {
    let ((a, line), b) = (arena.client_with_switch().await, arena.client().await);
    let held = arena.lock(&a).lock(&long(&arena, &a)).await.expect("nobody holds it");
    line.lose_answers();
    drop(held);
    drop(arena.take_soon("dropped, and kept", &b).await);
}

pub(super) async fn a_refused_try_leaves_nothing(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    for _ in 0..3 {
        assert!(arena.is_busy(&b).await, "two hold it");
    }
    if let Ok(state) = b.inspect(arena.name()).await {
        let state = state.expect("it is held");
        assert_eq!((state.holders.len(), state.queue.len()), (1, 0), "a refused try stays in the queue");
    }
    held.release().await.expect("held until now");
    drop(arena.take_soon("a refused try still waits", &a).await);
}
