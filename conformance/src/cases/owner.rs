//! An owner that holds a lock may take it again, and nobody else may. Over the usual length: the cases of one topic.

use std::sync::Arc;

use dlock_core::{DistributedLock, Error, Guard, Kind, Locks, LostReason, Owner};
use tokio::time::{Instant, sleep_until};

use crate::{
    Arena,
    case::{Case, Need, cases},
    cases::downgrade,
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let downgraded = downgrade::TOPICS.into_iter().flat_map(|(topic, kind)| of_downgraded(topic, kind));
    let others = cases! {
        "owner" (Kind::Mutex) [] {
            an_owner_enters_again_through_any_handle,
            the_lock_is_held_until_its_owner_has_released_every_guard,
            another_owner_waits,
            without_an_owner_everybody_is_a_stranger,
            an_owner_of_two_clients_is_a_stranger_to_itself,
            an_owner_holds_each_name_for_itself,
            entering_again_asks_the_store_for_nothing,
            entering_again_with_a_shorter_ttl_shortens_nothing,
            two_tasks_of_an_owner_wait_as_one,
            an_owner_whose_first_task_gives_up_still_gets_in,
            after_a_loss_an_owner_takes_the_lock_anew,
        }
        "owner" (Kind::Write) [Need::Kind(Kind::Read)] {
            an_owner_that_writes_may_read,
            an_owner_that_reads_is_told_that_it_cannot_write,
            an_owner_goes_on_reading_when_it_no_longer_writes,
        }
    };
    others.into_iter().chain(downgraded).collect()
}

fn of_downgraded(topic: &'static str, kind: Kind) -> Vec<Case> {
    cases! {
        topic (kind) [Need::Kind(Kind::Read), Need::Downgrade] {
            when_an_owner_holds_only_to_read_others_may_read,
            of_an_owners_two_guards_a_downgraded_one_lets_no_reader_in,
            of_an_owners_two_guards_a_dropped_one_lets_no_reader_in,
        }
    }
}

pub(super) async fn an_owner_enters_again_through_any_handle(arena: Arc<Arena>) {
    let (a, me) = (arena.client().await, Owner::new());
    let outer = a.mutex(arena.name()).owned_by(&me).lock().await.expect("nobody holds it");
    let again = a.clone().mutex(arena.name()).owned_by(&me.clone()).lock();
    let inner = arena.soon("it waits for itself", again).await.expect("it is ours");
    assert_eq!((outer.hold_count(), inner.hold_count()), (2, 2));
    let tried = a.mutex(arena.name()).owned_by(&me).try_lock().await.expect("busy is no error");
    assert_eq!(tried.expect("it is ours").hold_count(), 3);
}

pub(super) async fn the_lock_is_held_until_its_owner_has_released_every_guard(arena: Arc<Arena>) {
    let (a, b, me) = (arena.client().await, arena.client().await, Owner::new());
    let lock = a.mutex(arena.name()).owned_by(&me);
    let outer = lock.lock().await.expect("nobody holds it");
    let inner = lock.lock().await.expect("it is ours");
    outer.release().await.expect("held until now");
    assert_eq!(inner.hold_count(), 1);
    assert!(arena.is_busy(&b).await, "released with the first of two guards");
    inner.release().await.expect("held until now");
    drop(arena.take_soon("two guards, two releases, and still held", &b).await);
}

pub(super) async fn another_owner_waits(arena: Arc<Arena>) {
    let a = arena.client().await;
    let held = a.mutex(arena.name()).owned_by(&Owner::new()).lock().await.expect("nobody holds it");
    let mut other = a.mutex(arena.name()).owned_by(&Owner::new()).lock();
    arena.still_waits("two owners hold it", &mut other).await;
    held.release().await.expect("held until now");
    drop(arena.soon("it is free", other).await.expect("it is free"));
}

pub(super) async fn without_an_owner_everybody_is_a_stranger(arena: Arc<Arena>) {
    let (a, me) = (arena.client().await, Owner::new());
    let lock = a.mutex(arena.name());
    let held = lock.lock().await.expect("nobody holds it");
    assert!(lock.try_lock().await.expect("busy is no error").is_none(), "two hold it");
    assert!(lock.clone().owned_by(&me).try_lock().await.expect("busy is no error").is_none(), "two hold it");
    held.release().await.expect("held until now");
    let owned = arena.soon("it is free", lock.clone().owned_by(&me).lock()).await.expect("it is free");
    assert!(lock.try_lock().await.expect("busy is no error").is_none(), "two hold it");
    drop(owned);
}

pub(super) async fn an_owner_of_two_clients_is_a_stranger_to_itself(arena: Arc<Arena>) {
    let (a, b, me) = (arena.client().await, arena.client().await, Owner::new());
    let held = a.mutex(arena.name()).owned_by(&me).lock().await.expect("nobody holds it");
    let tried = b.mutex(arena.name()).owned_by(&me).try_lock().await.expect("busy is no error");
    assert!(tried.is_none(), "a hold of one client was mistaken for one of the other");
    drop(held);
}

