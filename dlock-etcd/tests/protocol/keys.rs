//! Tests of the keys and leases in the cluster, and that none is left.

use std::time::Duration;

use dlock_core::{Error, Kind, LockOptions, Who};
use dlock_etcd::EtcdConfig;
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use futures_util::future::join_all;

use crate::common::{Bench, TTL, soon, spawn, unique, wait_until};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_claim_is_a_key_of_its_clients_lease_that_says_who_has_it,
        a_detached_hold_has_a_lease_of_its_own_until_it_is_taken_back,
        used_names_leave_no_key_and_a_closed_client_no_lease,
        a_name_and_the_same_name_with_a_slash_are_two_locks,
        a_prefix_does_not_isolate_and_the_list_of_members_identifies_the_store,
        a_detached_hold_lasts_whole_seconds,
        a_transaction_can_require_the_lock,
        a_lock_of_etcds_lock_service_and_of_dlock_exclude_and_wake_each_other,
        a_session_that_the_cluster_makes_longer_is_reported,
        the_maximum_ttl_is_four_fifths_of_the_session,
        all_locks_are_listed_and_keys_of_other_programs_are_not,
        a_key_of_another_program_that_is_no_text_keeps_the_lock_taken on 2 threads,
    }
}

async fn a_claim_is_a_key_of_its_clients_lease_that_says_who_has_it() {
    let Some(bench) = Bench::standalone().await else { return };
    let (locks, name) =
        (bench.locks("").await.with_who(Who::new("anna here").expect("a valid label")), unique());
    let first = locks.semaphore(&name, 3).acquire().await.expect("the lock is free");
    let second = locks.semaphore(&name, 3).acquire().await.expect("the lock is free");
    let queue = bench.queue(&name).await;
    let values: Vec<_> = queue.iter().map(|claim| claim.value_str().expect("text")).collect();
    assert_eq!(values, ["dlock/1 permit 3 - anna here"; 2]);
    assert_eq!(queue[0].lease(), queue[1].lease());
    assert_eq!(first.token().map(|token| token.get() as i64), Some(queue[0].create_revision()));
    let key = format!("{name}/{}", first.id().expect("the guard has one hold"));
    assert_eq!(queue[0].key_str().expect("text"), key);
    drop((first, second));
}

async fn a_detached_hold_has_a_lease_of_its_own_until_it_is_taken_back() {
    let Some(bench) = Bench::standalone().await else { return };
    let (a, b, name) = (bench.locks("").await, bench.locks("").await, unique());
    let held = a.mutex(&name).lock().await.expect("the lock is free");
    let before = bench.queue(&name).await.remove(0);
    let ticket = held.detach(Duration::from_secs(600)).await.expect("the lock is held");
    let detached = bench.queue(&name).await.remove(0);
    assert_eq!(
        detached.create_revision(),
        before.create_revision(),
        "the detached hold has lost its queue position"
    );
    assert_ne!(detached.lease(), before.lease());
    let mut leases = bench.raw.lease_client();
    assert_eq!(leases.time_to_live(detached.lease(), None).await.expect("a reply").granted_ttl(), 600);
    a.close().await;
    let held = b.resume(&ticket).await.expect("the ticket is valid");
    let resumed = bench.queue(&name).await.remove(0);
    assert_eq!(resumed.create_revision(), before.create_revision());
    wait_until("the lease of the detached hold was not revoked", async || {
        leases.time_to_live(detached.lease(), None).await.expect("a reply").ttl() == -1
    })
    .await;
    held.release().await.expect("the lock is held");
    b.close().await;
    assert!(leases.leases().await.expect("a reply").leases().is_empty(), "a lease is left");
}

