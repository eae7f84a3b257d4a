//! A held lock is renewed while it has a guard, a lease is not renewed, and `run` holds the lock
//! during some work.

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
    time::Duration,
};

use dlock_core::{DistributedLockExt, Error, Guard, Kind, LostReason};
use futures_util::FutureExt;
use tokio::time::{Instant, sleep};

use crate::{
    Arena,
    case::{Case, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "hold" (Kind::Mutex) [] {
            two_holds_are_renewed_each_for_itself,
            the_remaining_time_never_exceeds_the_ttl,
            renewing_at_half_the_ttl_keeps_a_lock,
            the_store_keeps_no_claim_longer_than_requested,
            a_lease_ends_by_itself,
            a_lease_lets_the_next_one_in_no_earlier_than_its_guard_says,
            a_lease_that_is_released_before_its_end_is_never_lost,
            run_releases_when_its_work_panics,
            run_drops_its_work_when_the_lock_is_lost,
            lock_within_gives_up_when_its_time_is_over,
            the_time_that_an_answer_took_is_not_time_held,
            a_grant_that_comes_after_its_ttl_is_never_held,
            a_waiter_whose_grant_comes_too_late_attempts_again,
        }
    }
}

/// Returns the deadline of a guard without a further renewal.
fn end(guard: &Guard) -> Instant {
    Instant::now() + guard.remaining()
}

pub(super) async fn two_holds_are_renewed_each_for_itself(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let other = arena.name_with("-other");
    let first = arena.take_soon("a free lock was not granted", &a).await;
    let second = a.mutex(&other).lock().await.expect("the lock is free");
    sleep(arena.ttl() / 2).await;
    first.release().await.expect("the lock is still held");
    sleep(arena.ttl()).await;
    assert!(!second.is_lost(), "the renewals of one hold ended with the other hold");
    assert!(
        b.mutex(&other).try_lock().await.expect("a busy lock is not an error").is_none(),
        "two claims hold the lock"
    );
}

pub(super) async fn the_remaining_time_never_exceeds_the_ttl(arena: Arc<Arena>) {
    let a = arena.client().await;
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let first = end(&held);
    arena
        .until("the lock was not renewed", || {
            assert!(held.remaining() <= arena.ttl(), "more time remains than was requested");
            end(&held) > first + arena.ttl() / 10
        })
        .await;
    assert!(!held.is_lost());
}

pub(super) async fn renewing_at_half_the_ttl_keeps_a_lock(arena: Arc<Arena>) {
    let a = arena.client().await;
    let options = arena.options().renew_every(arena.ttl() / 2);
    let held = arena.lock(&a).lock(&options).await.expect("the lock is free");
    let first = end(&held);
    arena.until("the lock was not renewed", || end(&held) > first + arena.ttl() / 4).await;
    assert!(!held.is_lost(), "the lock was renewed too late");
}

pub(super) async fn the_store_keeps_no_claim_longer_than_requested(arena: Arc<Arena>) {
    let a = arena.client().await;
    let held = arena.take_soon("a free lock was not granted", &a).await;
    if let Ok(state) = a.inspect(arena.name()).await {
        let left = state.expect("the lock is held").holders[0].ttl_left;
        // If a session keeps the claim, only its own client knows the time.
        assert!(
            left.is_some() || a.info().session.is_some(),
            "a store must limit the time of a silent holder"
        );
        assert!(left <= Some(arena.ttl()), "the store would keep the claim for {left:?}");
    }
    drop(held);
}

