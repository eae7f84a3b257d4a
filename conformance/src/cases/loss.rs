//! A loss is reported to the holder in time, and only if it happened. A stale guard does not
//! disturb any other client.

use std::{sync::Arc, time::Duration};

use dlock_core::{Error, Guard, Kind, LockOptions, LockState, Locks, LostReason};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::look::claim_of;
use crate::{
    Arena,
    case::{Case, Need, cases},
    wrap::{Habit, Switch},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "loss" (Kind::Mutex) [] {
            a_loss_is_reported_when_the_ttl_of_a_holder_that_is_cut_off_is_over,
            a_loss_signal_is_set_by_the_loss,
            a_loss_is_reported_to_every_task_that_waits_for_it,
            no_client_is_granted_before_the_holder_that_is_cut_off_is_lost,
            no_client_is_granted_before_a_holder_without_replies_is_lost,
            a_holder_that_is_cut_off_for_less_than_its_ttl_keeps_its_lock,
            a_renewal_whose_answer_is_lost_is_no_loss,
            a_frozen_holder_sees_its_loss_at_its_first_step,
            a_lost_guard_stays_lost,
            a_lost_lock_is_free_when_its_holder_is_back,
            a_renewal_that_comes_too_late_does_not_disturb_the_next_holder,
            releasing_a_lost_lock_is_an_error,
            neither_a_release_nor_a_drop_is_a_loss,
            a_crashed_holder_frees_its_lock_within_its_ttl_or_session,
            a_crashed_waiter_lets_others_pass_within_its_ttl_or_session,
        }
        "loss" (Kind::Mutex) [] { a_hold_that_is_cut_off_lasts_to_the_last_moment_of_its_ttl }
        "loss_fair" (Kind::Fair) [] { a_hold_that_is_cut_off_lasts_to_the_last_moment_of_its_ttl }
        "loss_write" (Kind::Write) [] { a_hold_that_is_cut_off_lasts_to_the_last_moment_of_its_ttl }
        "loss_read" (Kind::Read) [Need::Kind(Kind::Write)] { a_hold_that_is_cut_off_lasts_to_the_last_moment_of_its_ttl }
        "loss_permit" (Kind::Permit) [] { a_hold_that_is_cut_off_lasts_to_the_last_moment_of_its_ttl }
        "loss" (Kind::Mutex) [Need::Session] { a_client_whose_session_ends_holds_nothing_any_more }
        "loss" (Kind::Mutex) [Need::Inspect] {
            a_forced_release_is_reported_to_the_holder,
            the_release_of_a_lock_that_was_taken_reports_the_loss,
            a_stale_release_does_not_disturb_the_next_holder,
            a_stale_drop_does_not_disturb_the_next_holder,
        }
    }
}

/// Takes the lock with [`short_ttl`](Arena::short_ttl), with a client that can be cut off.
async fn held_with_switch(arena: &Arena) -> (Guard, Switch) {
    let (client, switch) = arena.client_with_switch().await;
    let held = arena.lock(&client).lock(&arena.short()).await.expect("the lock is free");
    (held, switch)
}

/// Returns the part of a lock's state that only contenders change, and not time. On a RedLock these
/// are the holders only. A stale guard's claim that remains on a minority of the members is
/// reported as a waiter, and may disappear.
fn lasting(client: &Locks, state: Option<LockState>) -> Vec<String> {
    let waiting = client.info().store != "redlock";
    let all = state
        .into_iter()
        .flat_map(|state| state.holders.into_iter().chain(state.queue.into_iter().filter(move |_| waiting)));
    all.map(|contender| format!("{} {} {:?}", claim_of(client, &contender), contender.kind, contender.token))
        .collect()
}

