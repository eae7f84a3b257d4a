//! An owner that holds a lock may re-enter it, and no other owner may.

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
            without_an_owner_a_lock_is_not_re_entered,
            an_owner_does_not_re_enter_through_another_client,
            an_owner_has_a_separate_hold_for_each_name,
            re_entry_sends_no_request_to_the_store,
            re_entry_with_a_shorter_ttl_shortens_nothing,
            two_tasks_of_an_owner_share_one_hold,
            an_owner_whose_first_task_gives_up_is_still_granted,
            after_a_loss_an_owner_takes_the_lock_anew,
        }
        "owner" (Kind::Write) [Need::Kind(Kind::Read)] {
            an_owner_that_writes_may_read,
            an_owner_that_reads_is_refused_a_write_hold,
            an_owner_continues_to_read_when_it_no_longer_writes,
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
    let (a, owner) = (arena.client().await, Owner::new());
    let outer = a.mutex(arena.name()).owned_by(&owner).lock().await.expect("the lock is free");
    let again = a.clone().mutex(arena.name()).owned_by(&owner.clone()).lock();
    let inner =
        arena.soon("the owner waits for its own lock", again).await.expect("the owner holds the lock");
    assert_eq!((outer.hold_count(), inner.hold_count()), (2, 2));
    let tried = a.mutex(arena.name()).owned_by(&owner).try_lock().await.expect("a busy lock is not an error");
    assert_eq!(tried.expect("the owner holds the lock").hold_count(), 3);
}

pub(super) async fn the_lock_is_held_until_its_owner_has_released_every_guard(arena: Arc<Arena>) {
    let (a, b, owner) = (arena.client().await, arena.client().await, Owner::new());
    let lock = a.mutex(arena.name()).owned_by(&owner);
    let outer = lock.lock().await.expect("the lock is free");
    let inner = lock.lock().await.expect("the owner holds the lock");
    outer.release().await.expect("the lock is still held");
    assert_eq!(inner.hold_count(), 1);
    assert!(arena.is_busy(&b).await, "the lock was released with the first of two guards");
    inner.release().await.expect("the lock is still held");
    drop(arena.take_soon("the lock is still held after the release of both guards", &b).await);
}

pub(super) async fn another_owner_waits(arena: Arc<Arena>) {
    let a = arena.client().await;
    let held = a.mutex(arena.name()).owned_by(&Owner::new()).lock().await.expect("the lock is free");
    let mut other = a.mutex(arena.name()).owned_by(&Owner::new()).lock();
    arena.still_waits("two owners hold the lock", &mut other).await;
    held.release().await.expect("the lock is still held");
    drop(arena.soon("a free lock was not granted", other).await.expect("the lock is free"));
}

pub(super) async fn without_an_owner_a_lock_is_not_re_entered(arena: Arc<Arena>) {
    let (a, owner) = (arena.client().await, Owner::new());
    let lock = a.mutex(arena.name());
    let held = lock.lock().await.expect("the lock is free");
    assert!(
        lock.try_lock().await.expect("a busy lock is not an error").is_none(),
        "two claims hold the lock"
    );
    assert!(
        lock.clone().owned_by(&owner).try_lock().await.expect("a busy lock is not an error").is_none(),
        "two claims hold the lock"
    );
    held.release().await.expect("the lock is still held");
    let owned = arena
        .soon("a free lock was not granted", lock.clone().owned_by(&owner).lock())
        .await
        .expect("the lock is free");
    assert!(
        lock.try_lock().await.expect("a busy lock is not an error").is_none(),
        "two claims hold the lock"
    );
    drop(owned);
}

pub(super) async fn an_owner_does_not_re_enter_through_another_client(arena: Arc<Arena>) {
    let (a, b, owner) = (arena.client().await, arena.client().await, Owner::new());
    let held = a.mutex(arena.name()).owned_by(&owner).lock().await.expect("the lock is free");
    let tried = b.mutex(arena.name()).owned_by(&owner).try_lock().await.expect("a busy lock is not an error");
    assert!(tried.is_none(), "the hold of one client was re-entered through the other");
    drop(held);
}

pub(super) async fn an_owner_has_a_separate_hold_for_each_name(arena: Arc<Arena>) {
    let (a, b, owner) = (arena.client().await, arena.client().await, Owner::new());
    let (one, other) = (arena.name().to_owned(), arena.name_with("-other"));
    let first = a.mutex(&one).owned_by(&owner).lock().await.expect("the lock is free");
    let second = a.mutex(&other).owned_by(&owner).lock().await.expect("the lock is free");
    assert_eq!((first.hold_count(), second.hold_count()), (1, 1));
    first.release().await.expect("the lock is still held");
    assert!(
        b.mutex(&other).try_lock().await.expect("a busy lock is not an error").is_none(),
        "the lock was released with the other lock"
    );
    drop(second);
}

