//! A held lock is renewed for as long as it lives, a lease is not, and `run` is a hold around some work.

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
            what_remains_is_never_more_than_the_ttl,
            renewing_at_half_the_ttl_keeps_a_lock,
            the_store_keeps_no_claim_longer_than_was_asked,
            a_lease_ends_by_itself,
            a_lease_lets_the_next_one_in_no_earlier_than_its_guard_says,
            a_lease_that_is_released_before_its_end_is_never_lost,
            run_releases_when_its_work_panics,
            run_drops_its_work_when_the_lock_is_lost,
            lock_within_gives_up_when_its_time_is_over,
            the_time_that_an_answer_took_is_not_time_held,
            a_grant_that_comes_after_its_ttl_is_never_held,
            a_waiter_whose_grant_comes_too_late_asks_again,
        }
    }
}

/// The moment at which a guard is lost unless it is renewed before.
fn end(guard: &Guard) -> Instant {
    Instant::now() + guard.remaining()
}

pub(super) async fn two_holds_are_renewed_each_for_itself(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let other = arena.name_with("-other");
    let first = arena.take_soon("nobody holds it", &a).await;
    let second = a.mutex(&other).lock().await.expect("nobody holds it");
    sleep(arena.ttl() / 2).await;
    first.release().await.expect("held until now");
    sleep(arena.ttl()).await;
    assert!(!second.is_lost(), "the renewal of one ended with the other");
    assert!(b.mutex(&other).try_lock().await.expect("busy is no error").is_none(), "two hold it");
}

pub(super) async fn what_remains_is_never_more_than_the_ttl(arena: Arc<Arena>) {
    let a = arena.client().await;
    let held = arena.take_soon("nobody holds it", &a).await;
    let first = end(&held);
    arena
        .until("it was not renewed", || {
            assert!(held.remaining() <= arena.ttl(), "more remains than was asked for");
            end(&held) > first + arena.ttl() / 10
        })
        .await;
    assert!(!held.is_lost());
}

pub(super) async fn renewing_at_half_the_ttl_keeps_a_lock(arena: Arc<Arena>) {
    let a = arena.client().await;
    let options = arena.options().renew_every(arena.ttl() / 2);
    let held = arena.lock(&a).lock(&options).await.expect("nobody holds it");
    let first = end(&held);
    arena.until("it was not renewed", || end(&held) > first + arena.ttl() / 4).await;
    assert!(!held.is_lost(), "renewed too late");
}

pub(super) async fn the_store_keeps_no_claim_longer_than_was_asked(arena: Arc<Arena>) {
    let a = arena.client().await;
    let held = arena.take_soon("nobody holds it", &a).await;
    if let Ok(state) = a.inspect(arena.name()).await {
        let left = state.expect("it is held").holders[0].ttl_left;
        // Where a session keeps it, only its own client knows.
        assert!(left.is_some() || a.info().session.is_some(), "a store forgets a silent holder");
        assert!(left <= Some(arena.ttl()), "the store would keep it for {left:?}");
    }
    drop(held);
}

