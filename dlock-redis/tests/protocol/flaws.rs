//! Tests that dlock does not have the flaws of Redisson's locks. The README has the table of flaws.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use dlock_core::{
    Kind, LockOptions, Locks, LostReason, Wait,
    driver::{Claim, Renewal, Request, Store},
};
use parking_lot::Mutex;

use crate::common::{
    Bench, Subscription, busy, claim, connect, granted,
    relay::{Relay, Replies},
    soon,
};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        f1_no_client_sends_its_time_of_day,
        f1_a_live_waiter_is_judged_by_the_servers_clock,
        f2_a_waiter_behind_a_dead_head_does_not_spin,
        f3_a_dead_waiter_of_dlock_is_gone_after_its_ttl_and_a_live_one_keeps_its_place,
        f3_a_dead_waiter_of_dlock_that_was_alone_is_gone_after_its_ttl,
        f3_a_live_waiter_is_back_before_redisson_would_discard_it,
        f3_a_wait_that_is_dropped_leaves_the_queue,
        f4_neither_a_grant_nor_giving_up_evicts_anybody_whose_patience_is_shorter,
        f5_who_comes_after_a_dead_head_is_told,
        f5_releasing_an_expired_lock_is_an_error,
        f7_a_lost_lease_is_told,
        f8_an_attempt_that_is_sent_twice_is_one_hold,
        f8_an_attempt_whose_answer_is_lost_is_one_hold,
        f9_a_renewal_after_the_release_revives_nothing,
        f10_a_lock_that_cannot_be_renewed_keeps_no_other_from_it,
        f12_reading_inside_a_write_hold_keeps_it,
        f13_a_second_hold_with_a_lease_does_not_end_the_renewal,
        f14_a_downgrade_wakes_those_who_wait_to_read,
        f15_readers_do_not_overtake_a_waiting_writer,
        f16_a_reader_without_its_timeout_is_lost_and_says_so,
        f17_tokens_survive_the_loss_of_their_key,
        f17_a_token_is_below_what_redisson_can_return,
        f23_a_waiter_that_goes_passes_its_wake_up_on,
        f23_a_writer_that_goes_lets_all_readers_behind_it_in,
        f24_a_release_makes_one_waiter_of_a_client_ask,
        f28_all_waiters_of_a_client_share_one_connection,
        f30_a_read_released_inside_a_write_hold_leaves_its_ttl,
        f31_a_downgraded_hold_lasts_no_longer_than_its_ttl,
        f32_short_holds_leave_no_renewals_behind,
        f33_a_foreign_field_stops_neither_the_server_nor_a_release,
        f33_a_read_write_locks_hash_has_its_mode_and_its_owners_only,
        f34_a_mutex_that_is_released_wakes_who_waits_for_it_as_fair,
        the_cost_of_a_fair_hand_off_does_not_grow_with_the_number_of_waiters,
        a_fair_waiter_whose_client_died_leaves_no_key_for_ever,
        data_of_another_program_at_the_queues_key_does_not_fail_a_release,
        the_first_fair_waiter_is_woken_by_the_release_of_a_mutex_of_redisson,
        only_the_first_fair_waiter_subscribes_to_the_channel_of_a_mutex,
        a_mutex_may_overtake_fair_waiters,
    }
}

const QUEUE: &str = "redisson_lock_queue:{foo}";
const DEADLINES: &str = "redisson_lock_timeout:{foo}";

impl Bench {
    async fn now(&self) -> i64 {
        let (seconds, micros): (i64, i64) = self.query("TIME").await;
        seconds * 1000 + micros / 1000
    }

    /// Adds a waiter of Redisson to the fair queue.
    async fn queue(&self, owner: &str, deadline: i64) {
        self.send(&format!("RPUSH {QUEUE} {owner}")).await;
        self.send(&format!("ZADD {DEADLINES} {deadline} {owner}")).await;
    }

    async fn queued(&self) -> Vec<String> {
        self.query(&format!("LRANGE {QUEUE} 0 -1")).await
    }

