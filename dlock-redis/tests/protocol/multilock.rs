//! Tests of the number of commands of a `MultiLock` on one server, and that they are sent together.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]

use std::time::Duration;

use dlock_core::{
    DistributedLock, DistributedLockExt, Error, Kind, LockName, LockOptions, Locks, MultiLock, Wait,
    driver::{Attempt, AttemptAll, Grant, Request},
};
use futures_util::future::join_all;

use crate::common::{Bench, connect, relay::Relay, soon};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        three_names_on_one_server_are_one_lock,
        a_member_that_is_lost_keeps_no_other_from_being_released,
        ten_free_mutexes_are_locked_by_one_command_and_released_by_ten_concurrent_ones,
        ten_free_fair_locks_are_locked_by_ten_concurrent_commands_and_released_by_ten_more,
        sixty_four_free_mutexes_are_locked_by_one_command_and_sixty_five_by_two,
        a_busy_mutex_leaves_no_other_locked,
        a_read_write_lock_among_mutexes_is_the_wrong_kind,
        an_attempt_that_was_executed_in_part_before_gets_all_mutexes,
        multilocks_over_the_same_names_in_any_order_never_deadlock,
    }
}

fn multi(locks: &Locks, names: &[String]) -> MultiLock {
    MultiLock::new(names.iter().map(|name| locks.of(Kind::Mutex, name))).expect("it has members")
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("n{number}")).collect()
}

/// Returns the number of these keys that exist.
async fn key_count(bench: &Bench, names: &[String]) -> usize {
    bench.query(&format!("EXISTS {}", names.join(" "))).await
}

async fn three_names_on_one_server_are_one_lock() {
    let Some(bench) = Bench::new().await else { return };
    let (a, b, names) = (bench.locks("").await, bench.locks("").await, names(3));
    let guard = multi(&a, &names).lock_within(Duration::from_secs(10)).await.unwrap();
    assert_eq!((guard.tokens().len(), key_count(&bench, &names).await), (3, 3));
    for name in &names {
        assert!(b.mutex(name).try_lock().await.unwrap().is_none(), "`{name}` is not held");
    }
    guard.release().await.unwrap();
    assert_eq!(key_count(&bench, &names).await, 0, "the release left a member locked");
    let busy = b.mutex("n1").lock().await.unwrap();
    assert!(
        multi(&a, &names).try_lock(&LockOptions::new()).await.unwrap().is_none(),
        "granted although n1 is held"
    );
    a.close().await;
    assert_eq!(key_count(&bench, &names).await, 1, "there are other keys than that of the other client");
    busy.release().await.unwrap();
}

async fn a_member_that_is_lost_keeps_no_other_from_being_released() {
    let Some(bench) = Bench::new().await else { return };
    let (locks, names) = (bench.locks("").await, names(3));
    let guard = multi(&locks, &names).lock(&LockOptions::new().ttl(Duration::from_secs(3))).await.unwrap();
    // The first name in order.
    bench.send("DEL n0").await;
    soon("the loss was not reported to the holder", guard.lost()).await;
    assert_eq!(key_count(&bench, &names).await, 2, "the other members were released before the guard was");
    assert!(guard.release().await.is_err(), "the release does not report that a member was lost");
    assert_eq!(key_count(&bench, &names).await, 0, "the release left a member locked");
}

async fn ten_free_mutexes_are_locked_by_one_command_and_released_by_ten_concurrent_ones() {
    ten_names_cost(Kind::Mutex, 1).await;
}

async fn ten_free_fair_locks_are_locked_by_ten_concurrent_commands_and_released_by_ten_more() {
    ten_names_cost(Kind::Fair, 10).await;
}

/// Checks that ten names are locked by `attempts` commands and released by ten, each of which are
/// sent before the first reply.
async fn ten_names_cost(kind: Kind, attempts: usize) {
    let Some(bench) = Bench::new().await else { return };
    // A given server cannot be used through a relay, because its URL may have more than host and
    // port.
    let Some(server) = bench.running.own_server() else { return };
    let relay = Relay::to(server.address()).await;
    let locks = Locks::new(connect(&format!("redis://{}?timeout=30s", relay.address)).await.unwrap());
    let names = names(10);
    let all = MultiLock::new(names.iter().map(|name| locks.of(kind, name))).expect("it has members");
    // A first lock and release load the scripts into the server.
    all.lock_within(Duration::from_secs(60)).await.unwrap().release().await.unwrap();
    let before = calls(&bench).await;
    relay.hold_replies_for(attempts);
    let guard = soon(
        "the lock waits for a reply before it has sent all attempts",
        all.lock_within(Duration::from_secs(60)),
    )
    .await
    .unwrap();
    assert_eq!(calls(&bench).await - before, attempts as u64);
    assert_eq!(key_count(&bench, &names).await, 10);
    relay.hold_replies_for(10);
    soon("the release waits for a reply before it has sent all ten releases", guard.release()).await.unwrap();
    assert_eq!(calls(&bench).await - before, attempts as u64 + 10);
    assert_eq!(key_count(&bench, &names).await, 0, "the release left a member locked");
}