pub(super) async fn re_entry_sends_no_request_to_the_store(arena: Arc<Arena>) {
    let ((a, switch), owner) = (arena.client_with_switch().await, Owner::new());
    let lock = a.mutex(arena.name()).owned_by(&owner);
    let outer = lock.lock().await.expect("the lock is free");
    switch.cut();
    let inner = lock.lock().await.expect("re-entry sends no request");
    inner.release().await.expect("releasing an inner guard sends no request");
    switch.connect();
    outer.release().await.expect("the lock is still held");
}

pub(super) async fn re_entry_with_a_shorter_ttl_shortens_nothing(arena: Arc<Arena>) {
    let ((a, switch), owner) = (arena.client_with_switch().await, Owner::new());
    let lock = a.mutex(arena.name()).owned_by(&owner);
    let outer = lock.lock().await.expect("the lock is free");
    switch.cut();
    let short = (arena.ttl() / 10).max(*a.info().ttl.start());
    let inner = lock.lock().ttl(short).await.expect("the owner holds the lock");
    let end = Instant::now() + short;
    drop(inner);
    sleep_until(end).await;
    assert!(!outer.is_lost(), "a shorter ttl of a re-entry shortened the hold");
    switch.connect();
}

pub(super) async fn two_tasks_of_an_owner_share_one_hold(arena: Arc<Arena>) {
    let (a, b, owner) = (arena.client().await, arena.client().await, Owner::new());
    let held = arena.take_soon("a free lock was not granted", &b).await;
    let lock = a.mutex(arena.name()).owned_by(&owner);
    let (first, second) = (arena.go(lock.lock()), arena.go(lock.lock()));
    arena.until_contenders(&b, 2).await;
    let tried = lock.try_lock().await.expect("a busy lock is not an error");
    assert!(tried.is_none(), "another client holds the lock");
    held.release().await.expect("the lock is still held");
    let first = arena
        .soon("a free lock was not granted", first)
        .await
        .expect("the task does not panic")
        .expect("the lock is free");
    let second = arena
        .soon("the owner waits for its own lock", second)
        .await
        .expect("the task does not panic")
        .expect("the owner holds the lock");
    assert_eq!((first.hold_count(), first.token()), (2, second.token()), "one owner must have one hold");
}

pub(super) async fn an_owner_whose_first_task_gives_up_is_still_granted(arena: Arc<Arena>) {
    let (a, b, owner) = (arena.client().await, arena.client().await, Owner::new());
    let held = arena.take_soon("a free lock was not granted", &b).await;
    let lock = a.mutex(arena.name()).owned_by(&owner);
    let (first, second) = (arena.go(lock.lock()), arena.go(lock.lock()));
    arena.until_contenders(&b, 2).await;
    first.abort();
    held.release().await.expect("the lock is still held");
    if let Ok(guard) = first.await {
        drop(guard);
    }
    drop(
        arena
            .soon("the second task waits for the aborted one", second)
            .await
            .expect("the task does not panic")
            .expect("the lock is free"),
    );
}

