//! Tests of the number of requests that a lock costs.

use std::time::Duration;

use dlock_conformance::Proxy;
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
        thousands_of_locks_are_one_lease_and_few_keep_alives,
        after_a_break_the_holds_of_a_client_are_read_in_few_requests,
    }
}

/// Time after which the client watches a held key.
const SETTLED: Duration = Duration::from_millis(20);

/// Ttl of waiters that make no attempt without a wake-up during a test. A waiter makes one after a
/// third of its ttl.
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
        let mut requests: Vec<_> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
        let watches = requests.pop();
        assert_eq!(requests, [20, 0, 0, 0], "transactions, deletions, reads, leases of 10 pairs, {kind}");
        // One request starts a watch, and one stops it.
        assert!(watches <= Some(2 * slow), "{watches:?} watch requests, and {slow} pairs were slow, {kind}");
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
    // Each waiter has joined, and reads the queue once more when its watch has started.
    let mut before = 0;
    wait_until("the waiters still send transactions", async || {
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
    // One releases the lock, and one is the attempt of the waiter that the release wakes.
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
        let transactions = bench.requests("Txn").await;
        let held = a.of(kind, &name).try_lock(&options).await.expect("a reply").expect("the lock is free");
        assert_eq!(bench.requests("Txn").await - transactions, 1, "a try of a free lock, {kind}");
        held.release().await.expect("the lock is held");
        let held = a.mutex(&name).lock().await.expect("the lock is free");
        let (transactions, revision) = (bench.requests("Txn").await, bench.revision().await);
        for _ in 0..5 {
            let result = b.of(kind, &name).try_lock(&options).await.expect("a reply");
            assert!(result.is_none(), "two clients hold the lock");
        }
        assert_eq!(bench.requests("Txn").await - transactions, 5, "{kind}");
        assert_eq!(bench.revision().await, revision, "a refused try has raised the revision: {kind}");
        held.release().await.expect("the lock is held");
    }
}

/// Returns a MultiLock of several names.
fn several(locks: &Locks, kind: Kind, names: &[String]) -> MultiLock {
    MultiLock::new(names.iter().map(|name| locks.of(kind, name))).expect("at least one")
}

async fn a_multilock_of_five_names_is_one_transaction() {
    let Some(bench) = Bench::standalone().await else { return };
    let (a, b) = (bench.locks("").await, bench.locks("").await);
    for kind in [Kind::Mutex, Kind::Fair, Kind::Write] {
        let (names, options) = ([(); 5].map(|()| unique()), LockOptions::new());
        let all = several(&a, kind, &names);
        let transactions = bench.requests("Txn").await;
        let held = all.lock(&options).await.expect("the lock is free");
        assert_eq!(bench.requests("Txn").await - transactions, 1, "transactions to acquire, {kind}");
        let mut claims = Vec::new();
        for name in &names {
            claims.extend(bench.queue(name).await);
        }
        let revisions: Vec<_> = claims.iter().map(|claim| claim.create_revision()).collect();
        assert_eq!(revisions, [revisions[0]; 5], "the keys were not created in one transaction, {kind}");
        let tokens: Vec<_> = held.tokens().iter().map(|(_, token)| token.get() as i64).collect();
        assert_eq!(tokens, revisions, "{kind}");
        let transactions = bench.requests("Txn").await;
        held.release().await.expect("the lock is held");
        assert_eq!(bench.requests("Txn").await - transactions, 5, "transactions to release, {kind}");
        let held = b.of(kind, &names[3]).lock(&options).await.expect("the lock is free");
        let (transactions, revision) = (bench.requests("Txn").await, bench.revision().await);
        for _ in 0..5 {
            let tried = all.try_lock(&options).await.expect("a reply");
            assert!(tried.is_none(), "two clients hold one of the locks, {kind}");
        }
        assert_eq!(
            bench.requests("Txn").await - transactions,
            5,
            "transactions of five refused tries, {kind}"
        );
        assert_eq!(bench.revision().await, revision, "a refused try has raised the revision: {kind}");
        held.release().await.expect("the lock is held");
    }
}

