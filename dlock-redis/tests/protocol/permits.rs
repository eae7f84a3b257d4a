//! Permits: what they are on the server, how Redisson's scripts see them, and that none leaks.

use std::time::Duration;

use dlock_core::{
    DistributedLock, Error, Kind, LockName, Wait,
    driver::{Claim, Release, Renewal, Request, Store},
};

use crate::common::{Bench, Subscription, busy, granted, soon};

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
    }
}

const QUEUE: &str = "dlock_permit_queue:{foo}";
const BEATS: &str = "dlock_permit_beats:{foo}";
const TOKEN: &str = "redisson_lock_token:{foo}";

/// A claim without the engine, and its name on the server.
fn permit(store: &Store, limit: u32, ttl: u64) -> (Box<dyn Claim>, String) {
    let (name, ttl) = (LockName::new("foo").expect("legal"), Duration::from_millis(ttl));
    let request = Request::new(name, Kind::Permit, ttl).wait(Wait::Forever);
    let id = request.id;
    (store.backend.claim(request.limit(limit.try_into().expect("not zero"))), format!("{id}:0/{limit}"))
}

async fn holders_and_waiters_are_in_one_queue_and_leave_nothing() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let ((mut a, one), (mut b, other)) = (permit(&store, 1, 30_000), permit(&store, 1, 30_000));
    let token = granted(a.attempt().await);
    busy(b.attempt().await);
    assert_eq!(bench.all_keys().await, [BEATS, QUEUE, "foo", TOKEN]);
    assert_eq!(bench.query::<Vec<String>>("HGETALL foo").await, ["mode", "permit"]);
    assert_eq!(bench.query::<Vec<String>>(&format!("ZRANGE {QUEUE} 0 -1")).await, [one.clone(), other]);
    assert_eq!(bench.query::<u64>(&format!("ZSCORE {QUEUE} {one}")).await, token);
    for key in ["foo", QUEUE, BEATS] {
        let left: i64 = bench.query(&format!("PTTL {key}")).await;
        assert!(
            (25_000..=30_000).contains(&left),
            "if all clients die, {key} ends with them, not after {left}"
        );
    }
    assert_eq!(granted(a.attempt().await), token, "asking again is the same grant");
    assert_eq!(a.release().await.unwrap(), Release::Done);
    assert!(granted(b.attempt().await) > token);
    assert_eq!(b.release().await.unwrap(), Release::Done);
    assert_eq!(b.release().await.unwrap(), Release::Gone);
    assert_eq!(bench.all_keys().await, [TOKEN]);
}

async fn a_renewal_keeps_all_keys_and_creates_nothing() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let [(mut a, one), (mut b, _), (mut c, _)] = [(); 3].map(|()| permit(&store, 2, 30_000));
    granted(a.attempt().await);
    granted(c.attempt().await);
    for key in ["foo", QUEUE, BEATS] {
        bench.send(&format!("PEXPIRE {key} 2000")).await;
    }
    assert!(matches!(a.renew().await.unwrap(), Renewal::Renewed { .. }));
    for key in ["foo", QUEUE, BEATS] {
        let left: i64 = bench.query(&format!("PTTL {key}")).await;
        assert!(left > 20_000, "{key} ends before the hold, in {left} ms");
    }
    assert_eq!(b.renew().await.unwrap(), Renewal::Lost, "it was never there");
    // Dead, though not yet removed: a renewal must not bring it back beside its successor.
    bench.send(&format!("ZADD {BEATS} 1 {one}")).await;
    assert_eq!(a.renew().await.unwrap(), Renewal::Lost);
    granted(b.attempt().await);
    assert_eq!(bench.query::<u64>(&format!("ZCARD {QUEUE}")).await, 2, "the dead one is gone");
    for mut claim in [b, c] {
        claim.release().await.unwrap();
    }
}