    /// Waits until the reply to a command is this number.
    async fn until(&self, command: &str, number: usize) {
        while self.query::<usize>(command).await != number {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn f1_no_client_sends_its_time_of_day() {
    let Some(bench) = Bench::new().await else { return };
    let Some(server) = bench.running.own_server() else { return };
    let sent = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&sent);
    let relay = Relay::rewriting(server.address(), move |words| {
        // The last word of a script may be its deadline, which is a time of the server's own clock.
        let is_script = words.first().is_some_and(|word| word.starts_with("EVAL"));
        record.lock().extend_from_slice(&words[..words.len() - usize::from(is_script)]);
        words
    });
    let store = connect(&format!("redis://{}", relay.await.address)).await.unwrap();
    for kind in crate::common::KINDS {
        let (mut held, _) = claim(&store, "foo", *kind, 1500, Wait::Forever);
        granted(held.attempt().await);
        let rival = if *kind == Kind::Read { Kind::Write } else { *kind };
        let (mut waiter, _) = claim(&store, "foo", rival, 1500, Wait::Forever);
        busy(waiter.attempt().await);
        held.renew().await.unwrap();
        waiter.release().await.unwrap();
        held.release().await.unwrap();
    }
    let now = bench.now().await as f64;
    let sent = sent.lock();
    assert!(sent.iter().any(|word| word == "EVALSHA"), "the relay received no script");
    for number in sent.iter().filter_map(|word| word.parse::<f64>().ok()) {
        // The unit may be seconds, milliseconds or microseconds.
        let is_today = [0.001, 1.0, 1000.0].iter().any(|unit| (number / unit - now).abs() < 86_400_000.0);
        assert!(
            !is_today,
            "the client sends the time of day {number}, so its clock decides which waiter is dead"
        );
    }
}

async fn f1_a_live_waiter_is_judged_by_the_servers_clock() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    bench.queue("aaaa:1", bench.now().await + 60_000).await;
    let (mut ours, owner) = claim(&store, "foo", Kind::Fair, 30_000, Wait::Forever);
    busy(ours.attempt().await);
    assert_eq!(bench.queued().await, ["aaaa:1", &owner], "a live waiter was evicted");
    let score: f64 = bench.query(&format!("ZSCORE {DEADLINES} {owner}")).await;
    assert!(score as i64 > bench.now().await);
}

async fn f2_a_waiter_behind_a_dead_head_does_not_spin() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    bench.queue("dead:1", bench.now().await + 2000).await;
    let before = bench.calls("evalsha").await;
    let guard =
        soon("a dead head blocks the queue beyond its deadline", locks.fair("foo").lock().into_future())
            .await;
    drop(guard.unwrap());
    let calls = bench.calls("evalsha").await - before;
    assert!(calls < 15, "{calls} calls in two seconds");
}

async fn f3_a_dead_waiter_of_dlock_is_gone_after_its_ttl_and_a_live_one_keeps_its_place() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let (mut holder, _) = claim(&store, "foo", Kind::Fair, 60_000, Wait::Forever);
    granted(holder.attempt().await);
    let (mut dead, _) = claim(&store, "foo", Kind::Fair, 200, Wait::Forever);
    busy(dead.attempt().await);
    let (mut live, owner) = claim(&store, "foo", Kind::Fair, 60_000, Wait::Forever);
    busy(live.attempt().await);
    // The live waiter's deadline, which Redisson reads, has passed. Its heartbeat has not.
    bench.send(&format!("ZADD {DEADLINES} 1 {owner}")).await;
    tokio::time::sleep(Duration::from_millis(250)).await;
    let (mut last, behind) = claim(&store, "foo", Kind::Fair, 60_000, Wait::Forever);
    busy(last.attempt().await);
    assert_eq!(bench.queued().await, [&*owner, &behind], "a dead waiter stays, or a live one was removed");
    busy(live.attempt().await);
    assert_eq!(bench.queued().await, [&*owner, &behind], "a live waiter lost its place");
    let score: f64 = bench.query(&format!("ZSCORE {DEADLINES} {owner}")).await;
    assert!(score as i64 > bench.now().await + 200_000, "the waiter has not extended its deadline");
}

async fn f3_a_dead_waiter_of_dlock_that_was_alone_is_gone_after_its_ttl() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let (mut holder, _) = claim(&store, "foo", Kind::Fair, 60_000, Wait::Forever);
    granted(holder.attempt().await);
    let (mut dead, _) = claim(&store, "foo", Kind::Fair, 200, Wait::Forever);
    busy(dead.attempt().await);
    // No client sends a request until the dead waiter's heartbeat has expired.
    tokio::time::sleep(Duration::from_millis(300)).await;
    holder.release().await.unwrap();
    let (mut next, _) = claim(&store, "foo", Kind::Fair, 30_000, Wait::Never);
    granted(next.attempt().await);
}

