//! An exclusive hold becomes a read hold in place: from every kind that the store can downgrade.

use std::sync::Arc;

use dlock_core::{Guard, Kind, LockOptions, Locks, LostReason};
use futures_util::future::join_all;
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    Arena, Clock,
    case::{Case, Need, cases},
    wrap::Habit,
};

/// Every kind that a store may downgrade, and the topic of its cases.
pub(super) const TOPICS: [(&str, Kind); 3] =
    [("downgrade_mutex", Kind::Mutex), ("downgrade_fair", Kind::Fair), ("downgrade_write", Kind::Write)];

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    // Waiters for a mutex have no order.
    let in_order = cases! {
        "downgrade_fair" (Kind::Fair) [Need::Kind(Kind::Read), Need::Downgrade] { a_downgrade_passes_nobody_who_waits }
        "downgrade_write" (Kind::Write) [Need::Kind(Kind::Read), Need::Downgrade] { a_downgrade_passes_nobody_who_waits }
    };
    TOPICS.into_iter().flat_map(|(topic, kind)| of(topic, kind)).chain(in_order).collect()
}

fn of(topic: &'static str, kind: Kind) -> Vec<Case> {
    cases! {
        topic (kind) [Need::Kind(Kind::Read), Need::Downgrade] {
            a_downgrade_lets_readers_in_and_keeps_others_out,
            a_downgrade_wakes_all_readers_behind,
            the_release_of_a_downgraded_hold_wakes_who_waits,
            a_downgraded_hold_outlasts_the_ttl,
        }
        topic (kind) [Need::Kind(Kind::Read), Need::Downgrade, Need::Tokens] { a_downgrade_keeps_the_token }
        topic (kind) [Need::Kind(Kind::Read), Need::Downgrade, Need::Inspect] {
            a_downgraded_holder_is_told_of_a_theft_as_soon_as_any_other,
        }
    }
}

/// So long a ttl that neither its end nor a waiter's heartbeat can be the cause of what happens soon.
fn long(arena: &Arena, client: &Locks) -> LockOptions {
    arena.options().ttl(arena.long_ttl(client))
}

/// A guard of a client of its own, of the kind that is downgraded.
async fn take(arena: &Arena) -> Guard {
    let client = arena.client().await;
    let (lock, options) = (arena.lock(&client), long(arena, &client));
    arena.soon("nobody holds it", lock.lock(&options)).await.expect("nobody holds it")
}

/// A contender with a client of its own, as a task. The store has it, as the last of `contenders`, when this returns.
async fn arrive(arena: &Arena, kind: Kind, contenders: usize) -> JoinHandle<Guard> {
    let client = arena.client().await;
    let (lock, options) = (client.of(kind, arena.name()), long(arena, &client));
    let task = arena.go(async move { lock.lock(&options).await.expect("granted in the end") });
    arena.until_contenders(&client, contenders).await;
    task
}

async fn granted(arena: &Arena, what: &str, contender: JoinHandle<Guard>) -> Guard {
    arena.soon(what, contender).await.expect("no panic")
}

/// The read hold that an exclusive one becomes.
async fn downgrade(arena: &Arena, guard: Guard) -> Guard {
    let downgraded = arena.soon("the downgrade does not end", guard.downgrade()).await;
    downgraded
        .unwrap_or_else(|error| panic!("`Info` says that a {} can be downgraded: {error}", arena.kind()))
}

async fn try_take(arena: &Arena, kind: Kind) -> Option<Guard> {
    arena.try_take(&arena.client().await, kind).await
}

async fn release(guard: Guard) {
    guard.release().await.expect("held until now");
}

pub(super) async fn a_downgrade_lets_readers_in_and_keeps_others_out(arena: Arc<Arena>) {
    let held = take(&arena).await;
    let mut waiting = arrive(&arena, Kind::Read, 2).await;
    arena.still_waits("a reader came in beside an exclusive hold", &mut waiting).await;
    let reader = downgrade(&arena, held).await;
    let waiting = granted(&arena, "a reader that waited does not come in", waiting).await;
    let later = try_take(&arena, Kind::Read).await.expect("a reader that came later does not come in");
    assert!(try_take(&arena, arena.kind()).await.is_none(), "an exclusive hold came in beside readers");
    release(waiting).await;
    release(later).await;
    assert!(try_take(&arena, arena.kind()).await.is_none(), "one came in beside the downgraded hold");
    release(reader).await;
    assert!(try_take(&arena, arena.kind()).await.is_some(), "everybody is gone, the lock is still held");
}