pub(super) async fn an_owner_holds_each_name_for_itself(arena: Arc<Arena>) {
    let (a, b, me) = (arena.client().await, arena.client().await, Owner::new());
    let (one, other) = (arena.name().to_owned(), arena.name_with("-other"));
    let first = a.mutex(&one).owned_by(&me).lock().await.expect("nobody holds it");
    let second = a.mutex(&other).owned_by(&me).lock().await.expect("nobody holds it");
    assert_eq!((first.hold_count(), second.hold_count()), (1, 1));
    first.release().await.expect("held until now");
    assert!(b.mutex(&other).try_lock().await.expect("busy is no error").is_none(), "released with the other");
    drop(second);
}

pub(super) async fn entering_again_asks_the_store_for_nothing(arena: Arc<Arena>) {
    let ((a, line), me) = (arena.client_with_switch().await, Owner::new());
    let lock = a.mutex(arena.name()).owned_by(&me);
    let outer = lock.lock().await.expect("nobody holds it");
    line.cut();
    let inner = lock.lock().await.expect("the store need not be asked");
    inner.release().await.expect("nor for this");
    line.connect();
    outer.release().await.expect("held until now");
}

pub(super) async fn entering_again_with_a_shorter_ttl_shortens_nothing(arena: Arc<Arena>) {
    let ((a, line), me) = (arena.client_with_switch().await, Owner::new());
    let lock = a.mutex(arena.name()).owned_by(&me);
    let outer = lock.lock().await.expect("nobody holds it");
    line.cut();
    let short = (arena.ttl() / 10).max(*a.info().ttl.start());
    let inner = lock.lock().ttl(short).await.expect("it is ours");
    let end = Instant::now() + short;
    drop(inner);
    sleep_until(end).await;
    assert!(!outer.is_lost(), "the first ttl counts");
    line.connect();
}

pub(super) async fn two_tasks_of_an_owner_wait_as_one(arena: Arc<Arena>) {
    let (a, b, me) = (arena.client().await, arena.client().await, Owner::new());
    let held = arena.take_soon("nobody holds it", &b).await;
    let lock = a.mutex(arena.name()).owned_by(&me);
    let (first, second) = (arena.go(lock.lock()), arena.go(lock.lock()));
    arena.until_contenders(&b, 2).await;
    let tried = lock.try_lock().await.expect("busy is no error");
    assert!(tried.is_none(), "another holds it");
    held.release().await.expect("held until now");
    let first = arena.soon("it is free", first).await.expect("no panic").expect("it is free");
    let second = arena.soon("it waits for itself", second).await.expect("no panic").expect("it is ours");
    assert_eq!((first.hold_count(), first.token()), (2, second.token()), "one owner, one hold");
}

pub(super) async fn an_owner_whose_first_task_gives_up_still_gets_in(arena: Arc<Arena>) {
    let (a, b, me) = (arena.client().await, arena.client().await, Owner::new());
    let held = arena.take_soon("nobody holds it", &b).await;
    let lock = a.mutex(arena.name()).owned_by(&me);
    let (first, second) = (arena.go(lock.lock()), arena.go(lock.lock()));
    arena.until_contenders(&b, 2).await;
    first.abort();
    held.release().await.expect("held until now");
    if let Ok(guard) = first.await {
        drop(guard);
    }
    drop(
        arena
            .soon("it waits for the task that is gone", second)
            .await
            .expect("no panic")
            .expect("it is free"),
    );
}

