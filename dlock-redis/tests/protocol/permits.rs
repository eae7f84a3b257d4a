//! Tests of the keys of permits, of Redisson's scripts beside them, and that no permit is lost.

use std::time::Duration;

use dlock_core::{
    DistributedLock, Error, Kind, LockName, Wait,
    driver::{Claim, Release, Renewal, Request, Store},
};

use crate::common::{Bench, Subscription, busy, claim, granted, soon};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        holders_and_waiters_are_in_one_queue_and_leave_nothing,
        a_renewal_keeps_all_keys_and_creates_nothing,
        a_permit_that_is_held_alone_is_a_field_of_the_lock_and_leaves_nothing,
        the_only_holder_keeps_its_token_and_its_expiry_when_another_claim_arrives,
        redisson_finds_the_lock_held_while_the_queue_is_not_empty,
        the_release_of_the_last_permit_wakes_waiters_of_redisson,
        a_semaphore_and_every_other_kind_refuse_each_other,
        a_holder_whose_lock_was_taken_never_holds_its_permit_again,
        f20_a_dead_holders_permit_is_free_after_its_ttl,
        a_free_permit_costs_one_command_and_its_release_another,
        the_release_of_a_permit_wakes_one_waiter,
        a_permit_may_overtake_waiters_of_other_kinds,
        the_cost_of_a_hand_off_of_a_permit_does_not_grow_with_the_number_of_waiters,
    }
}

const QUEUE: &str = "dlock_permit_queue:{foo}";
const BEATS: &str = "dlock_permit_beats:{foo}";
const TOKEN: &str = "redisson_lock_token:{foo}";

/// Creates a claim without the engine. Returns it with its name on the server.
fn permit(store: &Store, limit: u32, ttl: u64) -> (Box<dyn Claim>, String) {
    let (name, ttl) = (LockName::new("foo").expect("legal"), Duration::from_millis(ttl));
    let request = Request::new(name, Kind::Permit, ttl).wait(Wait::Forever);
    let id = request.id;
    (store.backend.claim(request.limit(limit.try_into().expect("not zero"))), format!("{id}:0/{limit}"))
}

async fn holders_and_waiters_are_in_one_queue_and_leave_nothing() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let ((mut a, a_entry), (mut b, b_entry)) = (permit(&store, 1, 30_000), permit(&store, 1, 30_000));
    let token = granted(a.attempt().await);
    busy(b.attempt().await);
    assert_eq!(bench.all_keys().await, [BEATS, QUEUE, "foo", TOKEN]);
    assert_eq!(bench.query::<Vec<String>>("HGETALL foo").await, ["mode", "permit"]);
    assert_eq!(bench.query::<Vec<String>>(&format!("ZRANGE {QUEUE} 0 -1")).await, [a_entry.clone(), b_entry]);
    assert_eq!(bench.query::<u64>(&format!("ZSCORE {QUEUE} {a_entry}")).await, token);
    for key in ["foo", QUEUE, BEATS] {
        let left: i64 = bench.query(&format!("PTTL {key}")).await;
        assert!(
            (25_000..=30_000).contains(&left),
            "if all clients die, {key} expires in {left} ms, not with their ttl"
        );
    }
    assert_eq!(granted(a.attempt().await), token, "a second attempt is another grant");
    assert_eq!(a.release().await.unwrap(), Release::Done);
    assert!(granted(b.attempt().await) > token);
    assert_eq!(b.release().await.unwrap(), Release::Done);
    assert_eq!(b.release().await.unwrap(), Release::Gone);
    assert_eq!(bench.all_keys().await, [TOKEN]);
}

