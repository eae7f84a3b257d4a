//! With a margin the guard is lost early enough for its work to stop before the next grant.

use std::{sync::Arc, time::Duration};

use dlock_core::{DistributedLock, Guard, Kind, LockOptions, Locks, LostReason, MultiLock};
use tokio::time::{Instant, sleep};

use crate::{
    Arena,
    case::{Case, Need, cases},
    wrap::Switch,
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "margin" (Kind::Mutex) [] {
            no_client_is_granted_within_the_margin_of_a_holder_that_is_cut_off,
            no_client_is_granted_within_the_margin_of_a_holder_without_replies,
            an_expired_hold_stays_taken_until_its_guard_is_dropped,
            an_expired_hold_is_free_at_the_end_of_its_margin,
            a_renewed_hold_keeps_its_margin,
            a_lock_of_several_names_has_the_margin_of_each,
        }
        "margin_fair" (Kind::Fair) [] { no_client_is_granted_within_the_margin_of_a_holder_that_is_cut_off }
        "margin_write" (Kind::Write) [] { no_client_is_granted_within_the_margin_of_a_holder_that_is_cut_off }
        "margin_permit" (Kind::Permit) [] { no_client_is_granted_within_the_margin_of_a_holder_that_is_cut_off }
        "margin" (Kind::Mutex) [Need::Detach] { a_hold_that_was_taken_over_has_a_margin }
    }
}

/// The margin of the cases.
fn margin(arena: &Arena) -> Duration {
    arena.short_ttl() / 4
}

/// A short ttl with a margin.
fn options(arena: &Arena) -> LockOptions {
    arena.short().margin(margin(arena))
}

/// Returns the lease that is closest to `span`, among those that the client's store keeps.
fn lease(client: &Locks, span: Duration) -> Duration {
    span.clamp(*client.info().leases.start(), *client.info().leases.end())
}

async fn held_with_switch(arena: &Arena) -> (Guard, Switch) {
    let (client, switch) = arena.client_with_switch().await;
    let held = arena.lock(&client).lock(&options(arena)).await.expect("the lock is free");
    (held, switch)
}

/// Disturbs the holder's connection, waits until another client is granted the lock, and checks
/// that the margin had passed by then. The times are taken so that a busy machine can only lengthen
/// the measured margin.
async fn is_granted_after_the_margin(arena: &Arena, disturb: impl FnOnce(&Switch)) {
    let (held, switch) = held_with_switch(arena).await;
    let b = arena.client().await;
    disturb(&switch);
    let mut deadline = Instant::now() + held.remaining();
    let wait_options = arena.options();
    let lock = arena.lock(&b);
    let mut next = std::pin::pin!(lock.lock(&wait_options));
    let limit = arena.forgotten_after(&b, arena.short_ttl());
    let granted = async {
        loop {
            tokio::select! {
                biased;
                next = &mut next => return (next, Instant::now()),
                // A renewal that was in flight may still extend the hold.
                () = sleep(Duration::from_millis(2)) => {
                    let (now, remaining) = (Instant::now(), held.remaining());
                    if !remaining.is_zero() {
                        deadline = now + remaining;
                    }
                }
            }
        }
    };
    let (next, granted_at) = arena.within(limit, "a dead claim is never forgotten", granted).await;
    drop(next.expect("the lock is free"));
    assert!(held.is_lost(), "two claims hold the lock");
    let passed = granted_at.saturating_duration_since(deadline);
    assert!(
        passed >= margin(arena),
        "the lock was granted {passed:?} after the deadline of the holder, whose margin is {:?}",
        margin(arena)
    );
}

pub(super) async fn no_client_is_granted_within_the_margin_of_a_holder_that_is_cut_off(arena: Arc<Arena>) {
    is_granted_after_the_margin(&arena, Switch::cut).await;
}

pub(super) async fn no_client_is_granted_within_the_margin_of_a_holder_without_replies(arena: Arc<Arena>) {
    is_granted_after_the_margin(&arena, Switch::lose_answers).await;
}

