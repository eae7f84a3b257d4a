//! One name is one lock, whatever the kind and the API through which it is taken.

use std::{sync::Arc, time::Duration};

use dlock_core::{DistributedLock, DistributedLockExt, Error, FairLock, Guard, Kind, Result, RwLock};
use tokio::time::timeout;

use super::semaphore::take_all;
use crate::{
    Arena,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "kinds" (Kind::Mutex) [] {
            a_kind_that_the_store_lacks_is_refused_before_any_io,
            a_lock_of_any_kind_works_through_its_trait,
            a_builder_takes_the_lock_that_the_trait_takes,
            a_lock_is_held_while_its_work_runs_and_free_afterwards,
        }
        "kinds" (Kind::Mutex) [Need::Kind(Kind::Fair)] { a_mutex_and_a_fair_lock_never_both_hold }
        "kinds" (Kind::Mutex) [Need::Kind(Kind::Write)] { a_mutex_and_a_writer_never_both_hold }
        "kinds" (Kind::Mutex) [Need::Kind(Kind::Read)] { a_mutex_and_a_reader_never_both_hold }
        "kinds" (Kind::Fair) [Need::Kind(Kind::Write)] { a_fair_lock_and_a_writer_never_both_hold }
        "kinds" (Kind::Fair) [Need::Kind(Kind::Read)] { a_fair_lock_and_a_reader_never_both_hold }
        "kinds" (Kind::Permit) [Need::Kind(Kind::Mutex)] {
            a_permit_and_a_mutex_never_both_hold,
            a_mutex_waits_for_every_permit,
        }
        "kinds" (Kind::Permit) [Need::Kind(Kind::Fair)] { a_permit_and_a_fair_lock_never_both_hold }
        "kinds" (Kind::Permit) [Need::Kind(Kind::Read)] { a_permit_and_a_reader_never_both_hold }
        "kinds" (Kind::Permit) [Need::Kind(Kind::Write)] { a_permit_and_a_writer_never_both_hold }
    }
}

pub(super) async fn a_mutex_and_a_fair_lock_never_both_hold(arena: Arc<Arena>) {
    never_both_hold(&arena, Kind::Mutex, Kind::Fair).await;
}

pub(super) async fn a_mutex_and_a_writer_never_both_hold(arena: Arc<Arena>) {
    never_both_hold(&arena, Kind::Mutex, Kind::Write).await;
}

pub(super) async fn a_mutex_and_a_reader_never_both_hold(arena: Arc<Arena>) {
    never_both_hold(&arena, Kind::Mutex, Kind::Read).await;
}

pub(super) async fn a_fair_lock_and_a_writer_never_both_hold(arena: Arc<Arena>) {
    never_both_hold(&arena, Kind::Fair, Kind::Write).await;
}

pub(super) async fn a_fair_lock_and_a_reader_never_both_hold(arena: Arc<Arena>) {
    never_both_hold(&arena, Kind::Fair, Kind::Read).await;
}

pub(super) async fn a_permit_and_a_mutex_never_both_hold(arena: Arc<Arena>) {
    never_both_hold(&arena, Kind::Permit, Kind::Mutex).await;
}

pub(super) async fn a_permit_and_a_fair_lock_never_both_hold(arena: Arc<Arena>) {
    never_both_hold(&arena, Kind::Permit, Kind::Fair).await;
}

pub(super) async fn a_permit_and_a_reader_never_both_hold(arena: Arc<Arena>) {
    never_both_hold(&arena, Kind::Permit, Kind::Read).await;
}

pub(super) async fn a_permit_and_a_writer_never_both_hold(arena: Arc<Arena>) {
    never_both_hold(&arena, Kind::Permit, Kind::Write).await;
}

/// Checks that while one kind is held the other waits, or is refused by a store that cannot order
/// the two.
async fn never_both_hold(arena: &Arena, one: Kind, other: Kind) {
    let (a, b) = (arena.client().await, arena.client().await);
    let options = arena.options();
    for (held, requested) in [(one, other), (other, one)] {
        let guard = arena.take(&a, held).await;
        let lock = b.of(requested, arena.name());
        let both = |which: &Guard| panic!("{held} and {requested} of one name are both held: {which:?}");
        match lock.try_lock(&options).await {
            Ok(tried) => tried.iter().for_each(both),
            Err(error) => assert_refused(&error, requested),
        }
        let mut waiting = lock.lock(&options);
        match timeout(Duration::from_millis(60), &mut waiting).await {
            Err(_) => {
                guard.release().await.expect("the lock is still held");
                // A refusal may have been in flight.
                match arena.soon("the other kind has released, but this one still waits", waiting).await {
                    Ok(second) => second.release().await.expect("the lock is still held"),
                    Err(error) => assert_refused(&error, requested),
                }
            }
            Ok(Err(error)) => {
                assert_refused(&error, requested);
                guard.release().await.expect("the lock is still held");
            }
            Ok(Ok(second)) => both(&second),
        }
    }
}

