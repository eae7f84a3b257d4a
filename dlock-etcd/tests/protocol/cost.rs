//! How many requests a lock costs.

use std::time::Duration;

use dlock_core::{DistributedLock, Kind, LockOptions, Locks, MultiLock};
use futures_util::future::{join_all, try_join_all};
use tokio::time::Instant;

use crate::common::{Bench, SOON, TTL, connect, soon, spawn, unique, wait_until};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        an_acquisition_and_a_release_are_one_transaction_each,
        a_hand_off_with_ten_waiters_is_two_transactions,
        a_try_is_one_transaction_and_a_refused_one_changes_nothing,
        a_multilock_of_five_names_is_one_transaction,
        a_multilock_of_the_longest_names_is_one_transaction_for_64_of_them,
        thousands_of_locks_are_one_lease_and_few_signs_of_life,
    }
}

/// A key that is held for longer is watched.
const SETTLED: Duration = Duration::from_millis(20);

/// The ttl of waiters that are to ask only when they are woken: they ask again after a third of it.
const LONG: Duration = Duration::from_secs(240);

async fn an_acquisition_and_a_release_are_one_transaction_each() {
    let Some(bench) = Bench::standalone().await else { return };
    let locks = bench.locks("").await;
    for kind in [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit] {
        let name = unique();
        let lock = locks.of(kind, &name);
        let count = async || {
            let mut all = Vec::new();
            for method in ["Txn", "DeleteRange", "Range", "LeaseGrant", "Watch"] {
                all.push(bench.requests(method).await);
            }
            all
        };
        let (before, mut slow) = (count().await, 0);
        for _ in 0..10 {
            let began = Instant::now();
            let held = lock.lock(&LockOptions::new().ttl(TTL)).await.expect("the lock is free");
            held.release().await.expect("the lock is held");
            slow += u64::from(began.elapsed() >= SETTLED);
        }
        let after = count().await;
        let mut made: Vec<_> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
        let watches = made.pop();
        assert_eq!(made, [20, 0, 0, 0], "transactions, deletions, reads, leases for 10 pairs, {kind}");
        // One to watch and one to stop.
        assert!(
            watches <= Some(2 * slow),
            "{watches:?} requests to watch, and {slow} pairs were slow, {kind}"
        );
    }
}

async fn a_hand_off_with_ten_waiters_is_two_transactions() {
    let Some(bench) = Bench::standalone().await else { return };
    let (a, name) = (bench.locks("").await, unique());
    let b = Locks::new(
        connect(&format!("{}?session=300s", bench.running.url())).await.expect("the server is running"),
    );
    let held = a.mutex(&name).lock().await.expect("the lock is free");
    let mut waiting = Vec::new();
    for place in 2..=11 {
        waiting.push(spawn(b.mutex(&name).lock().ttl(LONG)));
        bench.wait_for_claims(&name, place).await;
    }
    // Each has joined, and looked once more when its watch stood.
    let mut before = 0;
    wait_until("the waiters go on asking", async || {
        let now = bench.requests("Txn").await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        std::mem::replace(&mut before, bench.requests("Txn").await) == now
    })
    .await;
    held.release().await.expect("the lock is held");
    let first = soon("no waiter was woken", waiting.remove(0))
        .await
        .expect("no panic")
        .expect("the waiter gets the lock");
    tokio::time::sleep(Duration::from_millis(200)).await;
    // The release, and the look of the one waiter that it wakes.
    assert_eq!(bench.requests("Txn").await - before, 2, "transactions for one hand-off with ten waiters");
    drop(first);
    for next in waiting {
        soon("no waiter was woken", next)
            .await
            .expect("no panic")
            .expect("the waiter gets the lock")
            .release()
            .await
            .expect("the lock is held");
    }
}

async fn a_try_is_one_transaction_and_a_refused_one_changes_nothing() {
    let Some(bench) = Bench::standalone().await else { return };
    let (a, b) = (bench.locks("").await, bench.locks("").await);
    for kind in [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit] {
        let (name, options) = (unique(), LockOptions::new().ttl(TTL));
        let asked = bench.requests("Txn").await;
        let held = a.of(kind, &name).try_lock(&options).await.expect("a reply").expect("the lock is free");
        assert_eq!(bench.requests("Txn").await - asked, 1, "a try of a free lock, {kind}");
        held.release().await.expect("the lock is held");
        let held = a.mutex(&name).lock().await.expect("the lock is free");
        let (asked, revision) = (bench.requests("Txn").await, bench.revision().await);
        for _ in 0..5 {
            let told = b.of(kind, &name).try_lock(&options).await.expect("a reply");
            assert!(told.is_none(), "two clients hold the lock");
        }
        assert_eq!(bench.requests("Txn").await - asked, 5, "{kind}");
        assert_eq!(bench.revision().await, revision, "a refused try has changed something: {kind}");
        held.release().await.expect("the lock is held");
    }
}

