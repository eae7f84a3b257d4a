//! The plain dialect, as keys on the server: what other programs see of dlock, and what dlock sees of them.

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
    // However often the claim asks, it has one hold.
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
        "the waiter asks too seldom, and no other program's release wakes it"
    );
    other.release().await.unwrap();
    assert_eq!(bench.all_keys().await, ["foo"], "other programs know of one key");
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
    assert!(bench.query::<i64>("PTTL foo").await <= 5000, "another's hold was extended");
    bench.send("DEL foo").await;
    assert_eq!(ours.renew().await.unwrap(), Renewal::Lost, "a renewal creates");
    assert!(!bench.query::<bool>("EXISTS foo").await);
}

async fn a_value_without_a_ttl_is_held_for_ever() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("dialect=plain").await;
    bench.send("SET foo theirs").await;
    let (mut ours, _) = claim(&store, "foo", Kind::Mutex, 30_000, Wait::Never);
    busy(ours.attempt().await);
    assert_eq!(bench.query::<i64>("PTTL foo").await, -1, "a key that had no ttl was given one");
}

async fn a_lock_of_redissons_is_refused_and_unchanged() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("dialect=plain").await;
    bench.send("HSET foo aaaa:1 1").await;
    let (mut ours, _) = claim(&store, "foo", Kind::Mutex, 30_000, Wait::Never);
    let told = ours.attempt().await;
    assert!(matches!(told, Err(Error::WrongKind { .. })), "{told:?}");
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
