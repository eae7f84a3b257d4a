//! Tests beside the RedLocks of other programs on the same servers, which use `SET NX PX` on a
//! majority like rslock, redsync and node-redlock.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]

use std::{sync::Arc, time::Duration};

use dlock_core::Locks;
use futures_util::future::join_all;
use rslock::{LockError, LockManager};
use tokio::{sync::Mutex, time::Instant};

use crate::common::{nodes::Nodes, unique};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        rslock_does_not_get_what_dlock_holds,
        dlock_does_not_get_what_rslock_holds,
        a_minority_that_rslock_holds_blocks_no_client,
        contenders_of_both_never_hold_at_once,
    }
}

const TTL: Duration = Duration::from_secs(60);
/// Wait limit, which no contender reaches.
const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// Number of acquisitions of each contender.
const ROUNDS: usize = 50;

async fn three() -> Option<Nodes> {
    dlock_conformance::or_ignore(Nodes::new(3, "dialect=plain").await)
}

/// Returns a client of rslock that makes one attempt.
fn foreign(nodes: &Nodes) -> LockManager {
    let mut foreign = LockManager::new(nodes.urls());
    foreign.set_retry(0, Duration::ZERO);
    foreign
}

async fn rslock_does_not_get_what_dlock_holds() {
    let Some(nodes) = three().await else { return };
    let (locks, foreign) = (nodes.locks(TTL).await, foreign(&nodes));
    let held = locks.mutex("foo").lock().await.unwrap();
    // The lock is granted by two servers. The request to the third may still be under way, and
    // would find the key of rslock there.
    nodes.wait_for_key_count(0..3, "foo", 3).await;
    let refused = foreign.lock("foo", TTL).await;
    assert!(
        matches!(refused, Err(LockError::Unavailable)),
        "rslock got a lock that dlock holds: {refused:?}"
    );
    assert_eq!(nodes.key_count(0..3, "foo").await, 3, "rslock has removed a lock that it does not hold");
    held.release().await.unwrap();
    let got = foreign.lock("foo", TTL).await.expect("the lock is free");
    foreign.unlock(&got).await;
}

async fn dlock_does_not_get_what_rslock_holds() {
    let Some(nodes) = three().await else { return };
    let (locks, foreign) = (nodes.locks(TTL).await, foreign(&nodes));
    let held = foreign.lock("foo", TTL).await.expect("the lock is free");
    let tried = locks.mutex("foo").try_lock().await.unwrap();
    assert!(tried.is_none(), "dlock got a lock that rslock holds: {tried:?}");
    assert_eq!(nodes.key_count(0..3, "foo").await, 3, "dlock has removed a lock that it does not hold");
    let waiting = tokio::spawn(locks.mutex("foo").lock().wait(WAIT_LIMIT).into_future());
    foreign.unlock(&held).await;
    waiting.await.unwrap().expect("the lock is free").release().await.unwrap();
}

async fn a_minority_that_rslock_holds_blocks_no_client() {
    let Some(nodes) = three().await else { return };
    let locks = nodes.locks(TTL).await;
    let minority = LockManager::new(nodes.urls()[..1].to_vec());
    let held = minority.lock("foo", TTL).await.expect("the lock is free");
    let guard = locks.mutex("foo").try_lock().await.unwrap().expect("two of three are a majority");
    guard.release().await.unwrap();
    assert_eq!(nodes.key_count(0..1, "foo").await, 1, "dlock has removed a lock of rslock");
    minority.unlock(&held).await;
}

async fn contenders_of_both_never_hold_at_once() {
    let Some(nodes) = three().await else { return };
    let (name, room) = (unique(), Arc::new(Mutex::new(())));
    let mut contenders = Vec::new();
    for _ in 0..2 {
        let ours = dlock_contends(nodes.locks(TTL).await, name.clone(), Arc::clone(&room));
        let theirs = rslock_contends(foreign(&nodes), name.clone(), Arc::clone(&room));
        contenders.extend([tokio::spawn(ours), tokio::spawn(theirs)]);
    }
    for contender in join_all(contenders).await {
        contender.expect("the contender has no failed assertion");
    }
    assert_eq!(nodes.key_count(0..3, &name).await, 0, "the contenders have left keys");
}

/// Enters the critical section.
///
/// # Panics
/// If another contender is inside.
async fn enter(room: &Mutex<()>) {
    let _alone = room.try_lock().expect("two contenders hold the lock");
    tokio::time::sleep(Duration::from_millis(1)).await;
}

async fn dlock_contends(locks: Locks, name: String, room: Arc<Mutex<()>>) {
    for _ in 0..ROUNDS {
        let guard = locks.mutex(&name).lock().wait(WAIT_LIMIT).await.expect("granted in the end");
        enter(&room).await;
        guard.release().await.expect("the lock is still held");
    }
}

async fn rslock_contends(mut manager: LockManager, name: String, room: Arc<Mutex<()>>) {
    manager.set_retry(20, Duration::from_millis(20));
    let (started_at, mut rounds) = (Instant::now(), 0);
    while rounds < ROUNDS {
        assert!(started_at.elapsed() < WAIT_LIMIT, "rslock was granted the lock {rounds} of {ROUNDS} times");
        // rslock returns an error after a few attempts.
        let Ok(held) = manager.lock(name.as_str(), TTL).await else { continue };
        enter(&room).await;
        manager.unlock(&held).await;
        rounds += 1;
    }
}
