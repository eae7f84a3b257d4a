//! An exclusive hold becomes a read hold in place, for every kind that the store can downgrade.

use std::sync::Arc;

use dlock_core::{Guard, Kind, LockOptions, Locks, LostReason};
use futures_util::future::join_all;
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    Arena, Clock,
    case::{Case, Need, cases},
    wrap::Habit,
};

/// Every kind that a store may downgrade, with the topic of its cases.
pub(super) const TOPICS: [(&str, Kind); 3] =
    [("downgrade_mutex", Kind::Mutex), ("downgrade_fair", Kind::Fair), ("downgrade_write", Kind::Write)];

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    // Waiters for a mutex have no order.
    let in_order = cases! {
        "downgrade_fair" (Kind::Fair) [Need::Kind(Kind::Read), Need::Downgrade] { a_downgrade_lets_no_reader_overtake_a_waiter }
        "downgrade_write" (Kind::Write) [Need::Kind(Kind::Read), Need::Downgrade] { a_downgrade_lets_no_reader_overtake_a_waiter }
    };
    TOPICS.into_iter().flat_map(|(topic, kind)| of(topic, kind)).chain(in_order).collect()
}

fn of(topic: &'static str, kind: Kind) -> Vec<Case> {
    cases! {
        topic (kind) [Need::Kind(Kind::Read), Need::Downgrade] {
            a_downgrade_lets_readers_in_and_keeps_others_out,
            a_downgrade_wakes_all_readers_behind,
            the_release_of_a_downgraded_hold_wakes_the_next_waiter,
            a_downgraded_hold_outlasts_the_ttl,
        }
        topic (kind) [Need::Kind(Kind::Read), Need::Downgrade, Need::Tokens] { a_downgrade_keeps_the_token }
        topic (kind) [Need::Kind(Kind::Read), Need::Downgrade, Need::Inspect] {
            a_forced_release_is_reported_to_a_downgraded_holder_as_soon_as_to_any_other,
        }
    }
}

/// Returns options with a long ttl. Neither its end nor a waiter's heartbeat can be the cause of an
/// immediate effect.
fn long(arena: &Arena, client: &Locks) -> LockOptions {
    arena.options().ttl(arena.long_ttl(client))
}

/// Takes the lock with a new client, as the kind that is downgraded.
async fn take(arena: &Arena) -> Guard {
    let client = arena.client().await;
    let (lock, options) = (arena.lock(&client), long(arena, &client));
    arena.soon("a free lock was not granted", lock.lock(&options)).await.expect("the lock is free")
}

/// Starts a contender as a task with a new client. When this function returns, the store has its
/// claim as the last of `contenders` claims.
async fn arrive(arena: &Arena, kind: Kind, contenders: usize) -> JoinHandle<Guard> {
    let client = arena.client().await;
    let (lock, options) = (client.of(kind, arena.name()), long(arena, &client));
    let task = arena
        .go(async move { lock.lock(&options).await.expect("an acquisition without a limit is granted") });
    arena.until_contenders(&client, contenders).await;
    task
}

async fn granted(arena: &Arena, failure: &str, contender: JoinHandle<Guard>) -> Guard {
    arena.soon(failure, contender).await.expect("the task does not panic")
}

/// Downgrades an exclusive hold to a read hold.
async fn downgrade(arena: &Arena, guard: Guard) -> Guard {
    let downgraded = arena.soon("the downgrade does not end", guard.downgrade()).await;
    downgraded
        .unwrap_or_else(|error| panic!("`Info` declares that a {} can be downgraded: {error}", arena.kind()))
}

async fn try_take(arena: &Arena, kind: Kind) -> Option<Guard> {
    arena.try_take(&arena.client().await, kind).await
}

async fn release(guard: Guard) {
    guard.release().await.expect("the lock is still held");
}

pub(super) async fn a_downgrade_lets_readers_in_and_keeps_others_out(arena: Arc<Arena>) {
    let held = take(&arena).await;
    let mut waiting = arrive(&arena, Kind::Read, 2).await;
    arena.still_waits("a reader was granted beside an exclusive hold", &mut waiting).await;
    let reader = downgrade(&arena, held).await;
    let waiting = granted(&arena, "a waiting reader is not granted after the downgrade", waiting).await;
    let later =
        try_take(&arena, Kind::Read).await.expect("a new reader is granted beside the downgraded hold");
    assert!(try_take(&arena, arena.kind()).await.is_none(), "an exclusive claim was granted beside readers");
    release(waiting).await;
    release(later).await;
    assert!(
        try_take(&arena, arena.kind()).await.is_none(),
        "an exclusive claim was granted beside the downgraded hold"
    );
    release(reader).await;
    assert!(
        try_take(&arena, arena.kind()).await.is_some(),
        "all holders have released, but the lock is still held"
    );
}