async fn a_permit_that_is_held_alone_is_a_field_of_the_lock_and_leaves_nothing() {
    let Some(bench) = Bench::new().await else { return };
    let (store, locks) = (bench.store("").await, bench.locks("").await);
    let (mut a, one) = permit(&store, 3, 30_000);
    let token = granted(a.attempt().await);
    assert_eq!(bench.all_keys().await, ["foo", TOKEN]);
    assert_eq!(
        bench.query::<Vec<String>>("HGETALL foo").await,
        ["mode", "permit", &one, &token.to_string()],
        "not as permit.lua says"
    );
    bench.send("PEXPIRE foo 2000").await;
    assert!(matches!(a.renew().await.unwrap(), Renewal::Renewed { .. }));
    let left: i64 = bench.query("PTTL foo").await;
    assert!((25_000..=30_000).contains(&left), "the lock ends in {left} ms, and its holder has renewed");
    let state = locks.inspect("foo").await.unwrap().expect("it is held");
    assert_eq!((state.holders.len(), state.queue.len()), (1, 0), "{state:?}");
    assert!(one.starts_with(&state.holders[0].id), "{one} is not {state:?}");
    assert_eq!(state.holders[0].token.map(|token| token.get()), Some(token));
    assert!(state.holders[0].ttl_left > Some(Duration::from_secs(20)), "{state:?}");
    assert_eq!(a.release().await.unwrap(), Release::Done);
    assert_eq!(a.release().await.unwrap(), Release::Gone);
    assert_eq!(bench.all_keys().await, [TOKEN]);
    let again = granted(a.attempt().await);
    assert!(again > token);
    assert_eq!(granted(a.attempt().await), again, "asking again is the same grant");
    assert!(locks.force_release("foo").await.unwrap(), "one held it");
    assert_eq!(a.renew().await.unwrap(), Renewal::Lost);
    assert_eq!(bench.query::<u64>("EXISTS foo").await, 0);
    granted(a.attempt().await);
    assert!(locks.force_release("foo").await.unwrap(), "one held it, alone");
    assert_eq!(a.renew().await.unwrap(), Renewal::Lost);
    granted(a.attempt().await);
    // Somebody deletes the lock's key, and Redisson takes it as a mutex.
    bench.send("DEL foo").await;
    bench.send("HSET foo aaaa:1 1").await;
    assert_eq!(a.renew().await.unwrap(), Renewal::Lost);
    assert_eq!(a.release().await.unwrap(), Release::Gone);
    assert_eq!(bench.query::<Vec<String>>("HGETALL foo").await, ["aaaa:1", "1"]);
}

async fn the_only_holder_keeps_its_token_and_its_expiry_when_another_claim_arrives() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let ((mut a, one), (mut b, other)) = (permit(&store, 1, 30_000), permit(&store, 1, 60_000));
    let token = granted(a.attempt().await);
    bench.send("PEXPIRE foo 20000").await;
    let retry = busy(b.attempt().await);
    assert!(
        (Duration::from_secs(10)..=Duration::from_secs(20)).contains(&retry),
        "who waits asks when the holder is dead, not after {retry:?}"
    );
    assert_eq!(bench.query::<Vec<String>>("HGETALL foo").await, ["mode", "permit"]);
    assert_eq!(bench.query::<Vec<String>>(&format!("ZRANGE {QUEUE} 0 -1")).await, [one.clone(), other]);
    assert_eq!(bench.query::<u64>(&format!("ZSCORE {QUEUE} {one}")).await, token);
    for key in ["foo", QUEUE, BEATS] {
        let left: i64 = bench.query(&format!("PTTL {key}")).await;
        assert!((50_000..=60_000).contains(&left), "{key} ends after {left} ms, not with the longest claim");
    }
    assert!(matches!(a.renew().await.unwrap(), Renewal::Renewed { .. }));
    assert_eq!(granted(a.attempt().await), token);
    assert_eq!(a.release().await.unwrap(), Release::Done);
    assert!(granted(b.attempt().await) > token);
    assert_eq!(b.release().await.unwrap(), Release::Done);
    assert_eq!(bench.all_keys().await, [TOKEN]);
}