async fn a_renewal_keeps_all_keys_and_creates_nothing() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let [(mut a, a_entry), (mut b, _), (mut c, _)] = [(); 3].map(|()| permit(&store, 2, 30_000));
    granted(a.attempt().await);
    granted(c.attempt().await);
    for key in ["foo", QUEUE, BEATS] {
        bench.send(&format!("PEXPIRE {key} 2000")).await;
    }
    assert!(matches!(a.renew().await.unwrap(), Renewal::Renewed { .. }));
    for key in ["foo", QUEUE, BEATS] {
        let left: i64 = bench.query(&format!("PTTL {key}")).await;
        assert!(left > 20_000, "{key} expires before the hold, in {left} ms");
    }
    assert_eq!(b.renew().await.unwrap(), Renewal::Lost, "a claim without an attempt was renewed");
    // The holder is dead but not removed yet. A renewal must not revive it beside its successor.
    bench.send(&format!("ZADD {BEATS} 1 {a_entry}")).await;
    assert_eq!(a.renew().await.unwrap(), Renewal::Lost);
    granted(b.attempt().await);
    assert_eq!(bench.query::<u64>(&format!("ZCARD {QUEUE}")).await, 2, "the dead holder was not removed");
    for mut claim in [b, c] {
        claim.release().await.unwrap();
    }
}

async fn a_permit_that_is_held_alone_is_a_field_of_the_lock_and_leaves_nothing() {
    let Some(bench) = Bench::new().await else { return };
    let (store, locks) = (bench.store("").await, bench.locks("").await);
    let (mut a, a_entry) = permit(&store, 3, 30_000);
    let token = granted(a.attempt().await);
    assert_eq!(bench.all_keys().await, ["foo", TOKEN]);
    assert_eq!(
        bench.query::<Vec<String>>("HGETALL foo").await,
        ["mode", "permit", &a_entry, &token.to_string()],
        "the hash is not as permit.lua describes it"
    );
    bench.send("PEXPIRE foo 2000").await;
    assert!(matches!(a.renew().await.unwrap(), Renewal::Renewed { .. }));
    let left: i64 = bench.query("PTTL foo").await;
    assert!(
        (25_000..=30_000).contains(&left),
        "the lock expires in {left} ms although its holder has renewed"
    );
    let state = locks.inspect("foo").await.unwrap().expect("the lock is held");
    assert_eq!((state.holders.len(), state.queue.len()), (1, 0), "{state:?}");
    assert!(a_entry.starts_with(&state.holders[0].id), "{a_entry} is not {state:?}");
    assert_eq!(state.holders[0].token.map(|token| token.get()), Some(token));
    assert!(state.holders[0].ttl_left > Some(Duration::from_secs(20)), "{state:?}");
    assert_eq!(a.release().await.unwrap(), Release::Done);
    assert_eq!(a.release().await.unwrap(), Release::Gone);
    assert_eq!(bench.all_keys().await, [TOKEN]);
    let again = granted(a.attempt().await);
    assert!(again > token);
    assert_eq!(granted(a.attempt().await), again, "a second attempt is another grant");
    assert!(locks.force_release("foo").await.unwrap(), "the holder was not removed");
    assert_eq!(a.renew().await.unwrap(), Renewal::Lost);
    assert_eq!(bench.query::<u64>("EXISTS foo").await, 0);
    granted(a.attempt().await);
    assert!(locks.force_release("foo").await.unwrap(), "the only holder was not removed");
    assert_eq!(a.renew().await.unwrap(), Renewal::Lost);
    granted(a.attempt().await);
    // Another program deletes the lock's key, and Redisson takes the lock as a mutex.
    bench.send("DEL foo").await;
    bench.send("HSET foo aaaa:1 1").await;
    assert_eq!(a.renew().await.unwrap(), Renewal::Lost);
    assert_eq!(a.release().await.unwrap(), Release::Gone);
    assert_eq!(bench.query::<Vec<String>>("HGETALL foo").await, ["aaaa:1", "1"]);
}

