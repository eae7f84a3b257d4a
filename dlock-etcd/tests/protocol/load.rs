//! What a crowd of one client asks of the server, and that its load costs no lock.

use std::{sync::Arc, time::Duration};

use dlock_core::Locks;
use futures_util::future::join_all;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};

use crate::common::{Bench, SOON, soon, spawn, unique};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_sign_of_life_asks_the_majority_first,
        waiters_whose_watches_stand_ask_nothing,
        a_burst_of_free_locks_is_granted_and_none_is_lost,
    }
}

async fn a_sign_of_life_asks_the_majority_first() {
    let Some(bench) = Bench::standalone().await else { return };
    let locks = bench.locks_with(bench.running.url(), "session=5s").await;
    let held = locks.mutex(unique()).lock().ttl(Duration::from_secs(4)).await.expect("the lock is free");
    let (reads, beats) = (bench.requests("Range").await, bench.requests("LeaseKeepAlive").await);
    sleep(Duration::from_secs(6)).await;
    let (reads, beats) =
        (bench.requests("Range").await - reads, bench.requests("LeaseKeepAlive").await - beats);
    assert!(beats >= 2, "{beats} keep-alives in more than a session");
    // The hold itself may be read once.
    assert!(reads >= beats, "{reads} reads for {beats} keep-alives");
    held.release().await.expect("the lock is held");
}

async fn waiters_whose_watches_stand_ask_nothing() {
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
        // Each waiter has looked once more when its watch stood.
        sleep(TTL / 3).await;
        let (before, began) = (requests().await, Instant::now());
        sleep(TTL * 2).await;
        let (made, took) = (requests().await - before, began.elapsed());
        // Both clients: a keep-alive and its read each 4 s. The waiting one: a check each second.
        let most = 4 * (took.as_secs() / 4 + 2) + took.as_secs() + 2;
        assert!(made <= most, "{made} requests of {waiters} waiters in {took:?}, and at most {most} are due");
        held.release().await.expect("the lock is held");
        let all = soon("no waiter was woken", join_all(waiting)).await;
        all.into_iter().for_each(|one| one.expect("no panic").expect("the waiter gets the lock"));
    }
}

/// Takes this many locks of a name each, with as many attempts in flight as the engine allows, and releases them.
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
    let held: Vec<_> = taken.into_iter().filter_map(|one| one.expect("no panic").ok()).collect();
    let kept = held.iter().filter(|one| !one.is_lost()).count();
    join_all(held.into_iter().map(|one| one.release())).await;
    kept
}

async fn a_burst_of_free_locks_is_granted_and_none_is_lost() {
    const LOCKS: usize = 4000;
    let Some(bench) = Bench::standalone().await else { return };
    let locks = bench.locks("").await;
    let began = Instant::now();
    assert_eq!(burst(&locks, LOCKS).await, LOCKS, "some were refused or lost");
    assert!(began.elapsed() < SOON * 8, "it took {:?}", began.elapsed());
}