/// What each of Redisson's acquiring scripts looks at, by the state that it finds, with no other effect than its own.
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
    for state in ["one who is alone", "one who holds and one who waits", "one who waited"] {
        match state {
            "one who is alone" => assert!(granted(a.attempt().await) > 0),
            "one who waited" => assert_eq!(a.release().await.unwrap(), Release::Done),
            _ => assert!(!busy(b.attempt().await).is_zero()),
        }
        let before: Vec<String> = bench.query("HGETALL foo").await;
        assert_eq!(before[..2], ["mode", "permit"]);
        for (what, script) in REDISSON {
            let mut eval = redis::cmd("EVAL");
            eval.arg(script).arg(1).arg("foo").arg("aaaa:1");
            let answer: i64 = eval.query_async(&mut bench.raw.clone()).await.unwrap();
            assert!(answer > 0, "{what} does not wait for the ttl, but is told {answer}, with {state}");
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
                // The others have heard the end of the silence too.
                let mut message = messages.next().await;
                while message == "end" {
                    message = messages.next().await;
                }
                assert_eq!(message, *payload, "of {holders}");
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
        refused(&pool.acquire().await.expect_err("another kind is held"), "ask for");
        held.release().await.unwrap();
    }
    bench.send("SET foo bar").await;
    refused(&pool.acquire().await.expect_err("no lock"), "other data");
    assert_eq!(bench.query::<String>("GET foo").await, "bar");
}

/// Somebody deletes the lock's key, and Redisson takes it as a mutex.
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
    assert!(granted(waiting.attempt().await) > taken, "a token went back");
    granted(newcomer.attempt().await);
    assert_eq!(a.renew().await.unwrap(), Renewal::Lost, "it comes back to life beside two others");
    assert_eq!(b.renew().await.unwrap(), Renewal::Lost, "it comes back to life beside two others");
    assert_eq!(b.release().await.unwrap(), Release::Gone);
    for mut claim in [waiting, newcomer] {
        assert_eq!(claim.release().await.unwrap(), Release::Done);
    }
    assert_eq!(bench.all_keys().await, [TOKEN]);
}

/// Redisson's semaphore counts: a holder that dies takes its permit along. Here nothing counts.
async fn f20_a_dead_holders_permit_is_free_after_its_ttl() {
    let Some(bench) = Bench::new().await else { return };
    let (store, locks) = (bench.store("").await, bench.locks("").await);
    let mut dead: Vec<_> = (0..4).map(|_| permit(&store, 4, 600).0).collect();
    for claim in &mut dead {
        granted(claim.attempt().await);
    }
    let pool = locks.semaphore("foo", 4);
    assert!(pool.try_acquire().await.unwrap().is_none(), "four hold it");
    // All four permits come back, and at once (F21: not one by one).
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(soon("a permit is lost with its holder", pool.lock(&Default::default())).await.unwrap());
    }
    assert!(pool.try_acquire().await.unwrap().is_none(), "four hold it");
}

async fn a_free_permit_costs_one_command_and_its_release_another() {
    let Some(bench) = Bench::new().await else { return };
    let pool = bench.locks("").await.semaphore("foo", 2);
    // The server knows the scripts after this.
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
    let [(mut held, _), (mut first, one), (mut second, two), (mut third, three)] = claims;
    granted(held.attempt().await);
    for claim in [&mut first, &mut second, &mut third] {
        busy(claim.attempt().await);
    }
    let channel = |claim: &str| format!("redisson_lock__channel:{{foo}}:{}", claim.trim_end_matches("/1"));
    let mut subscriptions = Vec::new();
    for claim in [&one, &two, &three] {
        subscriptions.push(Subscription::to(bench.running.url(), &channel(claim)).await);
    }
    second.release().await.unwrap();
    held.release().await.unwrap();
    assert_eq!(subscriptions[0].next().await, "0");
    assert!(subscriptions[2].is_silent(&bench).await, "the third was woken, whose turn has not come");
    granted(first.attempt().await);
    for mut claim in [first, third] {
        claim.release().await.unwrap();
    }
}
