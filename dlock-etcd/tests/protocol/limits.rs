//! Tests of limits that an operator sets on the server, and of a database that is full.

use std::time::Duration;

use dlock_conformance::{Proxy, or_ignore};
use dlock_core::{DistributedLock, Error, Kind, LockOptions, MultiLock};
use dlock_testbed::servers::etcd::start_with;
use etcd_client::{AlarmAction, AlarmType, GetOptions};
use futures_util::future::try_join_all;
use tokio::time::{sleep, timeout};

use crate::common::{Bench, TTL, connect, soon, spawn, unique, wait_until};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_server_that_allows_few_operations_in_a_transaction_refuses_no_lock,
        a_server_that_allows_few_operations_costs_no_hold_after_a_break,
        a_full_database_costs_no_hold_and_is_reported_as_unwritable,
        a_server_that_allows_few_streams_costs_no_hold_and_no_waiter,
        a_queue_that_is_too_long_is_refused_and_costs_no_other_lock,
    }
}

/// Connects to a member that allows 16 operations and 8 KiB in a request.
async fn small() -> Option<Bench> {
    let running = or_ignore(start_with(&["--max-txn-ops=16", "--max-request-bytes=8192"]).await)?;
    Some(Bench::of(running).await)
}

async fn a_server_that_allows_few_operations_in_a_transaction_refuses_no_lock() {
    const LOCKS: usize = 64;
    const PERMITS: u32 = 40;
    let Some(bench) = small().await else { return };
    let (locks, name) = (bench.locks("").await, unique());
    let names: Vec<_> = (0..LOCKS).map(|number| format!("{name}-{number}")).collect();
    let all = MultiLock::new(names.iter().map(|name| locks.of(Kind::Mutex, name))).expect("64 names");
    let transactions = bench.requests("Txn").await;
    let held = all.lock(&LockOptions::new()).await.expect("the locks are free");
    let sent = bench.requests("Txn").await - transactions;
    assert_eq!(sent, 1 + LOCKS as u64, "one refused transaction, and one for each lock");
    held.release().await.expect("the locks are held");
    let semaphore = locks.semaphore(&name, PERMITS);
    let acquire = |_| semaphore.acquire().into_future();
    let permits = try_join_all((0..PERMITS).map(acquire)).await.expect("there are as many permits");
    assert!(bench.locks("").await.force_release(&name).await.expect("a reply"), "the permits are held");
    assert_eq!(bench.queue(&name).await.len(), 0, "a holder was not broken");
    drop(permits);
}

async fn a_server_that_allows_few_operations_costs_no_hold_after_a_break() {
    const LOCKS: usize = 64;
    const SHORT: Duration = Duration::from_secs(6);
    let Some(bench) = small().await else { return };
    let proxy = Proxy::to(bench.running.servers()[0].address()).await.expect("a port is free");
    let (locks, name) = (bench.locks_at(&format!("etcd://{}", proxy.address()), "").await, unique());
    let taken =
        (0..LOCKS).map(|number| locks.mutex(format!("{name}-{number}")).lock().ttl(SHORT).into_future());
    let held = try_join_all(taken).await.expect("the locks are free");
    // A hold whose key was not watched before the break needs no read after it.
    wait_until("the keys are not watched", async || bench.requests("Watch").await >= LOCKS as u64).await;
    let before = bench.requests("Range").await;
    proxy.cut();
    sleep(SHORT * 2).await;
    assert!(held.iter().all(|guard| !guard.is_lost()), "a lock was lost");
    let reads = bench.requests("Range").await - before;
    assert!(reads >= LOCKS as u64, "{reads} reads, although the server refuses to read many keys at once");
}

