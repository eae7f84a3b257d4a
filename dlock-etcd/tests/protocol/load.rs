//! Tests of the requests of many holders and waiters of one client. The load must not cost a holder
//! its lock.

use std::{sync::Arc, time::Duration};

use dlock_core::Locks;
use etcd_client::GetOptions;
use futures_util::future::join_all;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

use crate::common::{Bench, SOON, soon, spawn, unique};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_keep_alive_follows_a_read_of_the_majority,
        waiters_with_started_watches_send_no_requests,
        the_cost_of_a_waiter_does_not_grow_with_their_number on 2 threads,
        a_burst_of_free_locks_is_granted_and_none_is_lost,
    }
}

async fn a_keep_alive_follows_a_read_of_the_majority() {
    let Some(bench) = Bench::standalone().await else { return };
    let locks = bench.locks_with(bench.running.url(), "session=5s").await;
    let held = locks.mutex(unique()).lock().ttl(Duration::from_secs(4)).await.expect("the lock is free");
    let (reads, beats) = (bench.requests("Range").await, bench.requests("LeaseKeepAlive").await);
    sleep(Duration::from_secs(6)).await;
    let (beats, reads) =
        (bench.requests("LeaseKeepAlive").await - beats, bench.requests("Range").await - reads);
    assert!(beats >= 2, "{beats} keep-alives in more than a session");
    // A read precedes each keep-alive. The first of these reads may precede the measurement.
    assert!(reads + 1 >= beats, "{reads} reads for {beats} keep-alives");
    held.release().await.expect("the lock is held");
}

async fn waiters_with_started_watches_send_no_requests() {
    const TTL: Duration = Duration::from_secs(6);
    let Some(bench) = Bench::standalone().await else { return };
    let requests = async || {
        bench.requests("Txn").await + bench.requests("Range").await + bench.requests("LeaseKeepAlive").await
    };
    for waiters in [1, 300] {
        let (holder, name) = (bench.locks("").await, unique());
        let locks = bench.locks("").await;
        let held = holder.mutex(&name).lock().await.expect("the lock is free");
        let wait = |_| {
            let lock = locks.mutex(&name);
            spawn(async move { lock.lock().ttl(TTL).await?.release().await })
        };
        let waiting: Vec<_> = (0..waiters).map(wait).collect();
        bench.wait_for_claims(&name, waiters + 1).await;
        // Each waiter reads the queue once more when its watch has started.
        sleep(TTL / 3).await;
        let (before, began) = (requests().await, Instant::now());
        sleep(TTL * 2).await;
        let (count, elapsed) = (requests().await - before, began.elapsed());
        // Both clients send a keep-alive and its read every 4 s. The client of the waiters also
        // checks every second.
        let limit = 4 * (elapsed.as_secs() / 4 + 2) + elapsed.as_secs() + 2;
        assert!(count <= limit, "{count} requests of {waiters} waiters in {elapsed:?}, more than {limit}");
        held.release().await.expect("the lock is held");
        let results = soon("a waiter was not woken", join_all(waiting)).await;
        results.into_iter().for_each(|result| result.expect("no panic").expect("the waiter gets the lock"));
    }
}

/// A waiter that reads the queue for itself costs the server time for all keys of the queue.
async fn the_cost_of_a_waiter_does_not_grow_with_their_number() {
    const FEW: usize = 200;
    const MANY: usize = 3_000;
    let Some(bench) = Bench::standalone().await else { return };
    // Returns the processor time of the server for each waiter, from its arrival to its release.
    let cost = async |waiters: usize| {
        let (holder, locks, name) = (bench.locks("").await, bench.locks("").await, unique());
        let held = holder.mutex(&name).lock().await.expect("the lock is free");
        let before = bench.cpu_seconds().await;
        let wait = |_| {
            let lock = locks.mutex(&name);
            spawn(async move { lock.lock().await?.release().await })
        };
        let waiting: Vec<_> = (0..waiters).map(wait).collect();
        let count = GetOptions::new().with_prefix().with_count_only();
        let joined = async {
            let mut kv = bench.raw.kv_client();
            while !kv
                .get(format!("{name}/"), Some(count.clone()))
                .await
                .is_ok_and(|reply| reply.count() > waiters as i64)
            {
                sleep(Duration::from_millis(20)).await;
            }
        };
        // Thousands of attempts take seconds on a busy machine.
        timeout(SOON * 8, joined).await.expect("the waiters do not join the queue");
        held.release().await.expect("the lock is held");
        for waiter in join_all(waiting).await {
            waiter.expect("no panic").expect("the waiter gets the lock");
        }
        (bench.cpu_seconds().await - before) / waiters as f64
    };
    let (few, many) = (cost(FEW).await, cost(MANY).await);
    assert!(many < few * 2.5, "{few} s for each of {FEW} waiters, {many} s for each of {MANY}");
}

/// Acquires `count` locks with as many attempts in flight as the engine allows, and releases them.
/// Returns the number of locks that were granted and not lost.
async fn burst(locks: &Locks, count: usize) -> usize {
    let (in_flight, name) = (Arc::new(Semaphore::new(128)), unique());
    let taken = (0..count).map(|number| {
        let (locks, in_flight, name) = (locks.clone(), Arc::clone(&in_flight), format!("{name}-{number}"));
        spawn(async move {
            let _permit = in_flight.acquire().await.expect("never closed");
            locks.mutex(name).lock().await
        })
    });
    let taken: Vec<_> = join_all(taken).await;
    let held: Vec<_> = taken.into_iter().filter_map(|result| result.expect("no panic").ok()).collect();
    let kept = held.iter().filter(|guard| !guard.is_lost()).count();
    join_all(held.into_iter().map(|guard| guard.release())).await;
    kept
}

async fn a_burst_of_free_locks_is_granted_and_none_is_lost() {
    const LOCKS: usize = 4000;
    let Some(bench) = Bench::standalone().await else { return };
    let locks = bench.locks("").await;
    let began = Instant::now();
    assert_eq!(burst(&locks, LOCKS).await, LOCKS, "some locks were refused or lost");
    assert!(began.elapsed() < SOON * 8, "the burst took {:?}", began.elapsed());
}