pub(super) async fn a_loss_is_reported_when_the_ttl_of_a_holder_that_is_cut_off_is_over(arena: Arc<Arena>) {
    let (held, switch) = held_with_switch(&arena).await;
    switch.cut();
    let reason = arena.within(arena.short_ttl(), "the loss is never reported", held.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    assert!(held.is_lost() && held.remaining().is_zero(), "the guard claims a lost lock");
}

pub(super) async fn a_loss_signal_is_set_by_the_loss(arena: Arc<Arena>) {
    let (held, switch) = held_with_switch(&arena).await;
    let lost = held.lost_signal();
    switch.cut();
    arena.within(arena.short_ttl(), "the loss signal was never set", lost.lost()).await;
    assert!(held.is_lost(), "the loss signal was set without a loss");
    assert!(held.lost_signal().is_lost(), "a new loss signal is not set after the loss");
}

pub(super) async fn a_loss_is_reported_to_every_task_that_waits_for_it(arena: Arc<Arena>) {
    let (held, switch) = held_with_switch(&arena).await;
    let held = Arc::new(held);
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let held = Arc::clone(&held);
            arena.go(async move { held.lost().await })
        })
        .collect();
    switch.cut();
    for task in tasks {
        let result =
            arena.within(arena.short_ttl(), "the loss was not reported to one of the tasks", task).await;
        assert_eq!(result.expect("the task does not panic"), LostReason::Expired);
    }
}

pub(super) async fn no_client_is_granted_before_the_holder_that_is_cut_off_is_lost(arena: Arc<Arena>) {
    let (held, switch) = held_with_switch(&arena).await;
    let b = arena.client().await;
    switch.cut();
    let next = arena
        .within(arena.short_ttl(), "a dead claim is never forgotten", arena.lock(&b).lock(&arena.options()))
        .await;
    assert!(held.is_lost(), "two claims hold the lock");
    drop(next.expect("the lock is free"));
}

pub(super) async fn no_client_is_granted_before_a_holder_without_replies_is_lost(arena: Arc<Arena>) {
    let (held, switch) = held_with_switch(&arena).await;
    let b = arena.client().await;
    switch.lose_answers();
    let next = arena
        .within(
            arena.short_ttl(),
            "the claim of a lost hold never ends",
            arena.lock(&b).lock(&arena.options()),
        )
        .await;
    assert!(held.is_lost(), "two claims hold the lock");
    drop(next.expect("the lock is free"));
}

