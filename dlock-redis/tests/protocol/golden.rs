//! Golden traces of Redisson's protocol: keys on the server. The tests write Redisson's keys, and
//! compare dlock's keys with those that Redisson would have written.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]

use std::{collections::BTreeMap, time::Duration};

use dlock_core::{Error, Kind, Wait, driver::Renewal};

use crate::common::{Bench, Subscription, busy, claim, granted, soon};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_mutex_is_redissons_hash_and_its_release_redissons_message,
        a_mutex_that_redisson_holds_is_busy_and_unchanged,
        redissons_unlock_wakes_a_waiter,
        breaking_redissons_lock_publishes_as_redisson_would,
        a_renewal_extends_its_own_hold_and_nothing_else,
        readers_are_redissons_hash_and_timeouts,
        a_reader_beside_redissons_leaves_redissons_hold_alone,
        a_writer_does_not_come_beside_a_reader_of_redissons_whose_timeout_is_not_renewed,
        a_dead_reader_of_dlock_is_deleted_with_the_last_live_one,
        a_writer_is_redissons_hash_and_wakes_all,
        fair_waiters_are_in_redissons_list_and_set,
        waiters_of_redisson_are_ahead_of_later_ones,
        a_prefix_is_redissons_name_mapper_and_databases_are_separate,
        a_lock_of_the_other_shape_is_refused_and_unchanged,
    }
}

const A: &str = "aaaa:1";

type Hash = BTreeMap<String, String>;

impl Bench {
    async fn hash(&self, key: &str) -> Hash {
        self.query(&format!("HGETALL {key}")).await
    }

    async fn assert_ttl(&self, key: &str, expected: i64) {
        let ttl: i64 = self.query(&format!("PTTL {key}")).await;
        assert!((expected - 1500..=expected).contains(&ttl), "{key} expires in {ttl} ms, not in {expected}");
    }

    /// Returns all keys in order, except those that only dlock reads.
    async fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.query("KEYS *").await;
        keys.retain(|key| !key.starts_with("dlock_") && !key.starts_with("redisson_lock_token:"));
        keys.sort_unstable();
        keys
    }
}

fn hash<const N: usize>(fields: [(&str, &str); N]) -> Hash {
    fields.into_iter().map(|(field, value)| (field.to_owned(), value.to_owned())).collect()
}

async fn a_mutex_is_redissons_hash_and_its_release_redissons_message() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let mut messages = Subscription::to(bench.running.url(), "redisson_lock__channel:{foo}").await;
    let (mut a, owner) = claim(&store, "foo", Kind::Mutex, 30_000, Wait::Never);
    let token = granted(a.attempt().await);
    assert_eq!(bench.hash("foo").await, hash([(&owner, "1")]));
    bench.assert_ttl("foo", 30_000).await;
    assert_eq!(bench.keys().await, ["foo"]);
    assert_eq!(bench.query::<u64>("GET redisson_lock_token:{foo}").await, token);
    assert_eq!(granted(a.attempt().await), token, "a second attempt is another grant");
    assert_eq!(bench.hash("foo").await, hash([(&owner, "1")]), "a second attempt is another hold");
    a.release().await.unwrap();
    assert_eq!(messages.next().await, "0");
    assert_eq!(bench.keys().await, [""; 0]);
    a.release().await.unwrap();
    assert!(messages.is_silent(&bench).await, "a release without a hold sent a message");
}

async fn a_mutex_that_redisson_holds_is_busy_and_unchanged() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    bench.send(&format!("HSET foo {A} 2")).await;
    bench.send("PEXPIRE foo 5000").await;
    let (mut b, _) = claim(&store, "foo", Kind::Mutex, 30_000, Wait::Never);
    let retry_in = busy(b.attempt().await);
    assert!((Duration::from_secs(3)..=Duration::from_secs(5)).contains(&retry_in), "{retry_in:?}");
    b.release().await.unwrap();
    assert_eq!(b.renew().await.unwrap(), Renewal::Lost);
    assert_eq!(bench.hash("foo").await, hash([(A, "2")]));
    bench.assert_ttl("foo", 5000).await;
    assert_eq!(bench.keys().await, ["foo"]);
}

