//! Tests of losses. A loss is reported to its holder at once, and only a loss is.

use dlock_conformance::Data;
use dlock_core::{DistributedLock, Error, Guard, Kind, LockOptions, LostReason, MultiLock};
use dlock_etcd::EtcdConfig;
use etcd_client::{CompactionOptions, Compare, CompareOp, Txn, TxnOp};
use futures_util::FutureExt;
use std::time::Duration;
use tokio::time::sleep;

use crate::common::{Bench, DeadClaim, soon, spawn, unique};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_key_that_another_client_deletes_is_a_loss_at_once,
        a_lease_that_is_revoked_loses_every_hold_at_once_and_no_waiter,
        a_waiter_whose_key_is_deleted_joins_again_at_the_end,
        a_restarted_server_gives_the_lease_of_a_dead_client_its_full_ttl_again,
        history_that_is_compacted_costs_no_lock_and_no_wake_up,
        a_stale_hold_writes_nothing_and_the_next_holder_does,
        the_guard_of_several_locks_guards_no_write,
    }
}

/// Time after which a held key is watched.
const SETTLED: Duration = Duration::from_millis(300);

async fn a_key_that_another_client_deletes_is_a_loss_at_once() {
    let Some(bench) = Bench::standalone().await else { return };
    let (locks, name) = (bench.locks("").await, unique());
    // The loss is also reported if the key is deleted before the watch has started.
    for wait in [Duration::ZERO, SETTLED] {
        let held = locks.mutex(&name).lock().await.expect("the lock is free");
        sleep(wait).await;
        bench.raw.kv_client().delete(bench.queue(&name).await[0].key(), None).await.expect("a reply");
        assert_eq!(soon("the loss was reported late", held.lost()).await, LostReason::Deleted);
    }
}

async fn a_lease_that_is_revoked_loses_every_hold_at_once_and_no_waiter() {
    let Some(bench) = Bench::standalone().await else { return };
    let (a, b, name, other) = (bench.locks("").await, bench.locks("").await, unique(), unique());
    let held = a.mutex(&name).lock().await.expect("the lock is free");
    let kept = b.mutex(&other).lock().await.expect("the lock is free");
    let waiter = spawn(a.mutex(&other).lock());
    bench.wait_for_claims(&other, 2).await;
    sleep(SETTLED).await;
    let lease = bench.queue(&name).await[0].lease();
    bench.raw.lease_client().revoke(lease).await.expect("a reply");
    assert_eq!(soon("the loss was reported late", held.lost()).await, LostReason::Deleted);
    // The waiter joins again at its next attempt or wake-up.
    drop(kept);
    let next =
        tokio::time::timeout(crate::common::TTL, waiter).await.expect("the waiter never gets the lock");
    let next = next.expect("no panic").expect("the waiter joins again");
    assert_ne!(bench.queue(&other).await[0].lease(), lease);
    next.release().await.expect("the lock is held");
}

/// No watch reports the deletion. The waiter reads its queue once in its ttl.
async fn a_waiter_whose_key_is_deleted_joins_again_at_the_end() {
    const SHORT: Duration = Duration::from_secs(2);
    let Some(bench) = Bench::standalone().await else { return };
    let (holder, a, b, name) =
        (bench.locks("").await, bench.locks("").await, bench.locks("").await, unique());
    let held = holder.mutex(&name).lock().await.expect("the lock is free");
    let waiter = spawn(a.mutex(&name).lock().ttl(SHORT));
    bench.wait_for_claims(&name, 2).await;
    let behind = spawn(b.mutex(&name).lock());
    bench.wait_for_claims(&name, 3).await;
    let queue = bench.queue(&name).await;
    bench.raw.kv_client().delete(queue[1].key(), None).await.expect("a reply");
    bench.wait_for_claims(&name, 3).await;
    let keys: Vec<_> = bench.queue(&name).await.iter().map(|claim| claim.key().to_vec()).collect();
    assert_eq!(keys, [0, 2, 1].map(|place: usize| queue[place].key().to_vec()), "the order of the queue");
    held.release().await.expect("the lock is held");
    for next in [behind, waiter] {
        let next = soon("a waiter was not woken", next).await.expect("no panic");
        next.expect("the waiter gets the lock").release().await.expect("the lock is held");
    }
}