async fn used_names_leave_no_key_and_a_closed_client_no_lease() {
    let Some(bench) = Bench::standalone().await else { return };
    let (locks, name) = (bench.locks("").await, unique());
    for kind in [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit] {
        let lock = locks.of(kind, &name);
        let held = lock.lock(&LockOptions::new().ttl(TTL)).await.expect("the lock is free");
        assert!(locks.mutex(&name).try_lock().await.expect("a reply").is_none());
        assert!(locks.mutex(&name).lock().wait(Duration::from_millis(50)).await.is_err());
        held.release().await.expect("the lock is held");
        let ticket = lock
            .lock(&LockOptions::new().ttl(TTL))
            .await
            .expect("the lock is free")
            .detach(TTL)
            .await
            .expect("the lock is held");
        locks.release(&ticket).await.expect("the lock is held");
    }
    locks.close().await;
    let all = etcd_client::GetOptions::new().with_all_keys().with_count_only();
    assert_eq!(bench.raw.kv_client().get("", Some(all)).await.expect("a reply").count(), 0);
    assert!(bench.raw.lease_client().leases().await.expect("a reply").leases().is_empty());
}

async fn a_name_and_the_same_name_with_a_slash_are_two_locks() {
    let Some(bench) = Bench::standalone().await else { return };
    let (locks, name) = (bench.locks("").await, unique());
    let inner = locks.mutex(format!("{name}/b")).lock().await.expect("the lock is free");
    let outer = soon("a lock blocks the lock of another name", locks.mutex(&name).lock().into_future())
        .await
        .expect("the lock is free");
    assert_eq!(bench.queue(&format!("{name}%2Fb")).await.len(), 1);
    drop((inner, outer));
    let exact = bench.locks("names=exact").await;
    let result = exact.mutex(format!("{name}/b")).lock().await;
    assert!(matches!(result, Err(Error::InvalidName { .. })), "{result:?}");
    exact
        .mutex(format!("{name}%"))
        .lock()
        .await
        .expect("the lock is free")
        .release()
        .await
        .expect("the lock is held");
}

async fn a_prefix_does_not_isolate_and_the_list_of_members_identifies_the_store() {
    let Some(bench) = Bench::standalone().await else { return };
    let (plain, prefixed, name) = (bench.locks("").await, bench.locks("prefix=app.").await, unique());
    let held = prefixed.mutex(&name).lock().await.expect("the lock is free");
    let tried = plain.mutex(format!("app.{name}")).try_lock().await.expect("a reply");
    assert!(tried.is_none(), "two clients hold one key");
    let other_url = bench.running.url().replace("127.0.0.1", "localhost");
    let other = bench.locks_at(&other_url, "").await;
    assert_ne!(other.info().identity, plain.info().identity, "the member has another name");
    let tried = other.mutex(format!("app.{name}")).try_lock().await.expect("a reply");
    assert!(tried.is_none(), "the same member has granted the lock twice");
    held.release().await.expect("the lock is held");
}

async fn a_detached_hold_lasts_whole_seconds() {
    let Some(bench) = Bench::standalone().await else { return };
    let (locks, mut leases) = (bench.locks("").await, bench.raw.lease_client());
    let shortest = leases.grant(1, None).await.expect("a reply").ttl();
    for (lasting, seconds) in [(2500, 3), (100, shortest)] {
        let name = unique();
        let held = locks.mutex(&name).lock().await.expect("the lock is free");
        let ticket = held.detach(Duration::from_millis(lasting)).await.expect("the lock is held");
        let lease = bench.queue(&name).await[0].lease();
        let granted = leases.time_to_live(lease, None).await.expect("a reply").granted_ttl();
        assert_eq!(granted, seconds, "a hold that is detached for {lasting} ms");
        locks.release(&ticket).await.expect("a reply");
    }
}

async fn a_transaction_can_require_the_lock() {
    let Some(bench) = Bench::standalone().await else { return };
    let (locks, name) = (bench.locks("").await, unique());
    let held = locks.mutex(&name).lock().await.expect("the lock is free");
    let config =
        EtcdConfig::from_url(&bench.running.url().parse().expect("a URL")).expect("a valid configuration");
    let (key, revision) = config.compare(&held).expect("the guard has one hold in etcd");
    let write = || {
        let holds = Compare::create_revision(key.as_str(), CompareOp::Equal, revision);
        Txn::new().when([holds]).and_then([TxnOp::put("guarded", "x", None)])
    };
    let mut kv = bench.raw.kv_client();
    assert!(
        kv.txn(write()).await.expect("a reply").succeeded(),
        "the write was refused while the lock is held"
    );
    assert_eq!(
        key,
        config.key(held.name(), held.id().expect("the guard has one hold")).expect("a valid name")
    );
    held.release().await.expect("the lock is held");
    assert!(!kv.txn(write()).await.expect("a reply").succeeded(), "a write succeeded without the lock");
}