async fn redissons_unlock_wakes_a_waiter() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    for (kind, hold, channel, payload) in [
        (Kind::Mutex, vec![A, "1"], "redisson_lock__channel:{foo}", "0"),
        (Kind::Read, vec!["mode", "write", "aaaa:1:write", "1"], "redisson_rwlock:{foo}", "1"),
        (Kind::Write, vec!["mode", "write", "aaaa:1:write", "1"], "redisson_rwlock:{foo}", "1"),
        (Kind::Write, vec!["mode", "read", A, "1"], "redisson_rwlock:{foo}", "0"),
    ] {
        bench.send(&format!("HSET foo {}", hold.join(" "))).await;
        bench.send("PEXPIRE foo 600000").await;
        let lock = locks.of(kind, "foo");
        let waiter = tokio::spawn(async move { lock.lock(&Default::default()).await });
        while bench.query::<(String, u64)>(&format!("PUBSUB NUMSUB {channel}")).await.1 == 0 {
            tokio::task::yield_now().await;
        }
        bench.send("DEL foo").await;
        bench.send(&format!("PUBLISH {channel} {payload}")).await;
        let guard = soon("the message did not wake the waiter", waiter).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

async fn breaking_redissons_lock_publishes_as_redisson_would() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    let mut messages = Subscription::to(bench.running.url(), "redisson_lock__channel:{foo}").await;
    bench.send(&format!("HSET foo {A} 1")).await;
    assert!(locks.force_release("foo").await.unwrap());
    assert_eq!(messages.next().await, "0");
    assert!(!locks.force_release("foo").await.unwrap(), "a free lock was broken");
    assert!(messages.is_silent(&bench).await, "breaking a free lock sent a message");
}

async fn a_renewal_extends_its_own_hold_and_nothing_else() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let (mut a, _) = claim(&store, "k1", Kind::Mutex, 30_000, Wait::Never);
    granted(a.attempt().await);
    bench.send("PEXPIRE k1 1000").await;
    assert!(matches!(a.renew().await.unwrap(), Renewal::Renewed { .. }));
    bench.assert_ttl("k1", 30_000).await;
    bench.send("DEL k1").await;
    bench.send(&format!("HSET k1 {A} 1")).await;
    assert_eq!(a.renew().await.unwrap(), Renewal::Lost);
    assert_eq!(bench.query::<i64>("PTTL k1").await, -1, "the hold of another client was renewed");
    bench.send("DEL k1").await;
    assert_eq!(a.renew().await.unwrap(), Renewal::Lost);
    assert_eq!(bench.keys().await, [""; 0], "a renewal has created a key");
}

async fn readers_are_redissons_hash_and_timeouts() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let mut messages = Subscription::to(bench.running.url(), "redisson_rwlock:{foo}").await;
    let (mut a, a_owner) = claim(&store, "foo", Kind::Read, 10_000, Wait::Never);
    granted(a.attempt().await);
    assert_eq!(bench.hash("foo").await, hash([("mode", "read"), (&a_owner, "1")]));
    bench.assert_ttl("foo", 10_000).await;
    bench.assert_ttl(&format!("{{foo}}:{a_owner}:rwlock_timeout:1"), 10_000).await;
    // A shorter hold beside it does not shorten the ttl of the hash.
    let (mut b, b_owner) = claim(&store, "foo", Kind::Read, 3000, Wait::Never);
    granted(b.attempt().await);
    bench.assert_ttl("foo", 10_000).await;
    bench.assert_ttl(&format!("{{foo}}:{b_owner}:rwlock_timeout:1"), 3000).await;
    let (mut c, _) = claim(&store, "foo", Kind::Write, 30_000, Wait::Never);
    assert!(busy(c.attempt().await) > Duration::from_secs(8));
    // The reader with the longest ttl leaves. The hash then has the ttl of the longest remaining
    // reader.
    a.release().await.unwrap();
    bench.assert_ttl("foo", 3000).await;
    assert_eq!(bench.keys().await, ["foo".to_owned(), format!("{{foo}}:{b_owner}:rwlock_timeout:1")]);
    b.release().await.unwrap();
    assert_eq!(bench.keys().await, [""; 0]);
    assert_eq!(messages.next().await, "0");
    b.release().await.unwrap();
    assert!(messages.is_silent(&bench).await, "a second release of the same claim sent a message");
}

async fn a_reader_beside_redissons_leaves_redissons_hold_alone() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    bench.send(&format!("HSET foo mode read {A} 2")).await;
    bench.send(&format!("SET {{foo}}:{A}:rwlock_timeout:1 1 PX 20000")).await;
    bench.send(&format!("SET {{foo}}:{A}:rwlock_timeout:2 1 PX 40000")).await;
    bench.send("PEXPIRE foo 40000").await;
    let (mut b, owner) = claim(&store, "foo", Kind::Read, 60_000, Wait::Never);
    granted(b.attempt().await);
    assert_eq!(bench.hash("foo").await, hash([("mode", "read"), (A, "2"), (&owner, "1")]));
    bench.assert_ttl("foo", 60_000).await;
    b.release().await.unwrap();
    assert_eq!(bench.hash("foo").await, hash([("mode", "read"), (A, "2")]));
    bench.assert_ttl("foo", 40_000).await;
}