async fn the_only_holder_keeps_its_token_and_its_expiry_when_another_claim_arrives() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let ((mut a, a_entry), (mut b, b_entry)) = (permit(&store, 1, 30_000), permit(&store, 1, 60_000));
    let token = granted(a.attempt().await);
    bench.send("PEXPIRE foo 20000").await;
    let retry = busy(b.attempt().await);
    assert!(
        (Duration::from_secs(10)..=Duration::from_secs(20)).contains(&retry),
        "the waiter retries in {retry:?}, not when the holder may be dead"
    );
    assert_eq!(bench.query::<Vec<String>>("HGETALL foo").await, ["mode", "permit"]);
    assert_eq!(bench.query::<Vec<String>>(&format!("ZRANGE {QUEUE} 0 -1")).await, [a_entry.clone(), b_entry]);
    assert_eq!(bench.query::<u64>(&format!("ZSCORE {QUEUE} {a_entry}")).await, token);
    for key in ["foo", QUEUE, BEATS] {
        let left: i64 = bench.query(&format!("PTTL {key}")).await;
        assert!((50_000..=60_000).contains(&left), "{key} expires in {left} ms, not with the longest claim");
    }
    assert!(matches!(a.renew().await.unwrap(), Renewal::Renewed { .. }));
    assert_eq!(granted(a.attempt().await), token);
    assert_eq!(a.release().await.unwrap(), Release::Done);
    assert!(granted(b.attempt().await) > token);
    assert_eq!(b.release().await.unwrap(), Release::Done);
    assert_eq!(bench.all_keys().await, [TOKEN]);
}

/// The conditions of Redisson's scripts. Each script changes the lock only if its condition is met.
const REDISSON: [(&str, &str); 4] = [
    (
        "RLock",
        "if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
            redis.call('hincrby', KEYS[1], ARGV[1], 1) return -7 end return redis.call('pttl', KEYS[1])",
    ),
    (
        "RReadLock",
        "local mode = redis.call('hget', KEYS[1], 'mode')
         if mode == false then redis.call('hset', KEYS[1], 'mode', 'read') return -7 end
         if mode == 'read' or (mode == 'write' and redis.call('hexists', KEYS[1], ARGV[1] .. ':write') == 1) then
            return -7 end return redis.call('pttl', KEYS[1])",
    ),
    (
        "RWriteLock",
        "local mode = redis.call('hget', KEYS[1], 'mode')
         if mode == false then redis.call('hset', KEYS[1], 'mode', 'write') return -7 end
         if mode == 'write' and redis.call('hexists', KEYS[1], ARGV[1]) == 1 then return -7 end
         return redis.call('pttl', KEYS[1])",
    ),
    (
        "the unlocks",
        "local mode = redis.call('hget', KEYS[1], 'mode')
         if mode == false or mode == 'write' or mode == 'read' or redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
            redis.call('del', KEYS[1]) return -7 end return redis.call('pttl', KEYS[1])",
    ),
];

async fn redisson_finds_the_lock_held_while_the_queue_is_not_empty() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let ((mut a, _), (mut b, _)) = (permit(&store, 1, 30_000), permit(&store, 1, 30_000));
    for state in ["a single holder", "a holder and a waiter", "a former waiter"] {
        match state {
            "a single holder" => assert!(granted(a.attempt().await) > 0),
            "a former waiter" => assert_eq!(a.release().await.unwrap(), Release::Done),
            _ => assert!(!busy(b.attempt().await).is_zero()),
        }
        let before: Vec<String> = bench.query("HGETALL foo").await;
        assert_eq!(before[..2], ["mode", "permit"]);
        for (kind, script) in REDISSON {
            let mut eval = redis::cmd("EVAL");
            eval.arg(script).arg(1).arg("foo").arg("aaaa:1");
            let reply: i64 = eval.query_async(&mut bench.raw.clone()).await.unwrap();
            assert!(reply > 0, "{kind} gets {reply} instead of the ttl, with {state}");
        }
        assert_eq!(bench.query::<Vec<String>>("HGETALL foo").await, before);
    }
    b.release().await.unwrap();
    assert_eq!(bench.query::<u64>("EXISTS foo").await, 0);
}