fn several(locks: &Locks, kind: Kind, names: &[String]) -> MultiLock {
    MultiLock::new(names.iter().map(|name| locks.of(kind, name))).expect("at least one")
}

async fn a_multilock_of_five_names_is_one_transaction() {
    let Some(bench) = Bench::standalone().await else { return };
    let (a, b) = (bench.locks("").await, bench.locks("").await);
    for kind in [Kind::Mutex, Kind::Fair, Kind::Write] {
        let (names, options) = ([(); 5].map(|()| unique()), LockOptions::new());
        let all = several(&a, kind, &names);
        let asked = bench.requests("Txn").await;
        let held = all.lock(&options).await.expect("the lock is free");
        assert_eq!(bench.requests("Txn").await - asked, 1, "transactions to acquire, {kind}");
        let mut claims = Vec::new();
        for name in &names {
            claims.extend(bench.queue(name).await);
        }
        let made: Vec<_> = claims.iter().map(|claim| claim.create_revision()).collect();
        assert_eq!(made, [made[0]; 5], "the keys were not made in one step, {kind}");
        let tokens: Vec<_> = held.tokens().iter().map(|(_, token)| token.get() as i64).collect();
        assert_eq!(tokens, made, "{kind}");
        let asked = bench.requests("Txn").await;
        held.release().await.expect("the lock is held");
        assert_eq!(bench.requests("Txn").await - asked, 5, "transactions to release, {kind}");
        let held = b.of(kind, &names[3]).lock(&options).await.expect("the lock is free");
        let (asked, revision) = (bench.requests("Txn").await, bench.revision().await);
        for _ in 0..5 {
            let tried = all.try_lock(&options).await.expect("a reply");
            assert!(tried.is_none(), "two hold one of them, {kind}");
        }
        assert_eq!(bench.requests("Txn").await - asked, 5, "transactions of five refused tries, {kind}");
        assert_eq!(bench.revision().await, revision, "a refused try has changed something: {kind}");
        held.release().await.expect("the lock is held");
    }
}

async fn a_multilock_of_the_longest_names_is_one_transaction_for_64_of_them() {
    let Some(bench) = Bench::standalone().await else { return };
    let locks = bench.locks("").await;
    // A slash is three bytes of a key.
    let long = |_| format!("{:/<1024}", unique());
    let names: Vec<_> = (0..130).map(long).collect();
    for (count, requests) in [(64, 1), (130, 3)] {
        let asked = bench.requests("Txn").await;
        let all = several(&locks, Kind::Mutex, &names[..count]);
        let held = all.lock(&LockOptions::new()).await.expect("the lock is free");
        assert_eq!(bench.requests("Txn").await - asked, requests, "transactions for {count} names");
        held.release().await.expect("the lock is held");
    }
    assert_eq!(locks.list("").await.expect("a reply"), []);
}

async fn thousands_of_locks_are_one_lease_and_few_signs_of_life() {
    const LOCKS: usize = 2000;
    let Some(bench) = Bench::standalone().await else { return };
    let (locks, name) = (bench.locks("").await, unique());
    let grants = bench.requests("LeaseGrant").await;
    let mut held = Vec::new();
    for some in 0..LOCKS / 100 {
        let taken = (0..100).map(|one| locks.mutex(format!("{name}-{some}-{one}")).lock().into_future());
        held.extend(try_join_all(taken).await.expect("the lock is free"));
    }
    assert_eq!(bench.requests("LeaseGrant").await, grants, "a lock made a lease");
    // Each key is watched and has been renewed once, which may ask whether it is there.
    let (beats, others) =
        (bench.requests("LeaseKeepAlive").await, bench.requests("Range").await + bench.requests("Txn").await);
    let began = Instant::now();
    tokio::time::sleep(TTL * 2 / 3).await;
    let (beats, others) = (
        bench.requests("LeaseKeepAlive").await - beats,
        bench.requests("Range").await + bench.requests("Txn").await - others,
    );
    let most = began.elapsed().as_secs() / 4 + 2;
    assert!(beats <= most, "{beats} signs of life of {LOCKS} locks in {:?}", began.elapsed());
    assert!(others <= 5, "{others} other requests to keep {LOCKS} locks");
    assert!(held.iter().all(|one| !one.is_lost()), "one was lost");
    join_all(held.into_iter().map(|one| one.release()))
        .await
        .into_iter()
        .for_each(|told| told.expect("the lock is held"));
    let left = tokio::time::timeout(SOON, locks.list(&name)).await.expect("a reply").expect("a reply");
    assert_eq!(left, []);
}