async fn a_writer_does_not_come_beside_a_reader_of_redissons_whose_timeout_is_not_renewed() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    // The second read lock of one thread with Redisson 3.44 to 3.52, which renews only the hash and
    // not the timeout.
    bench.send(&format!("HSET foo mode read {A} 1")).await;
    bench.send("PEXPIRE foo 30000").await;
    let (mut b, _) = claim(&store, "foo", Kind::Read, 3000, Wait::Never);
    granted(b.attempt().await);
    b.release().await.unwrap();
    assert_eq!(bench.hash("foo").await, hash([("mode", "read"), (A, "1")]));
    bench.assert_ttl("foo", 30_000).await;
    let (mut writer, _) = claim(&store, "foo", Kind::Write, 3000, Wait::Never);
    busy(writer.attempt().await);
}

async fn a_dead_reader_of_dlock_is_deleted_with_the_last_live_one() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let mut messages = Subscription::to(bench.running.url(), "redisson_rwlock:{foo}").await;
    // Two dead readers of dlock, whose timeouts have expired.
    bench.send("HSET foo mode read dead-1:0 1 dead-2:0 1").await;
    let (mut b, owner) = claim(&store, "foo", Kind::Read, 3000, Wait::Never);
    let (mut c, _) = claim(&store, "foo", Kind::Read, 3000, Wait::Never);
    granted(b.attempt().await);
    granted(c.attempt().await);
    let state = store.inspect.as_ref().unwrap().inspect(&"foo".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(state.holders.len(), 2, "dead readers are reported as holders: {state:?}");
    c.release().await.unwrap();
    assert_eq!(
        bench.hash("foo").await,
        hash([("mode", "read"), (&owner, "1")]),
        "the dead readers are still counted"
    );
    b.release().await.unwrap();
    assert_eq!(bench.keys().await, [""; 0]);
    assert_eq!(messages.next().await, "0");
}

async fn a_writer_is_redissons_hash_and_wakes_all() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let mut messages = Subscription::to(bench.running.url(), "redisson_rwlock:{foo}").await;
    let (mut a, owner) = claim(&store, "foo", Kind::Write, 10_000, Wait::Never);
    granted(a.attempt().await);
    assert_eq!(bench.hash("foo").await, hash([("mode", "write"), (&format!("{owner}:write"), "1")]));
    bench.assert_ttl("foo", 10_000).await;
    bench.send("PEXPIRE foo 100").await;
    assert!(matches!(a.renew().await.unwrap(), Renewal::Renewed { .. }));
    bench.assert_ttl("foo", 10_000).await;
    a.release().await.unwrap();
    assert_eq!(bench.keys().await, [""; 0]);
    assert_eq!(messages.next().await, "1");
    assert_eq!(
        messages.next().await,
        "0",
        "there is no second message for a thread of Redisson that misses the first"
    );
}

async fn fair_waiters_are_in_redissons_list_and_set() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("patience=5s").await;
    let (queue, deadlines) = ("redisson_lock_queue:{foo}", "redisson_lock_timeout:{foo}");
    let (mut a, a_owner) = claim(&store, "foo", Kind::Fair, 30_000, Wait::Forever);
    granted(a.attempt().await);
    assert_eq!(bench.hash("foo").await, hash([(&a_owner, "1")]));
    let now = server_ms(&bench).await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let (mut waiter, owner) = claim(&store, "foo", Kind::Fair, 30_000, Wait::Forever);
        busy(waiter.attempt().await);
        waiting.push((waiter, owner));
    }
    let owners: Vec<_> = waiting.iter().map(|(_, owner)| owner.clone()).collect();
    assert_eq!(bench.query::<Vec<String>>(&format!("LRANGE {queue} 0 -1")).await, owners);
    assert_scores(&bench, deadlines, &owners, now, &[5000, 10_000, 15_000]).await;
    busy(waiting[0].0.attempt().await);
    assert_scores(&bench, deadlines, &owners, now, &[5000, 10_000, 15_000]).await;
    // The second waiter leaves. With its next attempt, the waiter behind it moves its own deadline
    // earlier by one `patience`.
    waiting.remove(1).0.release().await.unwrap();
    let owners = [owners[0].clone(), owners[2].clone()];
    assert_eq!(bench.query::<Vec<String>>(&format!("LRANGE {queue} 0 -1")).await, owners);
    busy(waiting[1].0.attempt().await);
    assert_scores(&bench, deadlines, &owners, now, &[5000, 10_000]).await;
    let mut messages =
        Subscription::to(bench.running.url(), &format!("redisson_lock__channel:{{foo}}:{}", owners[0])).await;
    a.release().await.unwrap();
    assert_eq!(messages.next().await, "0", "the first waiter is not woken on its own channel");
    assert_eq!(
        bench.query::<Vec<String>>(&format!("LRANGE {queue} 0 -1")).await,
        owners,
        "the release has removed the first waiter from the queue"
    );
    busy(waiting[1].0.attempt().await);
    granted(waiting[0].0.attempt().await);
    assert_eq!(bench.query::<Vec<String>>(&format!("LRANGE {queue} 0 -1")).await, owners[1..]);
    busy(waiting[1].0.attempt().await);
    assert_scores(&bench, deadlines, &owners[1..], now, &[5000]).await;
}