async fn the_release_of_the_last_permit_wakes_waiters_of_redisson() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    bench.send("RPUSH redisson_lock_queue:{foo} aaaa:1").await;
    let mut subscriptions = Vec::new();
    for channel in
        ["redisson_lock__channel:{foo}", "redisson_lock__channel:{foo}:aaaa:1", "redisson_rwlock:{foo}"]
    {
        subscriptions.push(Subscription::to(bench.running.url(), channel).await);
    }
    for holders in [1, 2] {
        let mut held: Vec<_> = (0..holders).map(|_| permit(&store, 2, 30_000).0).collect();
        for claim in &mut held {
            granted(claim.attempt().await);
        }
        for mut claim in held.drain(1..) {
            claim.release().await.unwrap();
        }
        assert!(subscriptions[0].is_silent(&bench).await, "one permit is still held");
        held[0].release().await.unwrap();
        for (messages, payloads) in subscriptions.iter_mut().zip([&["0"][..], &["0"], &["1", "0"]]) {
            for payload in payloads {
                // The other subscriptions have received the `end` of the check for silence too.
                let mut message = messages.next().await;
                while message == "end" {
                    message = messages.next().await;
                }
                assert_eq!(message, *payload, "with {holders} holders");
            }
        }
    }
}

async fn a_semaphore_and_every_other_kind_refuse_each_other() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    let pool = locks.semaphore("foo", 2);
    let refused = |error: &Error, words: &str| {
        assert!(matches!(error, Error::WrongKind { .. }) && error.to_string().contains(words), "{error}");
    };
    for kind in crate::common::KINDS {
        let other = locks.of(*kind, "foo");
        let held = pool.acquire().await.unwrap();
        refused(&other.lock(&Default::default()).await.expect_err("a permit is held"), "semaphore");
        assert_eq!(bench.query::<Vec<String>>("HGETALL foo").await[..2], ["mode", "permit"]);
        held.release().await.unwrap();
        let held = other.lock(&Default::default()).await.unwrap();
        refused(&pool.acquire().await.expect_err("another kind is held"), "; request");
        held.release().await.unwrap();
    }
    bench.send("SET foo bar").await;
    refused(&pool.acquire().await.expect_err("the key is not a lock"), "other data");
    assert_eq!(bench.query::<String>("GET foo").await, "bar");
}

/// Another program deletes the lock's key, and Redisson takes the lock as a mutex.
async fn a_holder_whose_lock_was_taken_never_holds_its_permit_again() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let claims = [(); 3].map(|()| permit(&store, 2, 30_000).0);
    let [mut a, mut b, mut waiting] = claims;
    granted(a.attempt().await);
    let before = granted(b.attempt().await);
    busy(waiting.attempt().await);
    bench.send("DEL foo").await;
    assert_eq!(a.renew().await.unwrap(), Renewal::Lost);
    bench.send("HSET foo aaaa:1 1").await;
    assert_eq!(a.renew().await.unwrap(), Renewal::Lost);
    let taken: u64 = bench.query(&format!("INCR {TOKEN}")).await;
    assert!(taken > before);
    let (mut newcomer, _) = permit(&store, 2, 30_000);
    assert!(matches!(newcomer.attempt().await, Err(Error::WrongKind { .. })), "Redisson holds it");
    bench.send("DEL foo").await;
    assert!(granted(waiting.attempt().await) > taken, "the tokens do not grow");
    granted(newcomer.attempt().await);
    assert_eq!(a.renew().await.unwrap(), Renewal::Lost, "a lost permit was revived beside two other holders");
    assert_eq!(b.renew().await.unwrap(), Renewal::Lost, "a lost permit was revived beside two other holders");
    assert_eq!(b.release().await.unwrap(), Release::Gone);
    for mut claim in [waiting, newcomer] {
        assert_eq!(claim.release().await.unwrap(), Release::Done);
    }
    assert_eq!(bench.all_keys().await, [TOKEN]);
}

/// Redisson's semaphore is a counter, so a holder that dies keeps its permit. dlock has no counter.
async fn f20_a_dead_holders_permit_is_free_after_its_ttl() {
    let Some(bench) = Bench::new().await else { return };
    let (store, locks) = (bench.store("").await, bench.locks("").await);
    let mut dead: Vec<_> = (0..4).map(|_| permit(&store, 4, 600).0).collect();
    for claim in &mut dead {
        granted(claim.attempt().await);
    }
    let pool = locks.semaphore("foo", 4);
    assert!(pool.try_acquire().await.unwrap().is_none(), "granted beside four holders");
    // All four permits are free at once (F21: not one after the other).
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(soon("a permit was lost with its holder", pool.lock(&Default::default())).await.unwrap());
    }
    assert!(pool.try_acquire().await.unwrap().is_none(), "granted beside four holders");
}

