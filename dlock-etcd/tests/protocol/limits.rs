//! Tests of limits that an operator sets on the server, and of a database that is full.

use std::time::Duration;

use dlock_conformance::or_ignore;
use dlock_core::{DistributedLock, Error, Kind, LockOptions, MultiLock};
use dlock_testbed::servers::etcd::start_with;
use etcd_client::{AlarmAction, AlarmType};
use futures_util::future::try_join_all;
use tokio::time::sleep;

use crate::common::{Bench, TTL, connect, soon, spawn, unique};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_server_that_allows_few_operations_in_a_transaction_refuses_no_lock,
        a_full_database_costs_no_hold_and_is_reported_as_unwritable,
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
