//! One name is one lock, whatever the kind and whatever it is called through.

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
            a_kind_that_the_store_lacks_is_refused_without_asking_it,
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

/// While one kind is held the other waits, or is refused by a store that cannot order the two.
async fn never_both_hold(arena: &Arena, one: Kind, other: Kind) {
    let (a, b) = (arena.client().await, arena.client().await);
    let options = arena.options();
    for (held, asked) in [(one, other), (other, one)] {
        let guard = arena.take(&a, held).await;
        let lock = b.of(asked, arena.name());
        let both = |which: &Guard| panic!("{held} and {asked} of one name are both held: {which:?}");
        match lock.try_lock(&options).await {
            Ok(tried) => tried.iter().for_each(both),
            Err(error) => assert_refused(&error, asked),
        }
        let mut waiting = lock.lock(&options);
        match timeout(Duration::from_millis(60), &mut waiting).await {
            Err(_) => {
                guard.release().await.expect("held until now");
                // A refusal may have been under way.
                match arena.soon("the other kind is free, this one waits on", waiting).await {
                    Ok(second) => second.release().await.expect("held until now"),
                    Err(error) => assert_refused(&error, asked),
                }
            }
            Ok(Err(error)) => {
                assert_refused(&error, asked);
                guard.release().await.expect("held until now");
            }
            Ok(Ok(second)) => both(&second),
        }
    }
}

fn assert_refused(error: &Error, asked: Kind) {
    assert!(
        matches!(error, Error::WrongKind { kind, .. } if *kind == asked)
            || matches!(error, Error::Unsupported { .. }),
        "kinds that cannot be ordered are refused as such, not with {error:?}"
    );
    let told = error.to_string();
    assert!(told.contains(&asked.to_string()), "does not say which kind is refused: {told}");
}

pub(super) async fn a_kind_that_the_store_lacks_is_refused_without_asking_it(arena: Arc<Arena>) {
    let (client, switch) = arena.client_with_switch().await;
    switch.cut();
    for kind in Kind::ALL.iter().filter(|kind| !client.info().kinds.contains(kind)) {
        let lock = client.of(*kind, arena.name());
        let error = lock.lock(&arena.options()).await.expect_err("the store lacks it");
        assert!(matches!(error, Error::Unsupported { .. }), "should be refused as unsupported: {error:?}");
        assert_refused(&error, *kind);
        let error = lock.try_lock(&arena.options()).await.expect_err("the store lacks it");
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
            Ok(other) => panic!("a mutex beside {} permits: {other:?}", held.len()),
        }
        held.remove(0).release().await.expect("held until now");
    }
    match arena.soon("all permits were given back", waiting).await {
        // A refusal may have been under way.
        Ok(_) | Err(Error::WrongKind { .. }) => {}
        Err(error) => panic!("granted in the end, not {error:?}"),
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
        let guard = lock.lock_within(Duration::from_secs(20)).await.expect("free");
        let beside = arena.try_take(&b, kind).await;
        assert_eq!(beside.is_some(), kind.shares_with(kind), "{kind}: beside {guard:?} stands {beside:?}");
        for guard in [Some(guard), beside].into_iter().flatten() {
            guard.release().await.expect("held until now");
        }
    }
}

pub(super) async fn a_builder_takes_the_lock_that_the_trait_takes(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let guard = a.mutex(arena.name()).lock().ttl(arena.ttl()).wait(arena.ttl()).await.expect("free");
    assert!(arena.try_take(&b, Kind::Mutex).await.is_none(), "two hold it");
    let refused: Result<Option<Guard>> = b.mutex(arena.name()).try_lock().ttl(arena.ttl()).await;
    assert!(refused.expect("busy is no error").is_none(), "two hold it");
    guard.release().await.expect("held until now");
}

pub(super) async fn a_lock_is_held_while_its_work_runs_and_free_afterwards(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let mutex = a.mutex(arena.name());
    let beside = mutex.run(async |_| arena.try_take(&b, Kind::Mutex).await).await.expect("free");
    assert!(beside.is_none(), "somebody else holds it while the work runs");
    assert!(arena.try_take(&b, Kind::Mutex).await.is_some(), "the work is done, the lock is held");
}