pub(super) async fn after_a_loss_an_owner_takes_the_lock_anew(arena: Arc<Arena>) {
    let ((a, line), me) = (arena.client_with_switch().await, Owner::new());
    let lock = a.mutex(arena.name()).owned_by(&me);
    let stale = lock.lock().ttl(arena.short_ttl()).await.expect("nobody holds it");
    line.cut();
    let reason = arena.within(arena.short_ttl(), "it was never told", stale.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    line.connect();
    let anew = arena.within(arena.short_ttl(), "it waits for itself", lock.lock()).await.expect("it is free");
    assert_eq!(anew.hold_count(), 1, "what is lost is not entered");
    assert!(stale.is_lost() && !anew.is_lost(), "a new hold does not heal the old one");
    drop(stale);
    assert!(
        lock.lock().await.expect("it is ours").hold_count() == 2,
        "the stale guard took the new hold along"
    );
}

pub(super) async fn an_owner_that_writes_may_read(arena: Arc<Arena>) {
    let (a, b, me) = (arena.client().await, arena.client().await, Owner::new());
    let pair = a.rwlock(arena.name()).owned_by(&me);
    let writer = pair.write().lock().await.expect("nobody holds it");
    let reader = arena.soon("it waits for itself", pair.read().lock()).await.expect("it is ours");
    assert_eq!(reader.token(), writer.token());
    reader.release().await.expect("held until now");
    let other = arena.try_take(&b, Kind::Read).await;
    assert!(other.is_none(), "the write hold ended with a read guard");
    drop(writer);
}

pub(super) async fn an_owner_that_reads_is_told_that_it_cannot_write(arena: Arc<Arena>) {
    let (a, me) = (arena.client().await, Owner::new());
    let pair = a.rwlock(arena.name()).owned_by(&me);
    let reader = pair.read().lock().await.expect("nobody holds it");
    for told in [pair.write().lock().await.map(Some), pair.write().try_lock().await] {
        assert!(
            matches!(told, Err(Error::Deadlock { kind: Kind::Write, .. })),
            "an owner that reads would wait for itself, and is told {told:?}"
        );
    }
    assert!(!reader.is_lost());
    reader.release().await.expect("held until now");
    drop(arena.soon("it no longer reads", pair.write().lock()).await.expect("it no longer reads"));
}

pub(super) async fn an_owner_goes_on_reading_when_it_no_longer_writes(arena: Arc<Arena>) {
    let (a, b, me) = (arena.client().await, arena.client().await, Owner::new());
    let pair = a.rwlock(arena.name()).owned_by(&me);
    let writer = pair.write().lock().await.expect("nobody holds it");
    let reader = pair.read().lock().await.expect("it is ours");
    writer.release().await.expect("held until now");
    assert!(arena.try_take(&b, Kind::Write).await.is_none(), "it still reads");
    assert!(!reader.is_lost());
    reader.release().await.expect("held until now");
    drop(arena.soon("nobody holds it", arena.take(&b, Kind::Write)).await);
}

/// The lock of the case's kind and name, of one owner.
fn owned(arena: &Arena, client: &Locks, me: &Owner) -> Arc<dyn DistributedLock> {
    let name = arena.name();
    match arena.kind() {
        Kind::Mutex => Arc::new(client.mutex(name).owned_by(me)),
        Kind::Fair => Arc::new(client.fair(name).owned_by(me)),
        Kind::Read => Arc::new(client.rwlock(name).owned_by(me).read()),
        Kind::Write => Arc::new(client.rwlock(name).owned_by(me).write()),
        kind => panic!("the suite has no rows for {kind}"),
    }
}

pub(super) async fn when_an_owner_holds_only_to_read_others_may_read(arena: Arc<Arena>) {
    let (a, b, me) = (arena.client().await, arena.client().await, Owner::new());
    let held = owned(&arena, &a, &me).lock(&arena.options()).await.expect("nobody holds it");
    let reader = a.rwlock(arena.name()).owned_by(&me).read().lock().await.expect("it is ours");
    let (lock, options) = (b.of(Kind::Read, arena.name()), arena.options());
    let mut other = lock.lock(&options);
    arena.still_waits("a reader beside an exclusive hold", &mut other).await;
    drop(held);
    let other = arena.soon("readers share", other).await.expect("readers share");
    assert!(!reader.is_lost(), "the hold was given away, not turned into a read hold");
    drop(other);
}

pub(super) async fn of_an_owners_two_guards_a_downgraded_one_lets_no_reader_in(arena: Arc<Arena>) {
    leaves_the_other_exclusive(&arena, async |one| Some(one.downgrade().await.expect("the store can"))).await;
}

pub(super) async fn of_an_owners_two_guards_a_dropped_one_lets_no_reader_in(arena: Arc<Arena>) {
    leaves_the_other_exclusive(&arena, async |one| {
        drop(one);
        None
    })
    .await;
}

/// An owner has two exclusive guards. After a `change` to one of them the lock is still exclusive; after the same change to
/// the other it is not.
async fn leaves_the_other_exclusive(arena: &Arena, change: impl AsyncFn(Guard) -> Option<Guard>) {
    for first in [0, 1] {
        let (a, b, me) = (arena.client().await, arena.client().await, Owner::new());
        let lock = owned(arena, &a, &me);
        let one = arena.soon("nobody holds it", lock.lock(&arena.options())).await.expect("nobody holds it");
        let token = one.token();
        let other = lock.lock(&arena.options()).await.expect("it is ours");
        let reader = a.rwlock(arena.name()).owned_by(&me).read().lock().await.expect("it is ours");
        let mut exclusive = vec![one, other];
        let changed = change(exclusive.remove(first)).await;
        let last = exclusive.remove(0);
        let (lock, options) = (b.of(Kind::Read, arena.name()), arena.options());
        let mut stranger = lock.lock(&options);
        arena.still_waits("a stranger reads beside the owner's other exclusive guard", &mut stranger).await;
        assert!(!last.is_lost() && !reader.is_lost(), "one guard's end was another's");
        let also = change(last).await;
        let stranger = arena.soon("no exclusive guard is left, the reader waits on", stranger).await;
        let stranger = stranger.expect("readers share");
        for guard in [Some(reader), changed, also].into_iter().flatten() {
            assert!(!guard.is_lost() && guard.token() == token, "not the same hold any more: {guard:?}");
            guard.release().await.expect("held until now");
        }
        stranger.release().await.expect("held until now");
    }
}