pub(super) async fn a_lease_ends_by_itself(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let options = arena.options().lease(arena.short_ttl());
    let leased = arena.lock(&a).lock(&options).await.expect("the lock is free");
    let reason = arena.within(arena.short_ttl(), "the lease was renewed", leased.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    assert!(leased.is_lost() && leased.remaining().is_zero(), "the guard claims a lost lock");
    drop(arena.take_soon("the lease has ended, but the lock is not free", &b).await);
}

pub(super) async fn a_lease_lets_the_next_one_in_no_earlier_than_its_guard_says(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let options = arena.options().lease(arena.short_ttl());
    let leased = arena.lock(&a).lock(&options).await.expect("the lock is free");
    let next = arena.lock(&b).lock(&arena.options()).await.expect("the lock is free when the lease ends");
    assert!(leased.is_lost(), "two claims hold the lock");
    drop(next);
}

pub(super) async fn a_lease_that_is_released_before_its_end_is_never_lost(arena: Arc<Arena>) {
    let a = arena.client().await;
    let leased = arena.lock(&a).lock(&arena.options().lease(arena.ttl())).await.expect("the lock is free");
    let lost = leased.lost_signal();
    leased.release().await.expect("the lock is still held");
    sleep(arena.ttl() * 11 / 10).await;
    assert!(!lost.is_lost(), "a release was reported as a loss");
}

pub(super) async fn run_releases_when_its_work_panics(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let lock = a.mutex(arena.name());
    let work = async |_: &Guard| resume_unwind(Box::new("a panic of the work"));
    let ran: Result<dlock_core::Result<()>, _> = AssertUnwindSafe(lock.run(work)).catch_unwind().await;
    assert!(ran.is_err(), "`run` hides the panic of its work");
    drop(arena.take_soon("the work has ended, but the lock is still held", &b).await);
}

pub(super) async fn run_drops_its_work_when_the_lock_is_lost(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    let lock = arena.lock(&a);
    let options = arena.short();
    let work = async |_: &Guard| {
        switch.cut();
        std::future::pending::<()>().await;
    };
    let ran =
        arena.within(arena.short_ttl(), "the work outlives the lock", lock.run_with(&options, work)).await;
    assert!(
        matches!(ran, Err(Error::Lost { reason: LostReason::Expired, .. })),
        "the lock was lost during the work, but `run` returned {ran:?}"
    );
}

pub(super) async fn lock_within_gives_up_when_its_time_is_over(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let lock = arena.lock(&b);
    let wait = Duration::from_millis(100);
    let result = arena.soon("a limited wait does not end", lock.lock_within(wait)).await;
    assert!(
        matches!(result, Err(Error::Timeout { limit, .. }) if limit == wait),
        "a wait with a limit of {wait:?} ended with {result:?}"
    );
    held.release().await.expect("the lock is still held");
    drop(
        arena
            .soon("a free lock was not granted", lock.lock_within(arena.ttl()))
            .await
            .expect("the lock is free"),
    );
}

pub(super) async fn the_time_that_an_answer_took_is_not_time_held(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    switch.freeze();
    let (lock, options) = (arena.lock(&a), arena.options());
    let acquiring = arena.go(async move { lock.try_lock(&options).await });
    let began = Instant::now();
    arena.until("time does not pass", || began.elapsed() > arena.ttl() / 4).await;
    switch.connect();
    let held =
        acquiring.await.expect("the task does not panic").expect("connected").expect("the lock is free");
    // The task may have started a little after the clock was read.
    let limit = arena.ttl() - arena.ttl() / 5;
    assert!(held.remaining() <= limit, "the time is counted from the reply: {:?}", held.remaining());
}

pub(super) async fn a_grant_that_comes_after_its_ttl_is_never_held(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    switch.freeze();
    let (lock, options) = (arena.lock(&a), arena.short());
    let tried = arena.go(async move { lock.try_lock(&options).await });
    sleep(arena.short_ttl() * 3 / 2).await;
    switch.connect();
    let result = tried.await.expect("the task does not panic");
    assert!(
        matches!(result, Err(Error::Unavailable { .. })),
        "the grant is older than its ttl, but the try returned {result:?}"
    );
}

pub(super) async fn a_waiter_whose_grant_comes_too_late_attempts_again(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    switch.freeze();
    let (lock, options) = (arena.lock(&a), arena.options().ttl(arena.kept_ttl()));
    let acquiring = arena.go(async move { lock.lock(&options).await });
    sleep(arena.kept_ttl() * 3 / 2).await;
    switch.connect();
    let held = arena
        .soon("a free lock was not granted", acquiring)
        .await
        .expect("the task does not panic")
        .expect("the lock is free");
    assert!(!held.is_lost(), "the guard was lost when it was returned");
    held.release().await.expect("the lock is still held");
}