async fn f3_a_live_waiter_is_back_before_redisson_would_discard_it() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("patience=900ms").await;
    let (mut holder, _) = claim(&store, "foo", Kind::Fair, 3000, Wait::Forever);
    granted(holder.attempt().await);
    let (mut ours, owner) = claim(&store, "foo", Kind::Fair, 60_000, Wait::Forever);
    busy(ours.attempt().await);
    // The holder's ttl is extended, and the waiter's first deadline approaches.
    bench.send("PEXPIRE foo 60000").await;
    tokio::time::sleep(Duration::from_millis(3500)).await;
    let retry_in = busy(ours.attempt().await);
    let score: f64 = bench.query(&format!("ZSCORE {DEADLINES} {owner}")).await;
    let left = score as i64 - bench.now().await;
    assert!((retry_in.as_millis() as i64) < left, "retries in {retry_in:?}, and is discarded in {left} ms");
}

async fn f3_a_wait_that_is_dropped_leaves_the_queue() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    let held = locks.fair("foo").lock().await.unwrap();
    tokio::time::timeout(Duration::from_millis(100), locks.fair("foo").lock())
        .await
        .expect_err("the lock is held");
    held.release().await.unwrap();
    locks.close().await;
    assert_eq!(bench.all_keys().await, ["redisson_lock_token:{foo}"]);
}

async fn f4_neither_a_grant_nor_giving_up_evicts_anybody_whose_patience_is_shorter() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let (mut holder, _) = claim(&store, "foo", Kind::Fair, 30_000, Wait::Forever);
    granted(holder.attempt().await);
    let (mut first, _) = claim(&store, "foo", Kind::Fair, 30_000, Wait::Forever);
    busy(first.attempt().await);
    let (mut second, _) = claim(&store, "foo", Kind::Fair, 30_000, Wait::Forever);
    busy(second.attempt().await);
    // This waiter has a short timeout. dlock's waiters have 300 seconds, by which Redisson would
    // shorten this waiter's deadline.
    bench.queue("aaaa:1", bench.now().await + 31_000).await;
    let assert_alive = async |cause| {
        let score: f64 = bench.query(&format!("ZSCORE {DEADLINES} aaaa:1")).await;
        assert!(
            score as i64 > bench.now().await + 25_000,
            "{cause}: the next call would evict a live waiter"
        );
    };
    first.release().await.unwrap();
    assert_alive("a waiter has left").await;
    holder.release().await.unwrap();
    granted(second.attempt().await);
    assert_alive("a waiter was granted").await;
}

async fn f5_who_comes_after_a_dead_head_is_told() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    bench.queue("dead:1", 1).await;
    bench.queue("aaaa:1", bench.now().await + 60_000).await;
    let mut messages = Subscription::to(bench.running.url(), "redisson_lock__channel:{foo}:aaaa:1").await;
    let (mut ours, _) = claim(&store, "foo", Kind::Fair, 30_000, Wait::Never);
    busy(ours.attempt().await);
    assert_eq!(messages.next().await, "0", "the next waiter was not notified that it is the first");
    bench.send(&format!("DEL {QUEUE} {DEADLINES}")).await;
    let (mut holder, _) = claim(&store, "foo", Kind::Fair, 30_000, Wait::Never);
    granted(holder.attempt().await);
    bench.queue("dead:1", 1).await;
    bench.queue("aaaa:1", bench.now().await + 60_000).await;
    holder.release().await.unwrap();
    assert_eq!(messages.next().await, "0", "only the dead head was notified of the release");
}

async fn f5_releasing_an_expired_lock_is_an_error() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    let held = locks.fair("foo").lock().lease(Duration::from_millis(50)).await.unwrap();
    soon("the lease does not end", held.lost()).await;
    assert!(held.release().await.is_err(), "the release of an expired lock succeeded");
}

async fn f7_a_lost_lease_is_told() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    let held = locks.mutex("foo").lock().ttl(Duration::from_secs(3)).await.unwrap();
    bench.send("DEL foo").await;
    let reason = soon("the loss was not reported to the holder", held.lost()).await;
    assert_eq!(reason, LostReason::Deleted, "the lock was lost by its deadline, not by the renewal");
}