pub(super) async fn after_a_loss_an_owner_takes_the_lock_anew(arena: Arc<Arena>) {
    let ((a, switch), owner) = (arena.client_with_switch().await, Owner::new());
    let lock = a.mutex(arena.name()).owned_by(&owner);
    let stale = lock.lock().ttl(arena.short_ttl()).await.expect("the lock is free");
    switch.cut();
    let reason = arena.within(arena.short_ttl(), "the loss is never reported", stale.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    switch.connect();
    let next = arena
        .within(arena.short_ttl(), "the owner waits for its own lock", lock.lock())
        .await
        .expect("the lock is free");
    assert_eq!(next.hold_count(), 1, "a lost hold was re-entered");
    assert!(stale.is_lost() && !next.is_lost(), "a new hold revived the lost one");
    drop(stale);
    assert!(
        lock.lock().await.expect("the owner holds the lock").hold_count() == 2,
        "dropping the stale guard released the new hold"
    );
}

pub(super) async fn an_owner_that_writes_may_read(arena: Arc<Arena>) {
    let (a, b, owner) = (arena.client().await, arena.client().await, Owner::new());
    let pair = a.rwlock(arena.name()).owned_by(&owner);
    let writer = pair.write().lock().await.expect("the lock is free");
    let reader = arena
        .soon("the owner waits for its own lock", pair.read().lock())
        .await
        .expect("the owner holds the lock");
    assert_eq!(reader.token(), writer.token());
    reader.release().await.expect("the lock is still held");
    let other = arena.try_take(&b, Kind::Read).await;
    assert!(other.is_none(), "the write hold ended with a read guard");
    drop(writer);
}

pub(super) async fn an_owner_that_reads_is_refused_a_write_hold(arena: Arc<Arena>) {
    let (a, owner) = (arena.client().await, Owner::new());
    let pair = a.rwlock(arena.name()).owned_by(&owner);
    let reader = pair.read().lock().await.expect("the lock is free");
    for result in [pair.write().lock().await.map(Some), pair.write().try_lock().await] {
        assert!(
            matches!(result, Err(Error::Deadlock { kind: Kind::Write, .. })),
            "an owner that reads would deadlock, but its request to write returned {result:?}"
        );
    }
    assert!(!reader.is_lost());
    reader.release().await.expect("the lock is still held");
    drop(
        arena
            .soon("the lock was not granted after the read hold ended", pair.write().lock())
            .await
            .expect("the lock is free"),
    );
}

pub(super) async fn an_owner_continues_to_read_when_it_no_longer_writes(arena: Arc<Arena>) {
    let (a, b, owner) = (arena.client().await, arena.client().await, Owner::new());
    let pair = a.rwlock(arena.name()).owned_by(&owner);
    let writer = pair.write().lock().await.expect("the lock is free");
    let reader = pair.read().lock().await.expect("the owner holds the lock");
    writer.release().await.expect("the lock is still held");
    assert!(
        arena.try_take(&b, Kind::Write).await.is_none(),
        "the write request was granted beside the owner's read guard"
    );
    assert!(!reader.is_lost());
    reader.release().await.expect("the lock is still held");
    drop(arena.soon("a free lock was not granted", arena.take(&b, Kind::Write)).await);
}

/// Returns the lock with the case's kind and name, for one owner.
fn owned(arena: &Arena, client: &Locks, owner: &Owner) -> Arc<dyn DistributedLock> {
    let name = arena.name();
    match arena.kind() {
        Kind::Mutex => Arc::new(client.mutex(name).owned_by(owner)),
        Kind::Fair => Arc::new(client.fair(name).owned_by(owner)),
        Kind::Read => Arc::new(client.rwlock(name).owned_by(owner).read()),
        Kind::Write => Arc::new(client.rwlock(name).owned_by(owner).write()),
        kind => panic!("the suite has no rows for {kind}"),
    }
}

pub(super) async fn when_an_owner_holds_only_to_read_others_may_read(arena: Arc<Arena>) {
    let (a, b, owner) = (arena.client().await, arena.client().await, Owner::new());
    let held = owned(&arena, &a, &owner).lock(&arena.options()).await.expect("the lock is free");
    let reader =
        a.rwlock(arena.name()).owned_by(&owner).read().lock().await.expect("the owner holds the lock");
    let (lock, options) = (b.of(Kind::Read, arena.name()), arena.options());
    let mut other = lock.lock(&options);
    arena.still_waits("a reader was granted beside an exclusive hold", &mut other).await;
    drop(held);
    let other =
        arena.soon("a reader was not granted beside a reader", other).await.expect("readers share the lock");
    assert!(!reader.is_lost(), "the hold was released instead of downgraded");
    drop(other);
}

pub(super) async fn of_an_owners_two_guards_a_downgraded_one_lets_no_reader_in(arena: Arc<Arena>) {
    leaves_the_other_exclusive(&arena, async |one| {
        Some(one.downgrade().await.expect("the store can downgrade this kind"))
    })
    .await;
}

pub(super) async fn of_an_owners_two_guards_a_dropped_one_lets_no_reader_in(arena: Arc<Arena>) {
    leaves_the_other_exclusive(&arena, async |one| {
        drop(one);
        None
    })
    .await;
}

/// Checks an owner with two exclusive guards. After `change` of one of them the lock is still
/// exclusive. After the same change of the other guard it is not.
async fn leaves_the_other_exclusive(arena: &Arena, change: impl AsyncFn(Guard) -> Option<Guard>) {
    for first in [0, 1] {
        let (a, b, owner) = (arena.client().await, arena.client().await, Owner::new());
        let lock = owned(arena, &a, &owner);
        let one = arena
            .soon("a free lock was not granted", lock.lock(&arena.options()))
            .await
            .expect("the lock is free");
        let token = one.token();
        let other = lock.lock(&arena.options()).await.expect("the owner holds the lock");
        let reader =
            a.rwlock(arena.name()).owned_by(&owner).read().lock().await.expect("the owner holds the lock");
        let mut exclusive = vec![one, other];
        let changed = change(exclusive.remove(first)).await;
        let last = exclusive.remove(0);
        let (lock, options) = (b.of(Kind::Read, arena.name()), arena.options());
        let mut other_reader = lock.lock(&options);
        arena
            .still_waits("a reader was granted beside the owner's other exclusive guard", &mut other_reader)
            .await;
        assert!(!last.is_lost() && !reader.is_lost(), "the end of one guard ended the other");
        let also = change(last).await;
        let other_reader =
            arena.soon("no exclusive guard is left, but the reader still waits", other_reader).await;
        let other_reader = other_reader.expect("readers share the lock");
        for guard in [Some(reader), changed, also].into_iter().flatten() {
            assert!(
                !guard.is_lost() && guard.token() == token,
                "the guard is not of the same hold: {guard:?}"
            );
            guard.release().await.expect("the lock is still held");
        }
        other_reader.release().await.expect("the lock is still held");
    }
}
