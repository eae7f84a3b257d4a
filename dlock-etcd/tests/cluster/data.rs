//! Servers that come back with other data than they had.

use dlock_conformance::Data;
use dlock_core::{Guard, Locks, LostReason};
use dlock_testbed::servers::etcd::Flavour;
use tokio::time::timeout;

use crate::common::{Bench, TTL, unique};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_cluster_that_has_lost_its_data_tells_the_holder_and_its_tokens_go_back,
        a_cluster_restored_from_a_snapshot_tells_the_holder_and_its_tokens_go_back,
        tokens_grow_over_a_restore_that_raises_the_revision,
    }
}

async fn use_it(locks: &Locks, name: &str) {
    for _ in 0..20 {
        locks.mutex(name).lock().await.expect("the lock is free").release().await.expect("the lock is held");
    }
}

/// Holds a lock, lets the server come back with other data, and lets another client take the lock. Returns both holds.
async fn hold_and_lose(bench: &Bench) -> [Guard; 2] {
    let (a, b, name) = (bench.locks("").await, bench.locks("").await, unique());
    let server = &bench.running.servers()[0];
    use_it(&a, &name).await;
    // The server writes to the file of which the copy is made a moment later, unless somebody asks for its hash.
    bench.raw.maintenance_client().hash().await.expect("a reply");
    server.kill().await.expect("the server is running");
    server.start(Data::Kept).await.expect("the server starts again");
    bench.running.ready().await.expect("the servers are ready again");
    use_it(&b, &name).await;
    let held = a.mutex(&name).lock().await.expect("the lock is free");
    server.kill().await.expect("the server is running");
    server.start(Data::Lost).await.expect("the server starts again");
    bench.running.ready().await.expect("the servers are ready again");
    let next = b.mutex(&name).lock().await.expect("nobody is known to hold it");
    assert_eq!(timeout(TTL, held.lost()).await.expect("it is not told"), LostReason::Taken);
    [held, next]
}

/// The honest negative: what a cluster forgets, it grants again, and its tokens begin anew.
async fn a_cluster_that_has_lost_its_data_tells_the_holder_and_its_tokens_go_back() {
    let Some(bench) = Bench::standalone().await else { return };
    let [held, next] = hold_and_lose(&bench).await;
    assert!(next.token() < held.token(), "they grow: then the README is too modest");
}

/// The honest negative: so does one that is restored from a snapshot which does not know the grant.
async fn a_cluster_restored_from_a_snapshot_tells_the_holder_and_its_tokens_go_back() {
    let Some(bench) = Bench::new(Flavour::Restored).await else { return };
    let [held, next] = hold_and_lose(&bench).await;
    assert!(next.token() < held.token(), "they grow: then the README is too modest");
    let anew = 40;
    assert!(next.token().map(|token| token.get()) > Some(anew / 2), "it was not restored, it is empty");
}

/// As the README tells to restore it.
async fn tokens_grow_over_a_restore_that_raises_the_revision() {
    let Some(bench) = Bench::new(Flavour::RestoredAhead).await else { return };
    let [held, next] = hold_and_lose(&bench).await;
    assert!(next.token() > held.token(), "{:?} after {:?}", next.token(), held.token());
}