/// Asserts that no hold of `foo` is counted twice.
async fn assert_counted_once(bench: &Bench) {
    let counts: Vec<String> = bench.query("HVALS foo").await;
    assert!(counts.iter().all(|count| ["1", "read", "write"].contains(&&**count)), "{counts:?}");
}

async fn f8_an_attempt_that_is_sent_twice_is_one_hold() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    for kind in crate::common::KINDS {
        let (mut claim, _) = claim(&store, "foo", *kind, 30_000, Wait::Forever);
        let first = granted(claim.attempt().await);
        assert_eq!(granted(claim.attempt().await), first, "{kind}: a second attempt drew another token");
        assert_counted_once(&bench).await;
        claim.release().await.unwrap();
        assert!(!bench.query::<bool>("EXISTS foo").await, "{kind}: one release is not enough");
    }
}

async fn f8_an_attempt_whose_answer_is_lost_is_one_hold() {
    let Some(bench) = Bench::new().await else { return };
    let Some(server) = bench.running.own_server() else { return };
    let relay = Relay::to(server.address()).await;
    let store = connect(&format!("redis://{}", relay.address)).await.unwrap();
    for kind in crate::common::KINDS {
        // A first call loads the script into the server.
        let (mut claim, _) = claim(&store, "foo", *kind, 30_000, Wait::Forever);
        granted(claim.attempt().await);
        claim.release().await.unwrap();
        let before = bench.calls("evalsha").await;
        relay.lose_reply();
        granted(claim.attempt().await);
        assert_eq!(bench.calls("evalsha").await - before, 2, "{kind}: the attempt was not sent again");
        assert_counted_once(&bench).await;
        claim.release().await.unwrap();
        assert!(!bench.query::<bool>("EXISTS foo").await, "{kind}: the hold was counted twice");
    }
}

async fn f9_a_renewal_after_the_release_revives_nothing() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    for kind in crate::common::KINDS {
        let (mut claim, _) = claim(&store, "foo", *kind, 1500, Wait::Never);
        granted(claim.attempt().await);
        claim.release().await.unwrap();
        assert_eq!(claim.renew().await.unwrap(), Renewal::Lost, "{kind}");
        assert!(!bench.query::<bool>("EXISTS foo").await, "{kind}");
    }
}

async fn f10_a_lock_that_cannot_be_renewed_keeps_no_other_from_it() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    let options = LockOptions::new().ttl(Duration::from_secs(3));
    let mut held = Vec::new();
    for number in 0..300 {
        held.push(locks.mutex(format!("foo{number}")).lock().ttl(Duration::from_secs(3)).await.unwrap());
    }
    let broken = locks.of(Kind::Mutex, "foo").lock(&options).await.unwrap();
    bench.send("SET foo precious").await;
    soon("a lock whose key has another type is not lost", broken.lost()).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(
        held.iter().all(|held| !held.is_lost()),
        "a key of another type has prevented the renewal of other locks"
    );
}

async fn f12_reading_inside_a_write_hold_keeps_it() {
    let Some(bench) = Bench::new().await else { return };
    let (a, b) = (bench.locks("").await, bench.locks("").await);
    let me = dlock_core::Owner::new();
    let pair = a.rwlock("foo");
    let writes = pair.write().owned_by(&me).lock().ttl(Duration::from_secs(2)).await.unwrap();
    pair.read().owned_by(&me).lock().await.unwrap().release().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!writes.is_lost(), "the release of the read hold has ended the renewal");
    assert!(
        b.rwlock("foo").read().try_lock().await.unwrap().is_none(),
        "another client reads beside a writer"
    );
}

async fn f13_a_second_hold_with_a_lease_does_not_end_the_renewal() {
    let Some(bench) = Bench::new().await else { return };
    let (a, b) = (bench.locks("").await, bench.locks("").await);
    let me = dlock_core::Owner::new();
    let mutex = a.mutex("foo").owned_by(&me);
    let outer = mutex.lock().ttl(Duration::from_secs(2)).await.unwrap();
    let inner = mutex.lock().lease(Duration::from_millis(100)).await.unwrap();
    drop(inner);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!outer.is_lost());
    assert!(b.mutex("foo").try_lock().await.unwrap().is_none(), "two clients hold the lock");
}