async fn a_multilock_of_the_longest_names_is_one_transaction_for_64_of_them() {
    let Some(bench) = Bench::standalone().await else { return };
    let locks = bench.locks("").await;
    // A slash takes three bytes in a key.
    let long = |_| format!("{:/<1024}", unique());
    let names: Vec<_> = (0..130).map(long).collect();
    for (count, requests) in [(64, 1), (130, 3)] {
        let transactions = bench.requests("Txn").await;
        let all = several(&locks, Kind::Mutex, &names[..count]);
        let held = all.lock(&LockOptions::new()).await.expect("the lock is free");
        assert_eq!(bench.requests("Txn").await - transactions, requests, "transactions for {count} names");
        held.release().await.expect("the lock is held");
    }
    assert_eq!(locks.list("").await.expect("a reply"), []);
}

async fn thousands_of_locks_are_one_lease_and_few_keep_alives() {
    const LOCKS: usize = 2000;
    let Some(bench) = Bench::standalone().await else { return };
    let (locks, name) = (bench.locks("").await, unique());
    let grants = bench.requests("LeaseGrant").await;
    let mut held = Vec::new();
    for batch in 0..LOCKS / 100 {
        let taken =
            (0..100).map(|number| locks.mutex(format!("{name}-{batch}-{number}")).lock().into_future());
        held.extend(try_join_all(taken).await.expect("the lock is free"));
    }
    assert_eq!(bench.requests("LeaseGrant").await, grants, "a lock created a lease");
    // Each key is watched and has been renewed once. The renewal may have read the key.
    let (keep_alives, others) =
        (bench.requests("LeaseKeepAlive").await, bench.requests("Range").await + bench.requests("Txn").await);
    let began = Instant::now();
    tokio::time::sleep(TTL * 2 / 3).await;
    let (keep_alives, others) = (
        bench.requests("LeaseKeepAlive").await - keep_alives,
        bench.requests("Range").await + bench.requests("Txn").await - others,
    );
    let limit = began.elapsed().as_secs() / 4 + 2;
    assert!(keep_alives <= limit, "{keep_alives} keep-alives for {LOCKS} locks in {:?}", began.elapsed());
    assert!(others <= 5, "{others} other requests to keep {LOCKS} locks");
    assert!(held.iter().all(|guard| !guard.is_lost()), "a lock was lost");
    join_all(held.into_iter().map(|guard| guard.release()))
        .await
        .into_iter()
        .for_each(|result| result.expect("the lock is held"));
    let left = tokio::time::timeout(SOON, locks.list(&name)).await.expect("a reply").expect("a reply");
    assert_eq!(left, []);
}

async fn after_a_break_the_holds_of_a_client_are_read_in_few_requests() {
    const LOCKS: usize = 1000;
    let Some(bench) = Bench::standalone().await else { return };
    let proxy = Proxy::to(bench.running.servers()[0].address()).await.expect("a port is free");
    let (locks, name) = (bench.locks_at(&format!("etcd://{}", proxy.address()), "").await, unique());
    let taken = (0..LOCKS).map(|number| locks.mutex(format!("{name}-{number}")).lock().into_future());
    let held = try_join_all(taken).await.expect("the lock is free");
    let requests = async || bench.requests("Range").await + bench.requests("Txn").await;
    let before = requests().await;
    proxy.cut();
    // Each hold is renewed in that time.
    tokio::time::sleep(TTL * 2 / 3).await;
    let reads = requests().await - before;
    assert!(held.iter().all(|guard| !guard.is_lost()), "a lock was lost");
    assert!(reads > 0, "no hold was verified");
    assert!(reads <= LOCKS as u64 / 4, "{reads} requests to verify {LOCKS} holds");
}