/// A lease ends while the store is reachable, so the keeper could release it at once.
pub(super) async fn an_expired_hold_stays_taken_until_its_guard_is_dropped(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let lease = lease(&a, arena.short_ttl() * 2);
    let options = LockOptions::new().lease(lease).margin(lease / 2);
    let start = Instant::now();
    let held = arena.lock(&a).lock(&options).await.expect("the lock is free");
    let reason = arena.within(lease, "the loss is never reported", held.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    // A busy server may not reply in time, and an error does not show whether the lock is free.
    let is_free = loop {
        match arena.lock(&b).try_lock(&arena.options()).await {
            Ok(granted) => break granted.is_some(),
            Err(error) => assert!(error.is_transient(), "a busy lock is not an error: {error:?}"),
        }
    };
    assert!(!is_free || start.elapsed() >= lease, "the lock was free while the work was being stopped");
    drop(held);
    drop(arena.take_soon("a lost lock was not free after its guard was dropped", &b).await);
}

pub(super) async fn an_expired_hold_is_free_at_the_end_of_its_margin(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let lease = lease(&a, arena.short_ttl());
    let options = LockOptions::new().lease(lease).margin(lease / 4);
    let held = arena.lock(&a).lock(&options).await.expect("the lock is free");
    let deadline = Instant::now() + held.remaining();
    let next = arena.within(lease, "a lost lock is never free", arena.take(&b, arena.kind())).await;
    let passed = Instant::now().saturating_duration_since(deadline);
    assert!(held.is_lost(), "two claims hold the lock");
    assert!(passed >= lease / 4, "the lock was free {passed:?} after the deadline of a lease of {lease:?}");
    drop(next);
}

pub(super) async fn a_renewed_hold_keeps_its_margin(arena: Arc<Arena>) {
    let a = arena.client().await;
    // Without the margin as much time is left for a renewal as in other cases.
    let ttl = (arena.ttl() * 2).min(*a.info().ttl.end());
    let options = LockOptions::new().ttl(ttl).margin(ttl / 2);
    let held = arena.lock(&a).lock(&options).await.expect("the lock is free");
    let first_deadline = Instant::now() + held.remaining();
    let is_renewed = || Instant::now() + held.remaining() > first_deadline + ttl / 20;
    arena.until("the lock was not renewed", || held.is_lost() || is_renewed()).await;
    assert!(!held.is_lost(), "a hold with a margin was lost without a fault");
    // The session of a client may last longer than the ttl.
    if a.info().session.is_none() {
        assert!(held.remaining() <= ttl / 2, "{:?} remain of a ttl of {ttl:?}", held.remaining());
    }
    held.release().await.expect("the lock is still held");
}

pub(super) async fn a_lock_of_several_names_has_the_margin_of_each(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    let b = arena.client().await;
    let names = ["-1", "-2"].map(|suffix| arena.name_with(suffix));
    let members = names.iter().map(|name| Arc::new(a.mutex(name)) as Arc<dyn DistributedLock>);
    let lock = MultiLock::new(members).expect("two locks");
    let held = lock.lock(&options(&arena)).await.expect("the locks are free");
    switch.cut();
    let deadline = Instant::now() + held.remaining();
    let limit = arena.forgotten_after(&b, arena.short_ttl());
    for name in &names {
        let next = arena.within(limit, "a dead claim is never forgotten", b.mutex(name).lock()).await;
        let passed = Instant::now().saturating_duration_since(deadline);
        drop(next.expect("the lock is free"));
        assert!(held.is_lost(), "two claims hold the lock");
        assert!(passed >= margin(&arena), "granted {passed:?} after the deadline");
    }
}

pub(super) async fn a_hold_that_was_taken_over_has_a_margin(arena: Arc<Arena>) {
    let (a, (b, switch)) = (arena.client().await, arena.client_with_switch().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let ticket = held.detach(arena.long_ttl(&a)).await.expect("the lock is held");
    let held = b.with_defaults(options(&arena)).resume(&ticket).await.expect("the hold is detached");
    switch.cut();
    let deadline = Instant::now() + held.remaining();
    let limit = arena.forgotten_after(&a, arena.short_ttl());
    drop(arena.within(limit, "a dead claim is never forgotten", arena.take(&a, arena.kind())).await);
    let passed = Instant::now().saturating_duration_since(deadline);
    assert!(held.is_lost(), "two claims hold the lock");
    assert!(passed >= margin(&arena), "granted {passed:?} after the deadline");
}