async fn f14_a_downgrade_wakes_those_who_wait_to_read() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    let writes = locks.rwlock("foo").write().lock().ttl(Duration::from_secs(600)).await.unwrap();
    let mut messages = Subscription::to(bench.running.url(), "redisson_rwlock:{foo}").await;
    let reads = writes.downgrade().await.unwrap();
    assert_eq!(messages.next().await, "1");
    drop(reads);
}

async fn f15_readers_do_not_overtake_a_waiting_writer() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let (mut reader, _) = claim(&store, "foo", Kind::Read, 30_000, Wait::Forever);
    granted(reader.attempt().await);
    let (mut writer, _) = claim(&store, "foo", Kind::Write, 30_000, Wait::Forever);
    busy(writer.attempt().await);
    let (mut late, _) = claim(&store, "foo", Kind::Read, 30_000, Wait::Forever);
    busy(late.attempt().await);
    reader.release().await.unwrap();
    granted(writer.attempt().await);
}

async fn f16_a_reader_without_its_timeout_is_lost_and_says_so() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let (mut reader, owner) = claim(&store, "foo", Kind::Read, 1500, Wait::Never);
    granted(reader.attempt().await);
    bench.send(&format!("DEL {{foo}}:{owner}:rwlock_timeout:1")).await;
    assert_eq!(
        reader.renew().await.unwrap(),
        Renewal::Lost,
        "the reader does not report the loss, and Redisson's next release would delete its hold"
    );
}

async fn f17_tokens_survive_the_loss_of_their_key() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let token = "redisson_lock_token:{foo}";
    let mut last = 0;
    // Before an attempt the key is missing, has a ttl, has an older token, has a token above the
    // clock, or has such a token and a ttl.
    for before in [
        "DEL redisson_lock_token:{foo}",
        "PEXPIRE redisson_lock_token:{foo} 1000000",
        "SET redisson_lock_token:{foo} 7",
        "SET redisson_lock_token:{foo} 9007199254740993",
        "PEXPIRE redisson_lock_token:{foo} 1000000",
    ] {
        bench.send(before).await;
        let (mut claim, _) = claim(&store, "foo", Kind::Mutex, 30_000, Wait::Never);
        let next = granted(claim.attempt().await);
        assert!(next > last, "{next} after {last}, after `{before}`");
        assert_eq!(bench.query::<u64>(&format!("GET {token}")).await, next);
        claim.release().await.unwrap();
        last = next;
    }
    assert!(last > 9_007_199_254_740_993, "a token above the clock does not grow");
}

async fn f17_a_token_is_below_what_redisson_can_return() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let (mut claim, _) = claim(&store, "foo", Kind::Mutex, 30_000, Wait::Never);
    assert!(granted(claim.attempt().await) < 1 << 53);
    let next: u64 = bench.query("INCR redisson_lock_token:{foo}").await;
    claim.release().await.unwrap();
    let (mut later, _) = crate::common::claim(&store, "foo", Kind::Mutex, 30_000, Wait::Never);
    assert!(granted(later.attempt().await) > next, "the token does not continue Redisson's counter");
}

async fn f23_a_waiter_that_goes_passes_its_wake_up_on() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    bench.send("HSET foo aaaa:1 1").await;
    let (mut first, _) = claim(&store, "foo", Kind::Mutex, 600_000, Wait::Forever);
    busy(first.attempt().await);
    let (mut second, _) = claim(&store, "foo", Kind::Mutex, 600_000, Wait::Forever);
    busy(second.attempt().await);
    bench.send("DEL foo").await;
    bench.send("PUBLISH redisson_lock__channel:{foo} 0").await;
    soon("the first waiter was not woken", first.changed()).await;
    // The woken waiter leaves before its next attempt.
    first.release().await.unwrap();
    soon("the wake-up was lost with the first waiter", second.changed()).await;
    granted(second.attempt().await);
}