fn assert_refused(error: &Error, requested: Kind) {
    assert!(
        matches!(error, Error::WrongKind { kind, .. } if *kind == requested)
            || matches!(error, Error::Unsupported { .. }),
        "kinds that cannot be ordered must be refused as such, not with {error:?}"
    );
    let message = error.to_string();
    assert!(message.contains(&requested.to_string()), "the error does not name the refused kind: {message}");
}

pub(super) async fn a_kind_that_the_store_lacks_is_refused_before_any_io(arena: Arc<Arena>) {
    let (client, switch) = arena.client_with_switch().await;
    switch.cut();
    for kind in Kind::ALL.iter().filter(|kind| !client.info().kinds.contains(kind)) {
        let lock = client.of(*kind, arena.name());
        let error = lock.lock(&arena.options()).await.expect_err("the store lacks this kind");
        assert!(
            matches!(error, Error::Unsupported { .. }),
            "the kind must be refused as unsupported, not with {error:?}"
        );
        assert_refused(&error, *kind);
        let error = lock.try_lock(&arena.options()).await.expect_err("the store lacks this kind");
        assert_refused(&error, *kind);
    }
}

pub(super) async fn a_mutex_waits_for_every_permit(arena: Arc<Arena>) {
    let (mut held, client) = (take_all(&arena, &[2; 2]).await, arena.client().await);
    let mutex = client.mutex(arena.name());
    let mut waiting = Box::pin(mutex.lock().ttl(arena.long_ttl(&client)));
    for _ in 0..2 {
        match timeout(Duration::from_millis(60), &mut waiting).await {
            Err(_) => {}
            Ok(Err(Error::WrongKind { .. })) => return,
            Ok(other) => panic!("a mutex beside {} permits returned {other:?}", held.len()),
        }
        held.remove(0).release().await.expect("the lock is still held");
    }
    match arena.soon("all permits were released, but the mutex still waits", waiting).await {
        // A refusal may have been in flight.
        Ok(_) | Err(Error::WrongKind { .. }) => {}
        Err(error) => panic!("the mutex must be granted, not fail with {error:?}"),
    }
}

pub(super) async fn a_lock_of_any_kind_works_through_its_trait(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (fair, pair) = (a.fair(arena.name()), a.rwlock(arena.name()));
    let (fair, pair): (Box<dyn FairLock>, Box<dyn RwLock>) = (Box::new(fair), Box::new(pair));
    let locks: Vec<(Kind, Box<dyn DistributedLock>)> = vec![
        (Kind::Mutex, Box::new(a.mutex(arena.name()))),
        (Kind::Fair, fair),
        (Kind::Read, pair.read()),
        (Kind::Write, pair.write()),
        (Kind::Permit, Box::new(a.semaphore(arena.name(), 1))),
    ];
    for (kind, lock) in locks.into_iter().filter(|(kind, _)| a.info().kinds.contains(kind)) {
        assert_eq!(lock.name().as_str(), arena.name());
        let guard = lock.lock_within(Duration::from_secs(20)).await.expect("the lock is free");
        let beside = arena.try_take(&b, kind).await;
        assert_eq!(
            beside.is_some(),
            kind.shares_with(kind),
            "{kind}: beside {guard:?} a try returned {beside:?}"
        );
        for guard in [Some(guard), beside].into_iter().flatten() {
            guard.release().await.expect("the lock is still held");
        }
    }
}

pub(super) async fn a_builder_takes_the_lock_that_the_trait_takes(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let guard =
        a.mutex(arena.name()).lock().ttl(arena.ttl()).wait(arena.ttl()).await.expect("the lock is free");
    assert!(arena.try_take(&b, Kind::Mutex).await.is_none(), "two claims hold the lock");
    let refused: Result<Option<Guard>> = b.mutex(arena.name()).try_lock().ttl(arena.ttl()).await;
    assert!(refused.expect("a busy lock is not an error").is_none(), "two claims hold the lock");
    guard.release().await.expect("the lock is still held");
}

pub(super) async fn a_lock_is_held_while_its_work_runs_and_free_afterwards(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let mutex = a.mutex(arena.name());
    let beside = mutex.run(async |_| arena.try_take(&b, Kind::Mutex).await).await.expect("the lock is free");
    assert!(beside.is_none(), "another client holds the lock while the work runs");
    assert!(
        arena.try_take(&b, Kind::Mutex).await.is_some(),
        "the work has ended, but the lock is still held"
    );
}