async fn a_lock_of_etcds_lock_service_and_of_dlock_exclude_and_wake_each_other() {
    let Some(bench) = Bench::standalone().await else { return };
    let (locks, name, mut service) = (bench.locks("").await, unique(), bench.raw.clone());
    let lease = service.lease_grant(600, None).await.expect("a reply").id();
    let acquire = || {
        let (mut service, name) = (bench.raw.clone(), name.clone());
        let options = etcd_client::LockOptions::new().with_lease(lease);
        async move { service.lock(name, Some(options)).await.expect("a reply").key().to_vec() }
    };
    let key = acquire().await;
    assert!(locks.mutex(&name).try_lock().await.expect("a reply").is_none(), "two clients hold the lock");
    let waiter = spawn(locks.mutex(&name).lock());
    bench.wait_for_claims(&name, 2).await;
    service.unlock(key).await.expect("a reply");
    let held =
        soon("the waiter was not woken", waiter).await.expect("no panic").expect("the waiter gets the lock");
    let waiter = spawn(acquire());
    bench.wait_for_claims(&name, 2).await;
    assert!(!waiter.is_finished(), "two clients hold the lock");
    held.release().await.expect("the lock is held");
    let key = soon("the lock service was not woken", waiter).await.expect("no panic");
    service.unlock(key).await.expect("a reply");
}

async fn a_session_that_the_cluster_makes_longer_is_reported() {
    let Some(bench) = Bench::standalone().await else { return };
    let store = crate::common::connect(&format!("{}?session=10500ms&timeout=5s", bench.running.url()))
        .await
        .expect("the server is running");
    let info = store.backend.info();
    // The duration of a lease is a whole number of seconds.
    assert_eq!(info.session, Some(Duration::from_secs(11)));
    assert!(*info.ttl.end() < Duration::from_secs(11));
}

async fn the_maximum_ttl_is_four_fifths_of_the_session() {
    let Some(bench) = Bench::standalone().await else { return };
    for seconds in [10, 30] {
        let store = crate::common::connect(&format!("{}?session={seconds}s", bench.running.url()))
            .await
            .expect("the server is running");
        let info = store.backend.info();
        assert_eq!(info.session, Some(Duration::from_secs(seconds)));
        assert_eq!(*info.ttl.end(), Duration::from_secs(seconds) * 4 / 5, "session={seconds}s");
    }
}

async fn all_locks_are_listed_and_keys_of_other_programs_are_not() {
    let Some(bench) = Bench::standalone().await else { return };
    let (locks, names) = (bench.locks("").await, [unique(), unique()]);
    let mut kv = bench.raw.kv_client();
    for key in ["plain", "a/b", "registry/pods/x"] {
        kv.put(key, "x", None).await.expect("a reply");
    }
    let held = [
        locks.mutex(&names[0]).lock().await.expect("the lock is free"),
        locks.mutex(&names[1]).lock().await.expect("the lock is free"),
    ];
    let mut listed: Vec<_> =
        locks.list("").await.expect("a reply").into_iter().map(|lock| lock.name.to_string()).collect();
    let mut names = names.to_vec();
    names.sort();
    listed.sort();
    assert_eq!(listed, names);
    drop(held);
}

/// A waiter checks once per ttl whether the key ahead still exists, which it does by the key's bytes.
async fn a_key_of_another_program_that_is_no_text_keeps_the_lock_taken() {
    const SHORT: Duration = Duration::from_secs(2);
    let Some(bench) = Bench::standalone().await else { return };
    let (locks, name) = (bench.locks("").await, unique());
    let key = [name.as_bytes(), b"/\xff"].concat();
    bench.raw.kv_client().put(key, "", None).await.expect("a reply");
    let wait = |_| spawn(locks.mutex(&name).lock().ttl(SHORT).wait(SHORT * 4));
    for waiter in join_all((0..4).map(wait)).await {
        let granted = waiter.expect("no panic");
        assert!(matches!(granted, Err(Error::Timeout { .. })), "{granted:?}");
    }
}