async fn f23_a_writer_that_goes_lets_all_readers_behind_it_in() {
    let Some(bench) = Bench::new().await else { return };
    let Some(server) = bench.running.own_server() else { return };
    let relay = Relay::to(server.address()).await;
    let locks = bench.locks("").await;
    // A first release loads the script into the server.
    locks.rwlock("bar").read().lock().await.unwrap().release().await.unwrap();
    let held = locks.rwlock("foo").read().lock().await.unwrap();
    let pair = Locks::new(connect(&format!("redis://{}", relay.address)).await.unwrap()).rwlock("foo");
    let long = Duration::from_secs(600);
    let writer = tokio::spawn(pair.write().lock().ttl(long).into_future());
    bench.until("ZCARD dlock_rw_writers:{foo}", 1).await;
    let readers: Vec<_> = (0..3).map(|_| tokio::spawn(pair.read().lock().ttl(long).into_future())).collect();
    bench.until("ZCARD dlock_rw_readers:{foo}", readers.len()).await;
    // The message of the writer's release reaches the client before the reply to that release.
    relay.set_first(Replies::Hold);
    writer.abort();
    bench.until("EXISTS dlock_rw_writers:{foo}", 0).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    relay.set_first(Replies::Deliver);
    for reader in readers {
        drop(soon("a reader was not woken", reader).await.unwrap().unwrap());
    }
    held.release().await.unwrap();
}

async fn f24_a_release_makes_one_waiter_of_a_client_ask() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    let held = locks.mutex("foo").lock().ttl(Duration::from_secs(600)).await.unwrap();
    let before = bench.calls("evalsha").await;
    let waiters: Vec<_> = (0..50)
        .map(|_| tokio::spawn(locks.mutex("foo").lock().ttl(Duration::from_secs(600)).into_future()))
        .collect();
    // Each waiter makes one attempt, and the first of them one more after its subscription.
    while bench.calls("evalsha").await < before + 51 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let before = bench.calls("evalsha").await;
    held.release().await.unwrap();
    for waiter in waiters {
        soon("the lock was not handed over", waiter).await.unwrap().unwrap().release().await.unwrap();
    }
    let calls = bench.calls("evalsha").await - before;
    assert!(calls <= 1 + 50 * 3, "{calls} calls for 50 hand-offs");
}

async fn f28_all_waiters_of_a_client_share_one_connection() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    let mut held = Vec::new();
    let mut waiters = Vec::new();
    for number in 0..300 {
        let fair = locks.fair(format!("foo{number}"));
        held.push(fair.lock().await.unwrap());
        waiters.push(tokio::spawn(fair.lock().into_future()));
    }
    while bench.query::<Vec<String>>("PUBSUB CHANNELS *").await.len() < 300 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let clients: String = bench.query("CLIENT LIST").await;
    assert_eq!(
        clients.lines().count(),
        3,
        "not one for this test, one for commands and one for messages: {clients}"
    );
    drop(held);
    for waiter in waiters {
        drop(soon("a waiter was not woken", waiter).await.unwrap().unwrap());
    }
    locks.close().await;
    while !bench.query::<Vec<String>>("PUBSUB CHANNELS *").await.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn f30_a_read_released_inside_a_write_hold_leaves_its_ttl() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let (mut reader, owner) = claim(&store, "foo", Kind::Read, 30_000, Wait::Never);
    // The hash of a writer of Redisson that also reads.
    bench.send(&format!("HSET foo mode write aaaa:1:write 1 aaaa:1 1 {owner} 1")).await;
    bench.send("SET {foo}:aaaa:1:rwlock_timeout:1 1 PX 2000").await;
    bench.send("PEXPIRE foo 600000").await;
    reader.release().await.unwrap();
    assert!(bench.query::<i64>("PTTL foo").await > 500_000, "a read release has shortened the write hold");
}

async fn f31_a_downgraded_hold_lasts_no_longer_than_its_ttl() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let (mut writer, owner) = claim(&store, "foo", Kind::Write, 600_000, Wait::Never);
    granted(writer.attempt().await);
    bench.send("PEXPIRE foo 600000").await;
    granted(reader_of(&store, &owner, 1000).attempt().await);
    assert!(bench.query::<i64>("PTTL foo").await <= 1000, "writers would wait for a dead reader");
    let fields: BTreeMap<String, String> = bench.query("HGETALL foo").await;
    assert_eq!(fields.get("mode").map(String::as_str), Some("read"));
}

/// Creates a claim to read `foo` by the owner that writes it, which is a downgrade.
fn reader_of(store: &Store, owner: &str, ttl: u64) -> Box<dyn Claim> {
    let (name, id) = ("foo".parse().expect("a name"), uuid(owner.strip_suffix(":0").expect("an owner")));
    let (ttl, wait) = (Duration::from_millis(ttl), Wait::Never);
    store.backend.claim(Request::new(name, Kind::Read, ttl).id(id).wait(wait))
}