pub(super) async fn a_lease_ends_by_itself(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let options = arena.options().lease(arena.short_ttl());
    let leased = arena.lock(&a).lock(&options).await.expect("nobody holds it");
    let reason = arena.within(arena.short_ttl(), "the lease was renewed", leased.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    assert!(leased.is_lost() && leased.remaining().is_zero(), "it says that it is still held");
    drop(arena.take_soon("the lease is over, but nobody else gets in", &b).await);
}

pub(super) async fn a_lease_lets_the_next_one_in_no_earlier_than_its_guard_says(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let options = arena.options().lease(arena.short_ttl());
    let leased = arena.lock(&a).lock(&options).await.expect("nobody holds it");
    let next = arena.lock(&b).lock(&arena.options()).await.expect("the lease ends");
    assert!(leased.is_lost(), "two hold it");
    drop(next);
}

pub(super) async fn a_lease_that_is_released_before_its_end_is_never_lost(arena: Arc<Arena>) {
    let a = arena.client().await;
    let leased = arena.lock(&a).lock(&arena.options().lease(arena.ttl())).await.expect("nobody holds it");
    let lost = leased.lost_signal();
    leased.release().await.expect("held until now");
    sleep(arena.ttl() * 11 / 10).await;
    assert!(!lost.is_lost(), "a release is no loss");
}

pub(super) async fn run_releases_when_its_work_panics(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let lock = a.mutex(arena.name());
    let work = async |_: &Guard| resume_unwind(Box::new("as asked"));
    let ran: Result<dlock_core::Result<()>, _> = AssertUnwindSafe(lock.run(work)).catch_unwind().await;
    assert!(ran.is_err(), "the panic was swallowed");
    drop(arena.take_soon("the work is gone, but the lock is still held", &b).await);
}

pub(super) async fn run_drops_its_work_when_the_lock_is_lost(arena: Arc<Arena>) {
    let (a, line) = arena.client_with_switch().await;
    let lock = arena.lock(&a);
    let options = arena.short();
    let work = async |_: &Guard| {
        line.cut();
        std::future::pending::<()>().await;
    };
    let ran =
        arena.within(arena.short_ttl(), "the work outlives the lock", lock.run_with(&options, work)).await;
    assert!(
        matches!(ran, Err(Error::Lost { reason: LostReason::Expired, .. })),
        "the lock was lost under the work, and `run` says {ran:?}"
    );
}

pub(super) async fn lock_within_gives_up_when_its_time_is_over(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    let lock = arena.lock(&b);
    let limit = Duration::from_millis(100);
    let got = arena.soon("it waits on", lock.lock_within(limit)).await;
    assert!(
        matches!(got, Err(Error::Timeout { waited, .. }) if waited == limit),
        "a wait of {limit:?} that ran out ends with {got:?}"
    );
    held.release().await.expect("held until now");
    drop(arena.soon("it is free", lock.lock_within(arena.ttl())).await.expect("it is free"));
}

pub(super) async fn the_time_that_an_answer_took_is_not_time_held(arena: Arc<Arena>) {
    let (a, line) = arena.client_with_switch().await;
    line.freeze();
    let (lock, options) = (arena.lock(&a), arena.options());
    let asked = arena.go(async move { lock.try_lock(&options).await });
    let began = Instant::now();
    arena.until("time passes", || began.elapsed() > arena.ttl() / 4).await;
    line.connect();
    let held = asked.await.expect("no panic").expect("connected").expect("nobody holds it");
    // The task that asks may have begun a little after the clock was read.
    let most = arena.ttl() - arena.ttl() / 5;
    assert!(held.remaining() <= most, "counted from the answer: {:?}", held.remaining());
}

pub(super) async fn a_grant_that_comes_after_its_ttl_is_never_held(arena: Arc<Arena>) {
    let (a, line) = arena.client_with_switch().await;
    line.freeze();
    let (lock, options) = (arena.lock(&a), arena.short());
    let tried = arena.go(async move { lock.try_lock(&options).await });
    sleep(arena.short_ttl() * 3 / 2).await;
    line.connect();
    let told = tried.await.expect("no panic");
    assert!(matches!(told, Err(Error::Unavailable { .. })), "asked for longer ago than its ttl: {told:?}");
}

pub(super) async fn a_waiter_whose_grant_comes_too_late_asks_again(arena: Arc<Arena>) {
    let (a, line) = arena.client_with_switch().await;
    line.freeze();
    let (lock, options) = (arena.lock(&a), arena.options().ttl(arena.kept_ttl()));
    let asked = arena.go(async move { lock.lock(&options).await });
    sleep(arena.kept_ttl() * 3 / 2).await;
    line.connect();
    let held = arena.soon("it is free", asked).await.expect("no panic").expect("it is free");
    assert!(!held.is_lost(), "it was given a guard that was lost already");
    held.release().await.expect("held until now");
}