async fn a_full_database_costs_no_hold_and_is_reported_as_unwritable() {
    const SHORT: Duration = Duration::from_secs(6);
    let Some(bench) = Bench::standalone().await else { return };
    let (locks, other, names) =
        (bench.locks("").await, bench.locks("").await, [unique(), unique(), unique()]);
    let [kept, detached, released] = names.each_ref().map(|name| locks.mutex(name).lock().ttl(SHORT));
    let kept = kept.await.expect("the lock is free");
    let (detached, released) =
        (detached.await.expect("the lock is free"), released.await.expect("the lock is free"));
    let mut maintenance = bench.raw.maintenance_client();
    let mut set_alarm = async |action| {
        maintenance.alarm(action, AlarmType::Nospace, None).await.expect("a reply");
    };
    set_alarm(AlarmAction::Activate).await;
    // The client repeats the request until the database has space again.
    let detaching = spawn(detached.detach(TTL));
    let refused = locks.mutex(unique()).try_lock().await.map(drop);
    assert!(matches!(refused, Err(Error::Unwritable { .. })), "{refused:?}");
    let connected = connect(&format!("{}?session=20s", bench.running.url())).await.map(drop);
    assert!(matches!(connected, Err(Error::Unwritable { .. })), "{connected:?}");
    released.release().await.expect("a full database accepts deletions");
    sleep(SHORT * 2).await;
    assert!(!kept.is_lost(), "a full database costs a hold");
    assert!(!detaching.is_finished(), "a detachment creates a lease, which a full database refuses");
    set_alarm(AlarmAction::Deactivate).await;
    let ticket = soon("the detachment is not repeated", detaching).await.expect("no panic");
    let resumed = other.resume(&ticket.expect("the hold was renewed until then")).await.expect("a ticket");
    resumed.release().await.expect("the lock is held");
    kept.release().await.expect("the lock is held");
}

/// A client needs a stream for its watches, and one for each request in flight.
async fn a_server_that_allows_few_streams_costs_no_hold_and_no_waiter() {
    const LOCKS: usize = 300;
    const SHORT: Duration = Duration::from_secs(6);
    let running = or_ignore(start_with(&["--max-concurrent-streams=4"]).await);
    let Some(running) = running else { return };
    let bench = Bench::of(running).await;
    let (holder, waiter, name) = (bench.locks("").await, bench.locks("").await, unique());
    let names: Vec<_> = (0..LOCKS).map(|number| format!("{name}-{number}")).collect();
    let lock = |name: &String| holder.mutex(name).lock().ttl(SHORT).into_future();
    let held = try_join_all(names.iter().map(lock)).await.expect("the locks are free");
    let waiting: Vec<_> =
        names.iter().map(|name| spawn(waiter.mutex(name).lock().ttl(SHORT).into_future())).collect();
    sleep(SHORT * 3).await;
    let failed = waiting.iter().filter(|waiter| waiter.is_finished()).count();
    assert_eq!(failed, 0, "of {LOCKS} waiters have ended");
    let lost = held.iter().filter(|guard| guard.is_lost()).count();
    assert_eq!(lost, 0, "of {LOCKS} holds are lost");
    try_join_all(held.into_iter().map(|guard| guard.release())).await.expect("the locks are held");
    for waiter in waiting {
        let next = timeout(SHORT * 4, waiter).await.expect("a waiter is not woken").expect("no panic");
        next.expect("the lock is free").release().await.expect("the lock is held");
    }
}

async fn a_queue_that_is_too_long_is_refused_and_costs_no_other_lock() {
    // In total more than 64 MiB.
    const KEYS: usize = 50;
    const VALUE_BYTES: usize = 1_400_000;
    const SHORT: Duration = Duration::from_secs(6);
    let Some(bench) = Bench::standalone().await else { return };
    let (locks, name) = (bench.locks("").await, unique());
    let kept = locks.mutex(unique()).lock().ttl(SHORT).await.expect("the lock is free");
    for number in 0..KEYS {
        let key = format!("{name}/{number:016x}");
        bench.raw.kv_client().put(key, vec![b'x'; VALUE_BYTES], None).await.expect("a reply");
    }
    let results = [
        locks.inspect(&name).await.map(drop),
        locks.list(&name).await.map(drop),
        locks.rwlock(&name).read().lock().ttl(SHORT).await.map(drop),
        locks.semaphore(&name, 3).acquire().ttl(SHORT).await.map(drop),
    ];
    for result in results {
        assert!(matches!(result, Err(Error::Refused { .. })), "{result:?}");
    }
    let other = locks.mutex(unique()).lock().ttl(SHORT).await.expect("the lock is free");
    sleep(SHORT * 2).await;
    assert!(!kept.is_lost() && !other.is_lost(), "a long queue costs the holds of other names");
    kept.release().await.expect("the lock is held");
    other.release().await.expect("the lock is held");
    let count = GetOptions::new().with_prefix().with_count_only();
    let found = bench.raw.kv_client().get(format!("{name}/"), Some(count)).await.expect("a reply");
    assert_eq!(found.count(), KEYS as i64, "a refused claim is left in the queue");
}