/// Parses an id.
fn uuid(text: &str) -> dlock_core::ClaimId {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("ASCII");
        u8::from_str_radix(pair, 16).expect("two hexadecimal digits")
    };
    let bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
    dlock_core::ClaimId::from_bytes(bytes.try_into().expect("sixteen bytes"))
}

async fn f32_short_holds_leave_no_renewals_behind() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    for _ in 0..50 {
        locks.mutex("foo").lock().ttl(Duration::from_secs(2)).await.unwrap().release().await.unwrap();
    }
    let before = bench.calls("evalsha").await;
    let held = locks.mutex("foo").lock().ttl(Duration::from_secs(2)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    held.release().await.unwrap();
    let calls = bench.calls("evalsha").await - before;
    assert!(calls < 12, "{calls} calls for one hold of three seconds");
}

async fn f33_a_foreign_field_stops_neither_the_server_nor_a_release() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let (mut reader, _) = claim(&store, "foo", Kind::Read, 30_000, Wait::Never);
    granted(reader.attempt().await);
    bench.send("HSET foo since 1763700000000").await;
    soon("the release loops up to a time of day", reader.release()).await.unwrap();
}

async fn f33_a_read_write_locks_hash_has_its_mode_and_its_owners_only() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let (mut writer, owner) = claim(&store, "foo", Kind::Write, 30_000, Wait::Never);
    granted(writer.attempt().await);
    let (mut waiter, other) = claim(&store, "foo", Kind::Read, 30_000, Wait::Forever);
    busy(waiter.attempt().await);
    assert_fields(&bench, &[("mode", "write"), (&format!("{owner}:write"), "1")]).await;
    let mut reader = reader_of(&store, &owner, 30_000);
    granted(reader.attempt().await);
    assert_fields(&bench, &[("mode", "read"), (&owner, "1")]).await;
    granted(waiter.attempt().await);
    waiter.renew().await.unwrap();
    assert_fields(&bench, &[("mode", "read"), (&owner, "1"), (&other, "1")]).await;
    reader.release().await.unwrap();
    assert_fields(&bench, &[("mode", "read"), (&other, "1")]).await;
}

/// Asserts that the hash `foo` has these fields and no others.
async fn assert_fields(bench: &Bench, expected: &[(&str, &str)]) {
    let fields: BTreeMap<String, String> = bench.query("HGETALL foo").await;
    let expected = expected.iter().map(|(field, value)| ((*field).to_owned(), (*value).to_owned())).collect();
    assert_eq!(fields, expected);
}

async fn f34_a_mutex_that_is_released_wakes_who_waits_for_it_as_fair() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    for (held_kind, waiting_kind) in [(Kind::Mutex, Kind::Fair), (Kind::Fair, Kind::Mutex)] {
        let options = LockOptions::new().ttl(Duration::from_secs(600));
        let held = locks.of(held_kind, "foo").lock(&options).await.unwrap();
        let lock = locks.of(waiting_kind, "foo");
        let waiter = tokio::spawn(async move { lock.lock(&options).await });
        while bench.query::<Vec<String>>("PUBSUB CHANNELS *").await.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        held.release().await.unwrap();
        soon("the waiter of the other kind was not woken", waiter)
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
        while !bench.query::<Vec<String>>("PUBSUB CHANNELS *").await.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn the_cost_of_a_fair_hand_off_does_not_grow_with_the_number_of_waiters() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let mut costs = Vec::new();
    for count in [10, 3000] {
        let (mut held, _) = claim(&store, "foo", Kind::Fair, 600_000, Wait::Forever);
        granted(held.attempt().await);
        let (mut next, _) = claim(&store, "foo", Kind::Fair, 600_000, Wait::Forever);
        busy(next.attempt().await);
        // The keys of the other waiters, as after their attempts.
        let (mut others, now) = (redis::pipe(), bench.now().await);
        for number in 0..count {
            let owner = format!("aaaa-{number}:0");
            others.rpush(QUEUE, &owner).ignore();
            others.zadd(DEADLINES, &owner, now + 600_000).ignore();
            others.zadd("dlock_fair_beats:{foo}", &owner, now + 600_000).ignore();
        }
        others.exec_async(&mut bench.raw.clone()).await.unwrap();
        bench.send("CONFIG RESETSTAT").await;
        held.release().await.unwrap();
        granted(next.attempt().await);
        let mut cost = 0;
        for command in ["zscore", "zincrby", "zadd", "zrem", "lrem", "zrange", "lrange"] {
            cost += bench.calls(command).await;
        }
        costs.push(cost);
        assert_eq!(bench.queued().await.len(), count, "waiters have left the queue");
        bench.send("FLUSHALL").await;
    }
    assert_eq!(costs[0], costs[1], "the scripts execute more commands with 3000 waiters than with 10");
}