/// Tries repeatedly near the end, because a waiter would attempt only some time after the end.
/// Takes several names, because a store that rounds its times is wrong by a part of a millisecond,
/// which not every hold reveals.
pub(super) async fn a_hold_that_is_cut_off_lasts_to_the_last_moment_of_its_ttl(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    let rival = if arena.kind() == Kind::Read { Kind::Write } else { arena.kind() };
    let mut holds = Vec::new();
    for number in 0..8 {
        let name = arena.name_with(&format!("-{number}"));
        let held = a.of(arena.kind(), &name).lock(&arena.short()).await.expect("the lock is free");
        holds.push((held, b.of(rival, &name)));
    }
    switch.cut();
    let limit = arena.forgotten_after(&b, arena.short_ttl());
    let all = join_all(holds.into_iter().map(|(held, other)| async move {
        sleep(held.remaining() / 10 * 9).await;
        while other.try_lock(&LockOptions::new()).await.ok().flatten().is_none() {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(held.is_lost(), "two claims hold the lock for the last {:?}", held.remaining());
    }));
    arena.within(limit, "a dead claim is never forgotten", all).await;
}

pub(super) async fn a_holder_that_is_cut_off_for_less_than_its_ttl_keeps_its_lock(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    switch.cut();
    let end = Instant::now() + held.remaining();
    sleep(arena.ttl() / 2).await;
    switch.connect();
    arena
        .until("the lock was not renewed after the fault", || {
            held.is_lost() || held.remaining() > arena.ttl() / 2
        })
        .await;
    assert!(!held.is_lost(), "a failed renewal was reported as a loss");
    assert!(Instant::now() + held.remaining() > end, "the lock was not renewed");
    assert!(arena.is_busy(&b).await, "two claims hold the lock");
}

pub(super) async fn a_renewal_whose_answer_is_lost_is_no_loss(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    let held = arena.take_soon("a free lock was not granted", &a).await;
    switch.lose_answers();
    sleep(arena.ttl() / 2).await;
    assert!(!held.is_lost(), "a lost reply was reported as a loss");
    switch.connect();
    arena
        .until("the lock was not renewed after the fault", || {
            held.is_lost() || held.remaining() > arena.ttl() / 2
        })
        .await;
    held.release().await.expect("the lock is still held");
}

pub(super) async fn a_frozen_holder_sees_its_loss_at_its_first_step(arena: Arc<Arena>) {
    let (held, switch) = held_with_switch(&arena).await;
    switch.freeze();
    sleep(arena.short_ttl()).await;
    assert!(held.is_lost(), "the time of the hold has ended, but the guard does not report it");
}

pub(super) async fn a_lost_guard_stays_lost(arena: Arc<Arena>) {
    let (held, switch) = held_with_switch(&arena).await;
    switch.cut();
    arena.within(arena.short_ttl(), "the loss is never reported", held.lost()).await;
    switch.connect();
    for _ in 0..10 {
        assert!(held.is_lost(), "the guard claims a lost lock");
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(held.lost().await, LostReason::Expired, "the reason of the loss changed");
}

pub(super) async fn a_lost_lock_is_free_when_its_holder_is_back(arena: Arc<Arena>) {
    let (held, switch) = held_with_switch(&arena).await;
    let b = arena.client().await;
    switch.freeze();
    arena.within(arena.short_ttl(), "the loss is never reported", held.lost()).await;
    switch.connect();
    drop(arena.take_soon("a renewal that arrived too late revived the claim", &b).await);
    assert!(held.is_lost());
}

pub(super) async fn a_renewal_that_comes_too_late_does_not_disturb_the_next_holder(arena: Arc<Arena>) {
    let (held, switch) = held_with_switch(&arena).await;
    let b = arena.client().await;
    switch.freeze();
    let next = arena
        .within(arena.short_ttl(), "a dead claim is never forgotten", arena.lock(&b).lock(&arena.options()))
        .await;
    let next = next.expect("the lock is free");
    switch.connect();
    stays_undisturbed(&arena, &b, &next, async || drop(held)).await;
}

pub(super) async fn releasing_a_lost_lock_is_an_error(arena: Arc<Arena>) {
    let (held, switch) = held_with_switch(&arena).await;
    switch.cut();
    arena.within(arena.short_ttl(), "the loss is never reported", held.lost()).await;
    let released = held.release().await;
    assert!(
        matches!(released, Err(Error::Lost { reason: LostReason::Expired, .. })),
        "the release of an expired lock returned {released:?}"
    );
}

pub(super) async fn neither_a_release_nor_a_drop_is_a_loss(arena: Arc<Arena>) {
    let a = arena.client().await;
    let released = arena.take_soon("a free lock was not granted", &a).await;
    let dropped = a.mutex(arena.name_with("-dropped")).lock().await.expect("the lock is free");
    let lost = [released.lost_signal(), dropped.lost_signal()];
    released.release().await.expect("the lock is still held");
    drop(dropped);
    sleep(arena.ttl() * 11 / 10).await;
    assert_eq!(lost.map(|lost| lost.is_lost()), [false, false]);
}

pub(super) async fn a_crashed_holder_frees_its_lock_within_its_ttl_or_session(arena: Arc<Arena>) {
    let (held, switch) = held_with_switch(&arena).await;
    let b = arena.client().await;
    switch.kill();
    drop(held);
    let limit = arena.forgotten_after(&b, arena.short_ttl());
    let next =
        arena.within(limit, "the claim outlives its client", arena.lock(&b).lock(&arena.options())).await;
    drop(next.expect("the lock is free"));
}

/// Uses the longest ttl, so that in a store with sessions the session ends first.
pub(super) async fn a_client_whose_session_ends_holds_nothing_any_more(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    let options = arena.options().ttl(arena.long_ttl(&a));
    let held = arena.lock(&a).lock(&options).await.expect("the lock is free");
    switch.kill();
    let limit = arena.forgotten_after(&b, Duration::ZERO);
    let next = arena.within(limit, "the claim outlives its session", arena.take(&b, arena.kind())).await;
    assert!(held.is_lost(), "its session was over, and its guard says that it still holds");
    drop(next);
}

pub(super) async fn a_crashed_waiter_lets_others_pass_within_its_ttl_or_session(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (crashed, switch) = arena.client_with_switch().await;
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let (lock, options) = (arena.lock(&crashed), arena.short());
    let waiter = arena.go(async move { lock.lock(&options).await });
    arena.until_contenders(&b, 2).await;
    switch.kill();
    held.release().await.expect("the lock is still held");
    let limit = arena.forgotten_after(&b, arena.short_ttl());
    let next =
        arena.within(limit, "a dead waiter blocks the queue", arena.lock(&b).lock(&arena.options())).await;
    drop(next.expect("the lock is free"));
    // The store may have granted a request that the client had sent before it crashed. The lock is
    // then free for others when the claim of the crashed holder is deleted.
    match waiter.await.expect("the task does not panic") {
        Ok(guard) => assert!(guard.is_lost(), "two claims hold the lock"),
        Err(error) => {
            assert!(matches!(error, Error::Unavailable { .. }), "a waiter that is cut off got {error:?}");
        }
    }
}

/// Force-releases the lock of a holder without its knowledge, and lets another client take it.
async fn force_released(arena: &Arena) -> (Guard, Locks, Guard) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    b.force_release(arena.name()).await.expect("the store is reachable");
    let next = arena.take_soon("the lock is still held after a forced release", &b).await;
    (held, b, next)
}

/// Uses a stale guard, and checks that the current holder is not disturbed, neither at once nor at
/// its next renewal.
pub(super) async fn stays_undisturbed(
    arena: &Arena,
    client: &Locks,
    holder: &Guard,
    stale: impl AsyncFnOnce(),
) {
    let before = client.inspect(arena.name()).await;
    stale().await;
    let end = Instant::now() + holder.remaining();
    let renewed = || holder.is_lost() || Instant::now() + holder.remaining() > end + arena.ttl() / 10;
    arena.until("the lock was not renewed", renewed).await;
    assert!(!holder.is_lost(), "a stale guard took the lock from its holder");
    if let Ok(before) = before {
        let after = client.inspect(arena.name()).await.expect("the store can be inspected as before");
        assert_eq!(
            lasting(client, after),
            lasting(client, before),
            "a stale guard changed the claims in the store"
        );
    }
}

pub(super) async fn a_forced_release_is_reported_to_the_holder(arena: Arc<Arena>) {
    let (held, _, next) = force_released(&arena).await;
    assert_eq!(
        arena.within(arena.short_ttl(), "the loss is never reported", held.lost()).await,
        LostReason::Deleted
    );
    assert!(held.is_lost());
    drop(next);
}

pub(super) async fn the_release_of_a_lock_that_was_taken_reports_the_loss(arena: Arc<Arena>) {
    if arena.habit() == Some(Habit::Flaky) {
        // A repeated release finds nothing in either case.
        return;
    }
    let (a, b) = (arena.client().await, arena.client().await);
    // Long enough that no renewal precedes the release, and that a majority has time to reply.
    let options = LockOptions::new().ttl(arena.long_ttl(&a));
    let held = arena.lock(&a).lock(&options).await.expect("the lock is free");
    b.force_release(arena.name()).await.expect("the store is reachable");
    let released = held.release().await;
    assert!(
        matches!(released, Err(Error::Lost { reason: LostReason::Deleted, .. })),
        "the release of a lock that was taken returned {released:?}"
    );
}

pub(super) async fn a_stale_release_does_not_disturb_the_next_holder(arena: Arc<Arena>) {
    let (held, b, next) = force_released(&arena).await;
    stays_undisturbed(&arena, &b, &next, async || {
        // The guard may not know of its loss yet.
        held.release().await.ok();
    })
    .await;
}

pub(super) async fn a_stale_drop_does_not_disturb_the_next_holder(arena: Arc<Arena>) {
    let (held, b, next) = force_released(&arena).await;
    stays_undisturbed(&arena, &b, &next, async || drop(held)).await;
}