/// So the locks of a dead client may stay taken for longer than its session.
async fn a_restarted_server_gives_the_lease_of_a_dead_client_its_full_ttl_again() {
    let Some(bench) = Bench::standalone().await else { return };
    let (server, name) = (&bench.running.servers()[0], unique());
    let dead = DeadClaim::new(&bench, &name).await;
    server.kill().await.expect("the server is running");
    server.start(Data::Kept).await.expect("the server starts again");
    bench.running.ready().await.expect("the server is ready again");
    dead.wait_for_full_ttl(&bench).await;
    let tried = bench.locks("").await.mutex(&name).try_lock().await.expect("a reply");
    assert!(tried.is_none(), "the claim of the dead client is missing");
}

async fn history_that_is_compacted_costs_no_lock_and_no_wake_up() {
    let Some(bench) = Bench::standalone().await else { return };
    let (a, b, name) = (bench.locks("").await, bench.locks("").await, unique());
    let held = a.mutex(&name).lock().await.expect("the lock is free");
    let waiter = spawn(b.mutex(&name).lock());
    bench.wait_for_claims(&name, 2).await;
    let mut kv = bench.raw.kv_client();
    for round in 0..5 {
        kv.put("other", format!("{round}"), None).await.expect("a reply");
        let physical = CompactionOptions::new().with_physical();
        kv.compact(bench.revision().await, Some(physical)).await.expect("a reply");
        sleep(SETTLED / 3).await;
    }
    assert_eq!(held.lost().now_or_never(), None);
    held.release().await.expect("the lock is held");
    let next =
        soon("the waiter was not woken", waiter).await.expect("no panic").expect("the waiter gets the lock");
    // The history since the grant is compacted before the new holder's key is watched.
    kv.compact(bench.revision().await, None).await.expect("a reply");
    sleep(SETTLED).await;
    kv.delete(bench.queue(&name).await[0].key(), None).await.expect("a reply");
    soon("the loss was reported late", next.lost()).await;
}

async fn a_stale_hold_writes_nothing_and_the_next_holder_does() {
    let Some(bench) = Bench::standalone().await else { return };
    let config =
        EtcdConfig::from_url(&bench.running.url().parse().expect("a URL")).expect("a valid configuration");
    let write = async |guard: &Guard, value: &str| {
        let (key, revision) = config.compare(guard).expect("the guard has one hold in etcd");
        let is_held = Compare::create_revision(key, CompareOp::Equal, revision);
        let write = Txn::new().when([is_held]).and_then([TxnOp::put("guarded", value, None)]);
        bench.raw.kv_client().txn(write).await.expect("a reply").succeeded()
    };
    // The key of an encoded name differs from the name.
    let (a, b, name) = (bench.locks("").await, bench.locks("").await, format!("{}/50%", unique()));
    let stale = a.mutex(&name).lock().await.expect("the lock is free");
    assert!(write(&stale, "first").await, "the write was refused although the lock is held");
    assert!(b.force_release(&name).await.expect("a reply"));
    assert!(!write(&stale, "stale").await, "a write succeeded without the lock");
    let next = b.mutex(&name).lock().await.expect("the lock is free");
    assert!(!write(&stale, "stale").await, "a write succeeded although another client holds the lock");
    assert!(write(&next, "second").await, "the write was refused although the lock is held");
    let found = bench.raw.kv_client().get("guarded", None).await.expect("a reply");
    assert_eq!(found.kvs()[0].value_str().expect("text"), "second");
}

async fn the_guard_of_several_locks_guards_no_write() {
    let Some(bench) = Bench::standalone().await else { return };
    let config =
        EtcdConfig::from_url(&bench.running.url().parse().expect("a URL")).expect("a valid configuration");
    let locks = bench.locks("").await;
    let both = [unique(), unique()].map(|name| locks.of(Kind::Mutex, name));
    let held =
        MultiLock::new(both).expect("two names").lock(&LockOptions::new()).await.expect("the lock is free");
    let result = config.compare(&held);
    assert!(matches!(result, Err(Error::Unsupported { .. })), "{result:?}");
}