pub(super) async fn a_downgrade_wakes_all_readers_behind(arena: Arc<Arena>) {
    let held = take(&arena).await;
    let mut readers = Vec::new();
    for contenders in 2..5 {
        readers.push(arrive(&arena, Kind::Read, contenders).await);
    }
    let _reader = downgrade(&arena, held).await;
    for reader in arena.soon("the downgrade does not wake all readers", join_all(readers)).await {
        assert!(!reader.expect("the task does not panic").is_lost());
    }
}

pub(super) async fn a_downgrade_keeps_the_token(arena: Arc<Arena>) {
    let held = take(&arena).await;
    let token = held.token();
    let reader = downgrade(&arena, held).await;
    assert_eq!(reader.token(), token, "the downgrade changed the token");
    assert!(!reader.is_lost(), "the downgrade was reported as a loss");
}

pub(super) async fn a_downgrade_lets_no_reader_overtake_a_waiter(arena: Arc<Arena>) {
    let held = take(&arena).await;
    let mut next = arrive(&arena, arena.kind(), 2).await;
    let mut late = arrive(&arena, Kind::Read, 3).await;
    let reader = downgrade(&arena, held).await;
    arena.still_waits("an exclusive claim was granted beside the downgraded hold", &mut next).await;
    arena.still_waits("a reader overtook an earlier waiter", &mut late).await;
    release(reader).await;
    let next =
        granted(&arena, "the downgraded hold was released, but the next waiter still waits", next).await;
    release(next).await;
    let _late = granted(&arena, "all claims ahead have left, but the reader still waits", late).await;
}

pub(super) async fn the_release_of_a_downgraded_hold_wakes_the_next_waiter(arena: Arc<Arena>) {
    let held = take(&arena).await;
    let reader = downgrade(&arena, held).await;
    let mut next = arrive(&arena, arena.kind(), 2).await;
    arena.still_waits("an exclusive claim was granted beside the downgraded hold", &mut next).await;
    release(reader).await;
    let _next = granted(&arena, "the release of the downgraded hold wakes no waiter", next).await;
}

pub(super) async fn a_downgraded_hold_outlasts_the_ttl(arena: Arc<Arena>) {
    let ttl = arena.kept_ttl();
    let (client, options) = (arena.client().await, arena.options().ttl(ttl));
    let held = arena.lock(&client).lock(&options).await.expect("the lock is free");
    let reader = downgrade(&arena, held).await;
    sleep(ttl * 2).await;
    assert!(!reader.is_lost(), "the lock was lost although it was renewed");
    assert!(
        try_take(&arena, arena.kind()).await.is_none(),
        "an exclusive claim was granted beside the downgraded hold"
    );
    release(reader).await;
}

/// A store that notifies a holder at once when its claim is deleted must still do so after a
/// downgrade.
pub(super) async fn a_forced_release_is_reported_to_a_downgraded_holder_as_soon_as_to_any_other(
    arena: Arc<Arena>,
) {
    if matches!(arena.habit(), Some(Habit::Deaf)) {
        // This wrapper drops all hints.
        return;
    }
    let others = is_notified_of_forced_release(&arena, async |held| held).await;
    let downgraded = is_notified_of_forced_release(&arena, async |held| downgrade(&arena, held).await).await;
    assert!(
        downgraded == others || !others,
        "an exclusive holder was notified of the forced release at once, but a downgraded holder was not: it is deaf"
    );
}

/// Returns whether a forced release is reported to the holder long before its next renewal.
async fn is_notified_of_forced_release(arena: &Arena, change: impl AsyncFnOnce(Guard) -> Guard) -> bool {
    // On a paused clock the wake-up must be polled before the clock skips to the next renewal.
    let limit = arena.ttl() / if arena.clock() == Clock::Paused { 100 } else { 2 };
    let client = arena.client().await;
    let held = change(take(arena).await).await;
    client.force_release(arena.name()).await.expect("the store is reachable");
    let result = tokio::time::timeout(limit, held.lost()).await;
    assert!(
        result.is_err() || result == Ok(LostReason::Deleted),
        "the forced release was reported as {result:?}"
    );
    result.is_ok()
}
