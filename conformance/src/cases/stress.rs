//! Many contenders at once. Holders that exclude each other never hold together, no update is lost,
//! and every contender is granted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{Error, Guard, Kind, Locks};
use fastrand::Rng;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::{
    sync::Barrier,
    task::yield_now,
    time::{sleep, timeout},
};

use crate::{
    Arena,
    case::{Case, Need, cases},
    cases::{downgrade, exclusive},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let exclusive = exclusive::TOPICS.into_iter().flat_map(|(topic, kind)| of_exclusive(topic, kind));
    let downgraded = downgrade::TOPICS.into_iter().flat_map(|(topic, kind)| of_downgraded(topic, kind));
    let others = cases! {
        "rwlock" (Kind::Read) [Need::Kind(Kind::Write)] { readers_never_see_a_write_half_done }
        "kinds" (Kind::Mutex) [] { contenders_of_all_kinds_never_meet }
    };
    exclusive.chain(downgraded).chain(others).collect()
}

fn of_exclusive(topic: &'static str, kind: Kind) -> Vec<Case> {
    cases! {
        topic (kind) [] {
            no_update_is_lost,
            no_update_is_lost_among_waits_cut_short,
            a_storm_of_dropped_waits_leaves_the_lock_free,
            many_names_are_held_at_the_same_time,
        }
    }
}

fn of_downgraded(topic: &'static str, kind: Kind) -> Vec<Case> {
    cases! {
        topic (kind) [Need::Kind(Kind::Read), Need::Downgrade] {
            no_client_writes_between_a_write_and_its_downgrade,
        }
    }
}

/// Detects holders of one lock that hold together although their kinds exclude each other.
#[derive(Default)]
pub(super) struct Room(Mutex<Vec<Kind>>);

impl Room {
    /// Stays inside for `stay`.
    ///
    /// # Panics
    /// If a holder is inside that excludes `kind`.
    pub(super) async fn visit(&self, kind: Kind, stay: Duration) {
        self.inside(|inside| {
            let met = inside.iter().find(|other| !kind.shares_with(**other)).copied();
            assert!(met.is_none(), "a holder of {kind} met a holder of {met:?}");
            inside.push(kind);
        });
        sleep(stay).await;
        self.inside(|inside| {
            let index = inside.iter().position(|other| *other == kind).expect("the kind was added above");
            inside.swap_remove(index);
        });
    }

    fn inside<T>(&self, look: impl FnOnce(&mut Vec<Kind>) -> T) -> T {
        look(&mut self.0.lock())
    }
}

/// Two equal numbers. Without a lock, updates would be lost and the numbers would differ.
#[derive(Default)]
struct Ledger {
    one: AtomicU64,
    other: AtomicU64,
}

impl Ledger {
    /// Adds one to both numbers, slowly. Returns the new number.
    async fn add(&self) -> u64 {
        let sum = self.one.load(Relaxed) + 1;
        sleep(Duration::from_millis(1)).await;
        self.one.store(sum, Relaxed);
        sleep(Duration::from_millis(1)).await;
        self.other.store(sum, Relaxed);
        sum
    }

    /// Returns the number.
    ///
    /// # Panics
    /// If the two numbers differ, because a write is not complete.
    async fn read(&self) -> u64 {
        let before = (self.one.load(Relaxed), self.other.load(Relaxed));
        sleep(Duration::from_millis(1)).await;
        let after = (self.one.load(Relaxed), self.other.load(Relaxed));
        assert!(
            before == after && after.0 == after.1,
            "a write happened during a read: {before:?}, {after:?}"
        );
        after.0
    }
}

/// Returns the number of rounds of each contender. Fewer if replies are slow or lost.
fn rounds(arena: &Arena) -> u64 {
    if arena.is_disturbed() { 6 } else { 25 }
}

/// Starts contenders, each with a number and a new client, and waits for all of them.
async fn all<F: Future<Output = ()> + Send + 'static>(
    arena: &Arena,
    count: u64,
    contender: impl Fn(u64, Locks) -> F,
) {
    let mut contenders = Vec::new();
    for number in 0..count {
        let client = arena.client().await;
        contenders.push(arena.go(contender(number, client)));
    }
    for contender in join_all(contenders).await {
        contender.expect("a contender failed");
    }
}

pub(super) async fn no_update_is_lost(arena: Arc<Arena>) {
    let (ledger, rounds, options) = (Arc::new(Ledger::default()), rounds(&arena), arena.options());
    all(&arena, 8, |_, client| {
        let (ledger, lock) = (Arc::clone(&ledger), arena.lock(&client));
        let options = options.clone();
        async move {
            for _ in 0..rounds {
                let _guard = lock.lock(&options).await.expect("an acquisition without a limit is granted");
                ledger.add().await;
            }
        }
    })
    .await;
    assert_eq!(ledger.read().await, 8 * rounds, "updates were lost, so two claims held the lock at once");
}

