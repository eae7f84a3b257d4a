//! Tests of the keys that dlock writes in the plain dialect, and of its treatment of the keys of
//! other programs.

use std::time::Duration;

use dlock_core::{
    Error, Kind, Wait,
    driver::{Attempt, Renewal},
};

use crate::common::{Bench, busy, claim};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_plain_lock_is_a_string_with_a_ttl_and_nothing_beside,
        the_value_of_another_client_is_neither_extended_nor_deleted,
        a_value_without_a_ttl_is_held_for_ever,
        a_lock_of_redissons_is_refused_and_unchanged,
        a_forced_release_leaves_nothing_that_is_taken_for_a_lock,
    }
}

async fn a_plain_lock_is_a_string_with_a_ttl_and_nothing_beside() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("dialect=plain").await;
    let (mut ours, owner) = claim(&store, "foo", Kind::Mutex, 30_000, Wait::Forever);
    // A second attempt of the claim is the same hold.
    for _ in 0..2 {
        assert!(matches!(ours.attempt().await.unwrap(), Attempt::Granted(grant) if grant.token.is_none()));
        assert_eq!(bench.query::<String>("GET foo").await, owner);
        assert!(bench.query::<i64>("PTTL foo").await > 28_000);
    }
    bench.send("PEXPIRE foo 1000").await;
    assert!(matches!(ours.renew().await.unwrap(), Renewal::Renewed { .. }));
    assert!(bench.query::<i64>("PTTL foo").await > 28_000, "the renewal did not extend the ttl");
    let (mut other, _) = claim(&store, "foo", Kind::Mutex, 30_000, Wait::Forever);
    assert!(
        busy(other.attempt().await) < Duration::from_secs(1),
        "the waiter polls too rarely, and is not woken by releases of other programs"
    );
    other.release().await.unwrap();
    assert_eq!(bench.all_keys().await, ["foo"], "there are keys that other programs do not know");
    ours.release().await.unwrap();
    assert_eq!(bench.all_keys().await, [""; 0]);
}

async fn the_value_of_another_client_is_neither_extended_nor_deleted() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("dialect=plain").await;
    let (mut ours, _) = claim(&store, "foo", Kind::Mutex, 30_000, Wait::Never);
    assert!(matches!(ours.attempt().await.unwrap(), Attempt::Granted(_)));
    bench.send("SET foo theirs PX 5000").await;
    assert_eq!(ours.renew().await.unwrap(), Renewal::Lost);
    busy(ours.attempt().await);
    ours.release().await.unwrap();
    assert_eq!(bench.query::<String>("GET foo").await, "theirs");
    assert!(bench.query::<i64>("PTTL foo").await <= 5000, "the hold of another program was extended");
    bench.send("DEL foo").await;
    assert_eq!(ours.renew().await.unwrap(), Renewal::Lost, "a renewal has created a key");
    assert!(!bench.query::<bool>("EXISTS foo").await);
}

async fn a_value_without_a_ttl_is_held_for_ever() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("dialect=plain").await;
    bench.send("SET foo theirs").await;
    let (mut ours, _) = claim(&store, "foo", Kind::Mutex, 30_000, Wait::Never);
    busy(ours.attempt().await);
    assert_eq!(bench.query::<i64>("PTTL foo").await, -1, "a key without a ttl was given one");
}

async fn a_lock_of_redissons_is_refused_and_unchanged() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("dialect=plain").await;
    bench.send("HSET foo aaaa:1 1").await;
    let (mut ours, _) = claim(&store, "foo", Kind::Mutex, 30_000, Wait::Never);
    let attempt = ours.attempt().await;
    assert!(matches!(attempt, Err(Error::WrongKind { .. })), "{attempt:?}");
    ours.release().await.unwrap();
    let broken = store.inspect.as_ref().unwrap().force_release(&"foo".parse().unwrap()).await;
    assert!(matches!(broken, Err(Error::WrongKind { .. })), "{broken:?}");
    assert_eq!(bench.query::<Vec<String>>("HGETALL foo").await, ["aaaa:1", "1"]);
}

async fn a_forced_release_leaves_nothing_that_is_taken_for_a_lock() {
    let Some(bench) = Bench::new().await else { return };
    for params in ["dialect=plain", ""] {
        let locks = bench.locks(params).await;
        let held = locks.mutex("foo").lock().await.unwrap();
        assert!(locks.force_release("foo").await.unwrap());
        assert_eq!(locks.list("").await.unwrap(), []);
        drop(held);
        locks.close().await;
    }
}
