//! Options that make no sense are refused, and extreme ones that do are kept.

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
            options_that_make_no_sense_are_refused_before_any_io,
            the_longest_wait_is_a_wait,
            the_longest_ttl_can_be_held,
            the_shortest_ttl_is_short_but_no_panic,
        }
    }
}

pub(super) async fn options_that_make_no_sense_are_refused_before_any_io(arena: Arc<Arena>) {
    let (a, line) = arena.client_with_switch().await;
    line.cut();
    let (ttl, zero, info) = (arena.ttl(), Duration::ZERO, a.info().clone());
    let mut senseless = vec![
        LockOptions::new().ttl(zero),
        LockOptions::new().lease(zero),
        arena.options().renew_every(zero),
        arena.options().renew_every(ttl / 2 + Duration::from_nanos(1)),
        arena.options().renew_every(Duration::MAX),
        arena.options().lease(ttl).renew_every(ttl / 3),
    ];
    let beyond = |range: &RangeInclusive<Duration>| {
        let nano = Duration::from_nanos(1);
        [range.start().checked_sub(nano), range.end().checked_add(nano)].map(|beyond| beyond.unwrap_or(zero))
    };
    senseless.extend(beyond(&info.ttl).map(|ttl| LockOptions::new().ttl(ttl)));
    senseless.extend(beyond(&info.leases).map(|lease| LockOptions::new().lease(lease)));
    for options in senseless {
        let lock = arena.lock(&a);
        for told in [lock.lock(&options).await.map(Some), lock.try_lock(&options).await] {
            assert!(matches!(told, Err(Error::InvalidOptions { .. })), "{options:?}: {told:?}");
        }
    }
}

pub(super) async fn the_longest_wait_is_a_wait(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    let mut patient = b.mutex(arena.name()).lock().wait(Duration::MAX);
    arena.still_waits("two hold it", &mut patient).await;
    held.release().await.expect("held until now");
    drop(arena.soon("it is free", patient).await.expect("it is free"));
}

pub(super) async fn the_longest_ttl_can_be_held(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let longest = *a.info().ttl.end();
    for options in [LockOptions::new().ttl(longest), LockOptions::new().lease(longest)] {
        let held =
            arena.soon("nobody holds it", arena.lock(&a).lock(&options)).await.expect("nobody holds it");
        assert!(held.remaining() > arena.ttl() && held.remaining() <= longest, "{:?}", held.remaining());
        assert!(arena.is_busy(&b).await, "two hold it");
        held.release().await.expect("held until now");
    }
}

pub(super) async fn the_shortest_ttl_is_short_but_no_panic(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let shortest = *a.info().ttl.start();
    for options in [LockOptions::new().ttl(shortest), LockOptions::new().lease(shortest)] {
        // Whether it is lost before it is looked at, or before the answer comes, is a matter of luck.
        let held = arena.within(shortest, "it hangs", arena.lock(&a).lock(&options)).await;
        assert!(!matches!(&held, Err(error) if !error.is_transient()), "{held:?}");
        drop(held);
        drop(arena.within(shortest, "it is held on", arena.take(&b, arena.kind())).await);
    }
}