pub(super) async fn no_update_is_lost_among_waits_cut_short(arena: Arc<Arena>) {
    let (ledger, updates) = (Arc::new(Ledger::default()), Arc::new(AtomicU64::new(0)));
    let (rounds, options) = (rounds(&arena), arena.options());
    all(&arena, 6, |number, client| {
        let (ledger, updates, lock) = (Arc::clone(&ledger), Arc::clone(&updates), arena.lock(&client));
        let mut rng = Rng::with_seed(number);
        let options = options.clone();
        async move {
            for _ in 0..rounds {
                let drop_after = Duration::from_micros(rng.u64(0..20_000));
                if let Ok(guard) = timeout(drop_after, lock.lock(&options)).await {
                    let _guard = guard.expect("an acquisition without a limit is granted");
                    ledger.add().await;
                    updates.fetch_add(1, Relaxed);
                }
            }
        }
    })
    .await;
    assert_eq!(
        ledger.read().await,
        updates.load(Relaxed),
        "updates were lost, so two claims held the lock at once"
    );
}

pub(super) async fn a_storm_of_dropped_waits_leaves_the_lock_free(arena: Arc<Arena>) {
    let client = arena.client().await;
    let options = arena.options().ttl(arena.long_ttl(&client));
    let mut rng = Rng::with_seed(200);
    let gusts = if arena.is_disturbed() { 3 } else { 12 };
    for _ in 0..gusts {
        let waits = (0..16).map(|_| {
            let (lock, polls, options) = (arena.lock(&client), rng.u32(1..8), options.clone());
            async move {
                tokio::select! {
                    biased;
                    guard = lock.lock(&options) => drop(guard.expect("an acquisition without a limit is granted")),
                    () = async { for _ in 0..polls { yield_now().await } } => {}
                }
            }
        });
        join_all(waits.collect::<Vec<_>>()).await;
        let free = async {
            arena.lock(&client).lock(&options).await.expect("an acquisition without a limit is granted")
        };
        let guard: Guard = arena.soon("a dropped wait still blocks the queue", free).await;
        guard.release().await.expect("the lock is still held");
    }
}

pub(super) async fn many_names_are_held_at_the_same_time(arena: Arc<Arena>) {
    let (client, all_hold) = (arena.client().await, Arc::new(Barrier::new(16)));
    let options = arena.options();
    let holders = (0..16).map(|number| {
        let lock = client.of(arena.kind(), arena.name_with(&format!("/{number}")));
        let (all_hold, options) = (Arc::clone(&all_hold), options.clone());
        arena.go(async move {
            for _ in 0..3 {
                let guard = lock.lock(&options).await.expect("no other contender requests this name");
                all_hold.wait().await;
                guard.release().await.expect("the lock is still held");
            }
        })
    });
    let holders = join_all(holders.collect::<Vec<_>>());
    for holder in arena.within(Duration::from_secs(15), "one name waits for another", holders).await {
        holder.expect("the task does not panic");
    }
}

pub(super) async fn readers_never_see_a_write_half_done(arena: Arc<Arena>) {
    let (ledger, rounds, options) = (Arc::new(Ledger::default()), rounds(&arena), arena.options());
    all(&arena, 6, |number, client| {
        let kind = if number < 2 { Kind::Write } else { Kind::Read };
        let (ledger, lock) = (Arc::clone(&ledger), client.of(kind, arena.name()));
        let options = options.clone();
        async move {
            let mut seen = 0;
            for _ in 0..rounds {
                let _guard = lock.lock(&options).await.expect("an acquisition without a limit is granted");
                let now = match kind {
                    Kind::Write => ledger.add().await,
                    _ => ledger.read().await,
                };
                assert!(now >= seen, "the count fell from {seen} to {now}");
                seen = now;
            }
        }
    })
    .await;
    assert_eq!(ledger.read().await, 2 * rounds, "updates were lost, so two claims wrote at once");
}

pub(super) async fn no_client_writes_between_a_write_and_its_downgrade(arena: Arc<Arena>) {
    let (ledger, rounds, options) = (Arc::new(Ledger::default()), rounds(&arena), arena.options());
    all(&arena, 5, |_, client| {
        let (ledger, lock) = (Arc::clone(&ledger), arena.lock(&client));
        let options = options.clone();
        async move {
            for _ in 0..rounds {
                let writer = lock.lock(&options).await.expect("an acquisition without a limit is granted");
                let written = ledger.add().await;
                let reader = writer.downgrade().await.expect("the store can downgrade this kind");
                assert_eq!(
                    ledger.read().await,
                    written,
                    "a write happened between a write and its downgrade"
                );
                reader.release().await.expect("the lock is still held");
            }
        }
    })
    .await;
    assert_eq!(ledger.read().await, 5 * rounds, "updates were lost, so two claims wrote at once");
}

pub(super) async fn contenders_of_all_kinds_never_meet(arena: Arc<Arena>) {
    let (room, rounds, options) = (Arc::new(Room::default()), rounds(&arena), arena.options());
    // Few contenders, so that any two kinds are frequently next to each other.
    all(&arena, 3, |number, client| {
        let (room, name, mut rng) = (Arc::clone(&room), arena.name().to_owned(), Rng::with_seed(number));
        let options = options.clone();
        async move {
            for _ in 0..rounds * 2 {
                let kind = *rng.choice(client.info().kinds).expect("a store has at least one kind");
                let stay = Duration::from_millis(rng.u64(1..5));
                match client.of(kind, &name).lock(&options).await {
                    Ok(_guard) => room.visit(kind, stay).await,
                    Err(Error::WrongKind { .. } | Error::Unsupported { .. }) => yield_now().await,
                    Err(error) => panic!("the request must be granted or refused, not fail with {error}"),
                }
            }
        }
    })
    .await;
}