async fn sixty_four_free_mutexes_are_locked_by_one_command_and_sixty_five_by_two() {
    let Some(bench) = Bench::new().await else { return };
    let (locks, all) = (bench.locks("").await, names(65));
    // A first lock and release load the scripts into the server.
    multi(&locks, &all).lock_within(Duration::from_secs(60)).await.unwrap().release().await.unwrap();
    for (count, commands) in [(64, 1), (65, 2)] {
        let before = calls(&bench).await;
        let guard = multi(&locks, &all[..count]).lock_within(Duration::from_secs(60)).await.unwrap();
        assert_eq!(calls(&bench).await - before, commands, "commands for {count} mutexes");
        assert_eq!(key_count(&bench, &all).await, count);
        guard.release().await.unwrap();
    }
}

async fn a_busy_mutex_leaves_no_other_locked() {
    let Some(bench) = Bench::new().await else { return };
    let (a, b, names) = (bench.locks("").await, bench.locks("").await, names(3));
    let busy = b.mutex("n1").lock().await.unwrap();
    assert!(multi(&a, &names).try_lock(&LockOptions::new()).await.unwrap().is_none());
    assert_eq!(key_count(&bench, &names).await, 1, "a try has left a member locked");
    let token = busy.token();
    busy.release().await.unwrap();
    let guard = multi(&a, &names).try_lock(&LockOptions::new()).await.unwrap().expect("all are free");
    assert!(Some(guard.tokens()[1].1) > token, "the token of n1 has not grown");
    guard.release().await.unwrap();
}

async fn a_read_write_lock_among_mutexes_is_the_wrong_kind() {
    let Some(bench) = Bench::new().await else { return };
    let (a, b, names) = (bench.locks("").await, bench.locks("").await, names(3));
    let reader = b.rwlock("n1").read().lock().await.unwrap();
    let error = multi(&a, &names).try_lock(&LockOptions::new()).await.expect_err("n1 is no mutex");
    assert!(matches!(error, Error::WrongKind { ref name, .. } if name.as_str() == "n1"), "{error}");
    a.close().await;
    assert_eq!(key_count(&bench, &names).await, 1, "a try has left a member locked");
    reader.release().await.unwrap();
}

async fn an_attempt_that_was_executed_in_part_before_gets_all_mutexes() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let requests: Vec<_> = names(3)
        .iter()
        .map(|name| {
            let name = LockName::new(name).expect("legal");
            Request::new(name, Kind::Mutex, Duration::from_secs(30)).wait(Wait::Never)
        })
        .collect();
    let who = requests[0].who.clone();
    let first = store.backend.attempt_all(requests.clone()).await.expect("free");
    let AttemptAll::Granted(first) = first else { panic!("busy, although all are free") };
    // The same call once more, as after a lost reply.
    let again = store.backend.attempt_all(requests.clone()).await.expect("held by the same claims");
    let AttemptAll::Granted(again) = again else { panic!("busy because of its own claims") };
    let tokens = |grants: &[(_, Grant)]| grants.iter().map(|(_, grant)| grant.token).collect::<Vec<_>>();
    assert_eq!(tokens(&again), tokens(&first), "the same holds have other tokens");
    // One of the holds has ended since, and its lock is free.
    bench.send("DEL n1").await;
    let third = store.backend.attempt_all(requests.clone()).await.expect("free, or held by the same claims");
    let AttemptAll::Granted(third) = third else { panic!("busy because of its own claims") };
    assert!(tokens(&third)[1] > tokens(&first)[1], "the new hold of n1 has the token of the old one");
    assert_eq!(tokens(&third)[0], tokens(&first)[0]);
    // Another claim has the lock since.
    bench.send("DEL n1").await;
    let other = Request::by(who, requests[1].name.clone(), Kind::Mutex, Duration::from_secs(30));
    assert!(matches!(store.backend.claim(other).attempt().await, Ok(Attempt::Granted(_))));
    let error = store.backend.attempt_all(requests).await.expect_err("n0 and n2 are still held");
    assert!(error.is_transient(), "{error}");
}

/// Returns the number of executed scripts.
async fn calls(bench: &Bench) -> u64 {
    let stats: String = bench.query("INFO commandstats").await;
    let lines = stats.lines().filter(|line| line.starts_with("cmdstat_eval"));
    let count = |line: &str| line.split(['=', ',']).nth(1).and_then(|calls| calls.parse::<u64>().ok());
    lines.map(|line| count(line).expect("a number")).sum()
}

async fn multilocks_over_the_same_names_in_any_order_never_deadlock() {
    const ROUNDS: usize = 25;
    let Some(bench) = Bench::new().await else { return };
    let names = names(3);
    let mut contenders = Vec::new();
    for number in 0..6 {
        let (locks, mut names) = (bench.locks("").await, names.clone());
        names.rotate_left(number % 3);
        contenders.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                let members = &names[..=1 + round % 2];
                let guard = multi(&locks, members).lock_within(Duration::from_secs(60)).await;
                guard.expect("granted in the end").release().await.expect("the lock is still held");
            }
        }));
    }
    for contender in join_all(contenders).await {
        contender.expect("granted in the end");
    }
    assert_eq!(key_count(&bench, &names).await, 0, "the release left a member locked");
}
