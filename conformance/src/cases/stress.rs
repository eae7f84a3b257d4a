//! Many contenders at once: holders that exclude each other never meet, no update is lost, and everybody gets a turn. Over
//! the usual length: the cases of one topic.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{Error, Guard, Kind, Locks};
use fastrand::Rng;
use futures_util::future::join_all;
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
            nobody_writes_between_a_write_and_its_downgrade,
        }
    }
}

/// Notices holders of one lock that are inside at the same time although they must not be.
#[derive(Default)]
pub(super) struct Room(Mutex<Vec<Kind>>);

impl Room {
    /// Stays inside for `stay`; panics if the lock should have kept somebody out.
    pub(super) async fn visit(&self, kind: Kind, stay: Duration) {
        self.inside(|inside| {
            let met = inside.iter().find(|other| !kind.shares_with(**other)).copied();
            assert!(met.is_none(), "a holder of {kind} met a holder of {met:?}");
            inside.push(kind);
        });
        sleep(stay).await;
        self.inside(|inside| {
            let me = inside.iter().position(|other| *other == kind).expect("came in above");
            inside.swap_remove(me);
        });
    }

    fn inside<T>(&self, look: impl FnOnce(&mut Vec<Kind>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Two numbers. Without a lock, updates would be lost, and the numbers would differ.
#[derive(Default)]
struct Ledger {
    one: AtomicU64,
    other: AtomicU64,
}

impl Ledger {
    /// Adds one to both, slowly.
    async fn add(&self) -> u64 {
        let sum = self.one.load(Relaxed) + 1;
        sleep(Duration::from_millis(1)).await;
        self.one.store(sum, Relaxed);
        sleep(Duration::from_millis(1)).await;
        self.other.store(sum, Relaxed);
        sum
    }

    /// Reads the number; panics if the two differ, because a writer is not done.
    async fn read(&self) -> u64 {
        let before = (self.one.load(Relaxed), self.other.load(Relaxed));
        sleep(Duration::from_millis(1)).await;
        let after = (self.one.load(Relaxed), self.other.load(Relaxed));
        assert!(
            before == after && after.0 == after.1,
            "somebody wrote while it was read: {before:?}, {after:?}"
        );
        after.0
    }
}

/// Rounds of each contender: fewer where answers are slow or lost.
fn rounds(arena: &Arena) -> u64 {
    if arena.is_disturbed() { 6 } else { 25 }
}

/// Starts contenders, each with a number and a client of its own, and waits for all of them.
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
        contender.expect("a contender found something wrong");
    }
}

pub(super) async fn no_update_is_lost(arena: Arc<Arena>) {
    let (ledger, rounds, options) = (Arc::new(Ledger::default()), rounds(&arena), arena.options());
    all(&arena, 8, |_, client| {
        let (ledger, lock) = (Arc::clone(&ledger), arena.lock(&client));
        let options = options.clone();
        async move {
            for _ in 0..rounds {
                let _guard = lock.lock(&options).await.expect("granted in the end");
                ledger.add().await;
            }
        }
    })
    .await;
    assert_eq!(ledger.read().await, 8 * rounds, "updates were lost: two held it at once");
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
                let patience = Duration::from_micros(rng.u64(0..20_000));
                if let Ok(guard) = timeout(patience, lock.lock(&options)).await {
                    let _guard = guard.expect("granted in the end");
                    ledger.add().await;
                    updates.fetch_add(1, Relaxed);
                }
            }
        }
    })
    .await;
    assert_eq!(ledger.read().await, updates.load(Relaxed), "updates were lost: two held it at once");
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
                    guard = lock.lock(&options) => drop(guard.expect("granted in the end")),
                    () = async { for _ in 0..polls { yield_now().await } } => {}
                }
            }
        });
        join_all(waits.collect::<Vec<_>>()).await;
        let free = async { arena.lock(&client).lock(&options).await.expect("granted in the end") };
        let guard: Guard = arena.soon("a wait that was dropped stands in the way", free).await;
        guard.release().await.expect("held until now");
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
                let guard = lock.lock(&options).await.expect("nobody else wants it");
                all_hold.wait().await;
                guard.release().await.expect("held until now");
            }
        })
    });
    let holders = join_all(holders.collect::<Vec<_>>());
    for holder in arena.within(Duration::from_secs(15), "one name waits for another", holders).await {
        holder.expect("no panic");
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
                let _guard = lock.lock(&options).await.expect("granted in the end");
                let now = match kind {
                    Kind::Write => ledger.add().await,
                    _ => ledger.read().await,
                };
                assert!(now >= seen, "{seen} was there already, now {now}");
                seen = now;
            }
        }
    })
    .await;
    assert_eq!(ledger.read().await, 2 * rounds, "updates were lost: two wrote at once");
}

pub(super) async fn nobody_writes_between_a_write_and_its_downgrade(arena: Arc<Arena>) {
    let (ledger, rounds, options) = (Arc::new(Ledger::default()), rounds(&arena), arena.options());
    all(&arena, 5, |_, client| {
        let (ledger, lock) = (Arc::clone(&ledger), arena.lock(&client));
        let options = options.clone();
        async move {
            for _ in 0..rounds {
                let writer = lock.lock(&options).await.expect("granted in the end");
                let written = ledger.add().await;
                let reader = writer.downgrade().await.expect("the store can");
                assert_eq!(ledger.read().await, written, "somebody wrote between");
                reader.release().await.expect("held until now");
            }
        }
    })
    .await;
    assert_eq!(ledger.read().await, 5 * rounds, "updates were lost: two wrote at once");
}

pub(super) async fn contenders_of_all_kinds_never_meet(arena: Arc<Arena>) {
    let (room, rounds, options) = (Arc::new(Room::default()), rounds(&arena), arena.options());
    // Few, so that any two kinds are often next to each other.
    all(&arena, 3, |number, client| {
        let (room, name, mut rng) = (Arc::clone(&room), arena.name().to_owned(), Rng::with_seed(number));
        let options = options.clone();
        async move {
            for _ in 0..rounds * 2 {
                let kind = *rng.choice(client.info().kinds).expect("a store has a kind");
                let stay = Duration::from_millis(rng.u64(1..5));
                match client.of(kind, &name).lock(&options).await {
                    Ok(_guard) => room.visit(kind, stay).await,
                    Err(Error::WrongKind { .. } | Error::Unsupported { .. }) => yield_now().await,
                    Err(error) => panic!("granted or refused in the end, not {error}"),
                }
            }
        }
    })
    .await;
}