async fn a_free_permit_costs_one_command_and_its_release_another() {
    let Some(bench) = Bench::new().await else { return };
    let pool = bench.locks("").await.semaphore("foo", 2);
    // This loads the scripts into the server.
    pool.acquire().await.unwrap().release().await.unwrap();
    let before = bench.calls("evalsha").await;
    for _ in 0..10 {
        pool.acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(bench.calls("evalsha").await - before, 20);
}

async fn the_release_of_a_permit_wakes_one_waiter() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let claims = [(); 4].map(|()| permit(&store, 1, 30_000));
    let [(mut held, _), (mut first, first_entry), (mut second, second_entry), (mut third, third_entry)] =
        claims;
    granted(held.attempt().await);
    for claim in [&mut first, &mut second, &mut third] {
        busy(claim.attempt().await);
    }
    let channel = |claim: &str| format!("redisson_lock__channel:{{foo}}:{}", claim.trim_end_matches("/1"));
    let mut subscriptions = Vec::new();
    for claim in [&first_entry, &second_entry, &third_entry] {
        subscriptions.push(Subscription::to(bench.running.url(), &channel(claim)).await);
    }
    second.release().await.unwrap();
    held.release().await.unwrap();
    assert_eq!(subscriptions[0].next().await, "0");
    assert!(subscriptions[2].is_silent(&bench).await, "the third waiter was woken before its turn");
    granted(first.attempt().await);
    for mut claim in [first, third] {
        claim.release().await.unwrap();
    }
}

/// A limit that the README documents.
async fn a_permit_may_overtake_waiters_of_other_kinds() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    for kind in crate::common::KINDS {
        // A reader excludes a writer, not another reader.
        let wanted = if *kind == Kind::Read { Kind::Write } else { *kind };
        let (mut held, _) = claim(&store, "foo", *kind, 30_000, Wait::Never);
        granted(held.attempt().await);
        let (mut waiter, _) = claim(&store, "foo", wanted, 600_000, Wait::Forever);
        busy(waiter.attempt().await);
        held.release().await.unwrap();
        let (mut taken, _) = permit(&store, 1, 30_000);
        granted(taken.attempt().await);
        let refused = waiter.attempt().await;
        assert!(matches!(refused, Err(Error::WrongKind { .. })), "{wanted}: {refused:?}");
        taken.release().await.unwrap();
        granted(waiter.attempt().await);
        waiter.release().await.unwrap();
    }
}

async fn the_cost_of_a_hand_off_of_a_permit_does_not_grow_with_the_number_of_waiters() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let mut costs = Vec::new();
    for count in [10, 1000] {
        let ((mut held, _), (mut next, _)) = (permit(&store, 1, 600_000), permit(&store, 1, 600_000));
        granted(held.attempt().await);
        busy(next.attempt().await);
        // The keys of the other waiters, as after their attempts.
        let (mut others, last) = (redis::pipe(), bench.query::<u64>(&format!("GET {TOKEN}")).await);
        for number in 0..count {
            let entry = format!("aaaa-{number}:0/1");
            others.zadd(QUEUE, &entry, last + 1 + number).ignore();
            others.zadd(BEATS, &entry, last / 1000 + 600_000).ignore();
        }
        others.exec_async(&mut bench.raw.clone()).await.unwrap();
        bench.send("CONFIG RESETSTAT").await;
        held.release().await.unwrap();
        granted(next.attempt().await);
        let mut cost = 0;
        for command in [
            "zrange",
            "zrangebyscore",
            "zrank",
            "zscore",
            "zcard",
            "zadd",
            "zrem",
            "exists",
            "hget",
            "hlen",
            "pttl",
            "pexpire",
            "publish",
        ] {
            cost += bench.calls(command).await;
        }
        costs.push(cost);
        let queued: u64 = bench.query(&format!("ZCARD {QUEUE}")).await;
        assert_eq!(queued, count + 1, "waiters have left the queue");
        bench.send("FLUSHALL").await;
    }
    assert_eq!(costs[0], costs[1], "the scripts execute more commands with 1000 waiters than with 10");
}