async fn a_fair_waiter_whose_client_died_leaves_no_key_for_ever() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let (mut held, _) = claim(&store, "foo", Kind::Fair, 30_000, Wait::Forever);
    granted(held.attempt().await);
    let (mut waiter, _) = claim(&store, "foo", Kind::Fair, 30_000, Wait::Forever);
    busy(waiter.attempt().await);
    for key in [QUEUE, DEADLINES, "dlock_fair_beats:{foo}"] {
        assert!(bench.query::<i64>(&format!("PTTL {key}")).await > 0, "{key} does not expire");
    }
    // Redisson's waiters never renew these keys, and must stay in them while they live.
    bench.queue("aaaa:1", bench.now().await + 600_000).await;
    busy(waiter.attempt().await);
    for key in [QUEUE, DEADLINES] {
        assert_eq!(
            bench.query::<i64>(&format!("PTTL {key}")).await,
            -1,
            "{key} expires although a waiter of Redisson lives"
        );
    }
}

async fn data_of_another_program_at_the_queues_key_does_not_fail_a_release() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    for kind in [Kind::Mutex, Kind::Fair] {
        let (mut held, _) = claim(&store, "foo", kind, 30_000, Wait::Forever);
        granted(held.attempt().await);
        bench.send(&format!("SET {QUEUE} precious")).await;
        let released = held.release().await;
        assert!(matches!(released, Ok(dlock_core::driver::Release::Done)), "{kind}: {released:?}");
        assert!(!bench.query::<bool>("EXISTS foo").await, "{kind}: the lock is still held");
        assert_eq!(bench.query::<String>(&format!("GET {QUEUE}")).await, "precious");
        bench.send(&format!("DEL {QUEUE}")).await;
    }
}

async fn the_first_fair_waiter_is_woken_by_the_release_of_a_mutex_of_redisson() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    bench.send("HSET foo aaaa:1 1").await;
    let waiter = tokio::spawn(locks.fair("foo").lock().ttl(Duration::from_secs(600)).into_future());
    bench.wait_for_subscriber("redisson_lock__channel:{foo}").await;
    // Redisson's RLock does not know the queue.
    bench.send("DEL foo").await;
    bench.send("PUBLISH redisson_lock__channel:{foo} 0").await;
    drop(soon("the waiter was not woken", waiter).await.unwrap().unwrap());
}

async fn only_the_first_fair_waiter_subscribes_to_the_channel_of_a_mutex() {
    let Some(bench) = Bench::new().await else { return };
    bench.send("HSET foo aaaa:1 1").await;
    let stores = [bench.store("").await, bench.store("").await];
    let mut waiters = stores.map(|store| claim(&store, "foo", Kind::Fair, 600_000, Wait::Forever).0);
    for waiter in &mut waiters {
        busy(waiter.attempt().await);
    }
    let subscribers: (String, u64) = bench.query("PUBSUB NUMSUB redisson_lock__channel:{foo}").await;
    assert_eq!(subscribers.1, 1, "each release of a mutex would wake all fair waiters");
}

/// A limit that the documentation states. A mutex has no place in the queue.
async fn a_mutex_may_overtake_fair_waiters() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let (mut held, _) = claim(&store, "foo", Kind::Fair, 30_000, Wait::Never);
    granted(held.attempt().await);
    let (mut waiter, owner) = claim(&store, "foo", Kind::Fair, 600_000, Wait::Forever);
    busy(waiter.attempt().await);
    held.release().await.unwrap();
    let (mut mutex, _) = claim(&store, "foo", Kind::Mutex, 30_000, Wait::Never);
    granted(mutex.attempt().await);
    assert_eq!(bench.queued().await, [owner], "the waiter has left the queue");
    busy(waiter.attempt().await);
    mutex.release().await.unwrap();
    granted(waiter.attempt().await);
}
