//! Tests of servers that restart with other data.

use std::time::Duration;

use dlock_conformance::Data;
use dlock_core::{Guard, Locks, LostReason};
use dlock_testbed::servers::etcd::Flavour;
use tokio::time::timeout;

use crate::common::{Bench, TTL, unique};

/// Session of the clients.
const SESSION: Duration = Duration::from_secs(20);

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_cluster_that_has_lost_its_data_reports_the_loss_and_its_tokens_go_back,
        a_cluster_restored_from_a_snapshot_reports_the_loss_and_its_tokens_go_back,
        a_lock_that_was_released_before_a_restore_is_free_after_it,
        a_restore_that_raises_the_revision_keeps_a_released_lock_until_its_client_ends,
        tokens_grow_over_a_restore_that_raises_the_revision,
    }
}

/// Acquires and releases the lock 20 times, which raises the revision.
async fn use_lock(locks: &Locks, name: &str) {
    for _ in 0..20 {
        locks.mutex(name).lock().await.expect("the lock is free").release().await.expect("the lock is held");
    }
}

/// Acquires a lock, restarts the server with other data, and acquires the lock with another client.
/// Returns both guards.
async fn hold_and_lose(bench: &Bench) -> [Guard; 2] {
    let (a, b, name) = (bench.locks("").await, bench.locks("").await, unique());
    let server = &bench.running.servers()[0];
    use_lock(&a, &name).await;
    // The server writes its changes to the database file with a delay. A request for the hash
    // makes it write them at once, so that the copy of the file contains them.
    bench.raw.maintenance_client().hash().await.expect("a reply");
    server.kill().await.expect("the server is running");
    server.start(Data::Kept).await.expect("the server starts again");
    bench.running.ready().await.expect("the servers are ready again");
    use_lock(&b, &name).await;
    let held = a.mutex(&name).lock().await.expect("the lock is free");
    server.kill().await.expect("the server is running");
    server.start(Data::Lost).await.expect("the server starts again");
    bench.running.ready().await.expect("the servers are ready again");
    let next = b.mutex(&name).lock().await.expect("the server knows no holder");
    assert_eq!(timeout(TTL, held.lost()).await.expect("the loss is reported"), LostReason::Deleted);
    [held, next]
}

/// Limit: a cluster grants again each lock that it has forgotten, and its tokens start again.
async fn a_cluster_that_has_lost_its_data_reports_the_loss_and_its_tokens_go_back() {
    let Some(bench) = Bench::standalone().await else { return };
    let [held, next] = hold_and_lose(&bench).await;
    assert!(next.token() < held.token(), "the tokens grow, although the README says that they do not");
}

/// Limit: the same holds for a cluster that is restored from a snapshot without the grant.
async fn a_cluster_restored_from_a_snapshot_reports_the_loss_and_its_tokens_go_back() {
    let Some(bench) = Bench::new(Flavour::Restored).await else { return };
    let [held, next] = hold_and_lose(&bench).await;
    assert!(next.token() < held.token(), "the tokens grow, although the README says that they do not");
    // The snapshot contains 20 acquisitions and 20 releases.
    let snapshot_revision = 40;
    assert!(
        next.token().map(|token| token.get()) > Some(snapshot_revision / 2),
        "the server is empty, it was not restored"
    );
}

/// Releases the lock with client `a`, and restores the server from a snapshot with the hold. No
/// keep-alive may have noticed the release.
async fn release_and_restore(bench: &Bench, a: &Locks, name: &str) {
    let server = &bench.running.servers()[0];
    let held = a.mutex(name).lock().await.expect("the lock is free");
    // See `hold_and_lose`.
    bench.raw.maintenance_client().hash().await.expect("a reply");
    server.kill().await.expect("the server is running");
    server.start(Data::Kept).await.expect("the server starts again");
    bench.running.ready().await.expect("the servers are ready again");
    // The restored cluster does not reach this revision again soon.
    use_lock(a, &unique()).await;
    held.release().await.expect("the lock is held");
    server.kill().await.expect("the server is running");
    server.start(Data::Lost).await.expect("the server starts again");
    bench.running.ready().await.expect("the servers are ready again");
}

async fn a_lock_that_was_released_before_a_restore_is_free_after_it() {
    let Some(bench) = Bench::new(Flavour::Restored).await else { return };
    let (a, b, name) = (bench.locks("").await, bench.locks("").await, unique());
    release_and_restore(&bench, &a, &name).await;
    let next = timeout(TTL * 2, b.mutex(&name).lock()).await.expect("the restored claim has no holder");
    drop(next.expect("the lock is free"));
}

/// Limit: the client cannot detect this restore, and keeps the lease of the restored claim alive.
async fn a_restore_that_raises_the_revision_keeps_a_released_lock_until_its_client_ends() {
    let Some(bench) = Bench::new(Flavour::RestoredAhead).await else { return };
    let (a, b, name) = (bench.locks("").await, bench.locks("").await, unique());
    release_and_restore(&bench, &a, &name).await;
    let early = timeout(SESSION * 3 / 2, b.mutex(&name).lock()).await;
    assert!(early.is_err(), "the restored claim has ended, although the README says that it does not");
    a.close().await;
    let next = timeout(TTL * 2, b.mutex(&name).lock()).await.expect("the client has ended");
    drop(next.expect("the lock is free"));
}

/// The README recommends this way to restore a cluster.
async fn tokens_grow_over_a_restore_that_raises_the_revision() {
    let Some(bench) = Bench::new(Flavour::RestoredAhead).await else { return };
    let [held, next] = hold_and_lose(&bench).await;
    assert!(next.token() > held.token(), "the token {:?} follows {:?}", next.token(), held.token());
}