pub(super) async fn a_downgrade_wakes_all_readers_behind(arena: Arc<Arena>) {
    let held = take(&arena).await;
    let mut readers = Vec::new();
    for contenders in 2..5 {
        readers.push(arrive(&arena, Kind::Read, contenders).await);
    }
    let _reader = downgrade(&arena, held).await;
    for reader in arena.soon("a downgrade wakes not all readers", join_all(readers)).await {
        assert!(!reader.expect("no panic").is_lost());
    }
}

pub(super) async fn a_downgrade_keeps_the_token(arena: Arc<Arena>) {
    let held = take(&arena).await;
    let token = held.token();
    let reader = downgrade(&arena, held).await;
    assert_eq!(reader.token(), token, "the hold is the same, the token is not");
    assert!(!reader.is_lost(), "a downgrade is no loss");
}

pub(super) async fn a_downgrade_passes_nobody_who_waits(arena: Arc<Arena>) {
    let held = take(&arena).await;
    let mut next = arrive(&arena, arena.kind(), 2).await;
    let mut late = arrive(&arena, Kind::Read, 3).await;
    let reader = downgrade(&arena, held).await;
    arena.still_waits("one came in beside the downgraded hold", &mut next).await;
    arena.still_waits("a reader overtook who waited before it", &mut late).await;
    release(reader).await;
    let next = granted(&arena, "the downgraded hold is released, who is next waits on", next).await;
    release(next).await;
    let _late = granted(&arena, "nobody is ahead any more, the reader waits on", late).await;
}

pub(super) async fn the_release_of_a_downgraded_hold_wakes_who_waits(arena: Arc<Arena>) {
    let held = take(&arena).await;
    let reader = downgrade(&arena, held).await;
    let mut next = arrive(&arena, arena.kind(), 2).await;
    arena.still_waits("one came in beside the downgraded hold", &mut next).await;
    release(reader).await;
    let _next = granted(&arena, "nobody wakes who waited for the downgraded hold", next).await;
}

pub(super) async fn a_downgraded_hold_outlasts_the_ttl(arena: Arc<Arena>) {
    let ttl = arena.kept_ttl();
    let (client, options) = (arena.client().await, arena.options().ttl(ttl));
    let held = arena.lock(&client).lock(&options).await.expect("free");
    let reader = downgrade(&arena, held).await;
    sleep(ttl * 2).await;
    assert!(!reader.is_lost(), "lost although it was renewed");
    assert!(try_take(&arena, arena.kind()).await.is_none(), "one came in beside the downgraded hold");
    release(reader).await;
}

/// For stores that tell a holder at once that its claim was deleted: they must still do so after a downgrade.
pub(super) async fn a_downgraded_holder_is_told_of_a_theft_as_soon_as_any_other(arena: Arc<Arena>) {
    if matches!(arena.habit(), Some(Habit::Deaf)) {
        // Hints never arrive here.
        return;
    }
    let others = robbed(&arena, async |held| held).await;
    let downgraded = robbed(&arena, async |held| downgrade(&arena, held).await).await;
    assert!(
        downgraded == others || !others,
        "an exclusive holder was told of the theft at once, and a downgraded one was not: it is deaf"
    );
}

/// Whether a holder is told of a theft long before it would renew.
async fn robbed(arena: &Arena, change: impl AsyncFnOnce(Guard) -> Guard) -> bool {
    // A paused clock must see a wake-up before it skips to the next renewal.
    let patience = arena.ttl() / if arena.clock() == Clock::Paused { 100 } else { 2 };
    let client = arena.client().await;
    let held = change(take(arena).await).await;
    client.force_release(arena.name()).await.expect("the store can be asked");
    let told = tokio::time::timeout(patience, held.lost()).await;
    assert!(told.is_err() || told == Ok(LostReason::Taken), "a theft is told as {told:?}");
    told.is_ok()
}
