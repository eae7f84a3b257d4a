//! Invalid options are refused, and extreme valid options work.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use dlock_core::{Error, Kind, LockOptions};

use crate::{
    Arena,
    case::{Case, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "option" (Kind::Mutex) [] {
            invalid_options_are_refused_before_any_io,
            the_longest_wait_is_a_wait,
            the_longest_ttl_can_be_held,
            the_shortest_ttl_is_short_but_no_panic,
        }
    }
}

pub(super) async fn invalid_options_are_refused_before_any_io(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    switch.cut();
    let (ttl, zero, info) = (arena.ttl(), Duration::ZERO, a.info().clone());
    let mut invalid = vec![
        LockOptions::new().ttl(zero),
        LockOptions::new().lease(zero),
        arena.options().renew_every(zero),
        arena.options().renew_every(ttl / 2 + Duration::from_nanos(1)),
        arena.options().renew_every(Duration::MAX),
        arena.options().lease(ttl).renew_every(ttl / 3),
        arena.options().margin(ttl / 2 + Duration::from_nanos(1)),
        arena.options().margin(Duration::MAX),
        arena.options().max_hold(ttl / 2).margin(ttl / 3),
    ];
    let outside = |range: &RangeInclusive<Duration>| {
        let nano = Duration::from_nanos(1);
        [range.start().checked_sub(nano), range.end().checked_add(nano)].map(|value| value.unwrap_or(zero))
    };
    invalid.extend(outside(&info.ttl).map(|ttl| LockOptions::new().ttl(ttl)));
    invalid.extend(outside(&info.leases).map(|lease| LockOptions::new().lease(lease)));
    for options in invalid {
        let lock = arena.lock(&a);
        for result in [lock.lock(&options).await.map(Some), lock.try_lock(&options).await] {
            assert!(matches!(result, Err(Error::InvalidOptions { .. })), "{options:?} returned {result:?}");
        }
    }
}

pub(super) async fn the_longest_wait_is_a_wait(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let mut patient = b.mutex(arena.name()).lock().wait(Duration::MAX);
    arena.still_waits("two claims hold the lock", &mut patient).await;
    held.release().await.expect("the lock is still held");
    drop(arena.soon("a free lock was not granted", patient).await.expect("the lock is free"));
}

pub(super) async fn the_longest_ttl_can_be_held(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let longest = *a.info().ttl.end();
    for options in [LockOptions::new().ttl(longest), LockOptions::new().lease(longest)] {
        let held = arena
            .soon("a free lock was not granted", arena.lock(&a).lock(&options))
            .await
            .expect("the lock is free");
        assert!(held.remaining() > arena.ttl() && held.remaining() <= longest, "{:?}", held.remaining());
        assert!(arena.is_busy(&b).await, "two claims hold the lock");
        held.release().await.expect("the lock is still held");
    }
}

pub(super) async fn the_shortest_ttl_is_short_but_no_panic(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let shortest = *a.info().ttl.start();
    for options in [LockOptions::new().ttl(shortest), LockOptions::new().lease(shortest)] {
        // The lock may be lost before the check, or before the reply.
        let held = arena.within(shortest, "the call does not return", arena.lock(&a).lock(&options)).await;
        assert!(!matches!(&held, Err(error) if !error.is_transient()), "{held:?}");
        drop(held);
        let next = arena.within(shortest, "the claim does not expire", arena.take(&b, arena.kind())).await;
        // A contender that finds the lock busy repeats grants that arrive too late for a whole ttl.
        next.release().await.expect("the lock is still held");
    }
}