async fn server_ms(bench: &Bench) -> i64 {
    let (seconds, micros): (i64, i64) = bench.query("TIME").await;
    seconds * 1000 + micros / 1000
}

async fn assert_scores(bench: &Bench, key: &str, owners: &[String], since: i64, expected: &[i64]) {
    for (owner, expected) in owners.iter().zip(expected) {
        let score: f64 = bench.query(&format!("ZSCORE {key} {owner}")).await;
        let found = score as i64 - since;
        assert!((expected - 500..expected + 1500).contains(&found), "{found}, not {expected}");
    }
}

async fn waiters_of_redisson_are_ahead_of_later_ones() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let score = server_ms(&bench).await + 60_000;
    bench.send(&format!("RPUSH redisson_lock_queue:{{foo}} {A}")).await;
    bench.send(&format!("ZADD redisson_lock_timeout:{{foo}} {score} {A}")).await;
    let (mut try_claim, _) = claim(&store, "foo", Kind::Fair, 30_000, Wait::Never);
    busy(try_claim.attempt().await);
    assert_eq!(
        bench.query::<Vec<String>>("LRANGE redisson_lock_queue:{foo} 0 -1").await,
        [A],
        "the try is in the queue"
    );
    let (mut waiter, owner) = claim(&store, "foo", Kind::Fair, 30_000, Wait::Forever);
    let retry_in = busy(waiter.attempt().await);
    assert!(
        retry_in > Duration::from_secs(50),
        "the waiter retries before the waiter ahead may be discarded: {retry_in:?}"
    );
    assert_eq!(bench.query::<Vec<String>>("LRANGE redisson_lock_queue:{foo} 0 -1").await, [A, &owner]);
    // The waiter of Redisson takes the lock and releases it.
    bench.send("LPOP redisson_lock_queue:{foo}").await;
    bench.send(&format!("ZREM redisson_lock_timeout:{{foo}} {A}")).await;
    granted(waiter.attempt().await);
}

async fn a_prefix_is_redissons_name_mapper_and_databases_are_separate() {
    let Some(bench) = Bench::new().await else { return };
    bench.send("CONFIG SET notify-keyspace-events Egx").await;
    let locks = bench.locks("db=3&prefix=app:&keyspace_events=on").await;
    let held = locks.mutex("foo").lock().await.unwrap();
    for params in ["db=3", "prefix=app:", "db=3&prefix=other:"] {
        let other = bench.locks(params).await.mutex("foo").try_lock().await.unwrap();
        assert!(other.is_some(), "a lock of another database or prefix is excluded: {params}");
    }
    let listed = locks.list("").await.unwrap();
    assert_eq!(listed.iter().map(|lock| lock.name.as_str()).collect::<Vec<_>>(), ["foo"]);
    while bench.query::<(String, u64)>("PUBSUB NUMSUB __keyevent@3__:del").await.1 == 0 {
        tokio::task::yield_now().await;
    }
    let mut third = crate::common::raw(&format!("{}/3", bench.running.url())).await;
    let deleted: u32 = crate::common::parse_command("DEL app:foo").query_async(&mut third).await.unwrap();
    assert_eq!(deleted, 1, "the lock is not at the key of Redisson with this mapper and database");
    soon("the loss was not reported to the holder", held.lost()).await;
}

async fn a_lock_of_the_other_shape_is_refused_and_unchanged() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    for (fields, kinds, words) in [
        (vec![A, "1"], [Kind::Read, Kind::Write], "request `mutex` or `fair`"),
        (vec!["mode", "read", A, "1"], [Kind::Mutex, Kind::Fair], "request `read` or `write`"),
    ] {
        bench.send("DEL foo").await;
        bench.send(&format!("HSET foo {}", fields.join(" "))).await;
        let before = bench.hash("foo").await;
        for kind in kinds {
            let (mut claim, _) = claim(&store, "foo", kind, 30_000, Wait::Forever);
            match claim.attempt().await {
                Err(error @ Error::WrongKind { .. }) => assert!(error.to_string().contains(words), "{error}"),
                other => panic!("{kind}: {other:?}"),
            }
            claim.release().await.unwrap();
            assert_eq!(bench.hash("foo").await, before);
        }
    }
}
