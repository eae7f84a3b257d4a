//! A semaphore under load. Its limit is kept in storms and with lost replies, and dead clients keep
//! no permit.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicU32,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use dlock_core::{DistributedLock, Kind};
use fastrand::Rng;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::semaphore::{arrive, is_full, take, take_all};
use crate::{
    Arena,
    case::{Case, cases},
    history::{Counts, History},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "semaphore_stress" (Kind::Permit) [] {
            the_limit_is_kept_in_a_storm,
            the_limit_is_kept_though_answers_are_lost_and_holders_die,
            a_holder_that_dies_gives_its_permit_back,
            a_dead_waiter_blocks_no_client_after_its_ttl_or_session,
        }
    }
}

const LIMIT: u32 = 3;

/// Counts the current holders. Only for guards with a ttl that is renewed, because a holder whose
/// guard is lost would still count.
#[derive(Default)]
struct Room {
    inside: AtomicU32,
}

impl Room {
    async fn visit(&self, stay: Duration) {
        let inside = self.inside.fetch_add(1, SeqCst) + 1;
        assert!(inside <= LIMIT, "{inside} holders are inside, but the limit is {LIMIT}");
        sleep(stay).await;
        self.inside.fetch_sub(1, SeqCst);
    }
}

pub(super) async fn the_limit_is_kept_in_a_storm(arena: Arc<Arena>) {
    let (room, rounds) = (Arc::new(Room::default()), if arena.is_disturbed() { 5 } else { 20 });
    let granted = Arc::new(AtomicU32::new(0));
    let mut contenders = Vec::new();
    for number in 0..9 {
        let client = arena.client().await;
        let (lock, options) = (client.semaphore(arena.name(), LIMIT), arena.options());
        let (room, granted, mut rng) = (Arc::clone(&room), Arc::clone(&granted), Rng::with_seed(number));
        contenders.push(arena.go(async move {
            for _ in 0..rounds {
                let (drop_after, stay) =
                    (Duration::from_micros(rng.u64(0..20_000)), Duration::from_millis(rng.u64(0..4)));
                let guard = match rng.u8(..4) {
                    0 => lock.try_lock(&options).await.expect("a busy lock is not an error"),
                    1 => match timeout(drop_after, lock.lock(&options)).await {
                        Ok(guard) => Some(guard.expect("an acquisition without a limit is granted")),
                        Err(_) => None,
                    },
                    _ => Some(lock.lock(&options).await.expect("an acquisition without a limit is granted")),
                };
                let Some(guard) = guard else { continue };
                room.visit(stay).await;
                granted.fetch_add(1, Relaxed);
                if rng.bool() {
                    guard.release().await.expect("the lock is still held");
                }
            }
        }));
    }
    for contender in join_all(contenders).await {
        contender.expect("a contender failed");
    }
    assert!(granted.load(Relaxed) >= rounds, "too few were granted: {granted:?}");
}

pub(super) async fn the_limit_is_kept_though_answers_are_lost_and_holders_die(arena: Arc<Arena>) {
    let (history, mut contenders) = (Arc::new(History::new()), Vec::new());
    // Fewer if replies are slow or lost, or if waiters are woken without end.
    let (count, rounds) = if arena.is_disturbed() { (4, 2) } else { (6, 3) };
    for number in 0..count {
        let (history, arena_of, mut rng) = (Arc::clone(&history), Arc::clone(&arena), Rng::with_seed(number));
        contenders.push(arena.go(async move {
            for _ in 0..rounds {
                // A new client in each round, because a killed client stays killed.
                let (client, switch) = arena_of.client_with_switch().await;
                let (limit, options) = (rng.u32(2..=LIMIT), arena_of.short());
                let lock = client.semaphore(arena_of.name(), limit);
                let acquisition = history.invokes_permit(arena_of.name(), limit, arena_of.short_ttl());
                if rng.u8(..3) == 0 {
                    switch.lose_answers();
                }
                let (acquiring, connect) = (lock.lock(&options), async {
                    sleep(Duration::from_millis(20)).await;
                    switch.connect();
                });
                let Ok(guard) = tokio::join!(acquiring, connect).0 else { continue };
                history.granted(acquisition, guard.token(), Instant::now() + guard.remaining());
                sleep(Duration::from_millis(rng.u64(0..20))).await;
                if rng.bool() {
                    switch.kill();
                    history.lost(acquisition, guard.lost().await);
                } else {
                    history.releases(acquisition);
                    drop(guard);
                }
            }
        }));
    }
    for contender in join_all(contenders).await {
        contender.expect("the task does not panic");
    }
    let least = usize::try_from(count).expect("small");
    assert_eq!(history.check(&Counts { grants: least, ..Counts::default() }), []);
    // With a limit of 1, a claim is granted only when the store has deleted all dead claims.
    let client = arena.client().await;
    let last = client.semaphore(arena.name(), 1);
    let limit = arena.forgotten_after(&client, arena.short_ttl()) + arena.ttl();
    let last = arena
        .within(limit, "the permits of dead holders are never freed", last.acquire().ttl(arena.ttl()))
        .await;
    drop(last.expect("an acquisition without a limit is granted"));
}

pub(super) async fn a_holder_that_dies_gives_its_permit_back(arena: Arc<Arena>) {
    let ((dying, switch), client) = (arena.client_with_switch().await, arena.client().await);
    let dead =
        dying.semaphore(arena.name(), 2).acquire().ttl(arena.short_ttl()).await.expect("a permit is free");
    let _alive = take(&arena, &client, 2, "a free permit was not granted").await;
    switch.kill();
    let limit = arena.forgotten_after(&client, arena.short_ttl());
    let next = client.semaphore(arena.name(), 2);
    let next = next.acquire().ttl(arena.ttl());
    let next = arena
        .within(limit, "a permit is lost with its holder", next)
        .await
        .expect("an acquisition without a limit is granted");
    assert!(dead.is_lost(), "other claims hold the permit, but the loss was not reported");
    assert!(is_full(&arena, &client, 2).await, "three claims hold the semaphore, but its limit is two");
    drop(next);
}

pub(super) async fn a_dead_waiter_blocks_no_client_after_its_ttl_or_session(arena: Arc<Arena>) {
    let ((dying, switch), client) = (arena.client_with_switch().await, arena.client().await);
    let mut held = take_all(&arena, &[2; 2]).await;
    let (lock, ttl) = (dying.semaphore(arena.name(), 1), arena.short_ttl());
    let waiter = arena.go(async move { lock.acquire().ttl(ttl).await });
    arena.until_contenders(&client, 3).await;
    let behind = arrive(&arena, 2, 4).await;
    switch.kill();
    waiter.abort();
    held.remove(0).release().await.expect("the lock is still held");
    let limit = arena.forgotten_after(&client, arena.short_ttl()) + arena.long_ttl(&client) / 3;
    drop(
        arena.within(limit, "a dead waiter blocks the queue", behind).await.expect("the task does not panic"),
    );
}
