//! Tests of the number of commands of a `MultiLock` on one server, and that they are sent together.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]

use std::time::Duration;

use dlock_core::{DistributedLock, DistributedLockExt, Kind, LockOptions, Locks, MultiLock};
use futures_util::future::join_all;

use crate::common::{Bench, connect, relay::Relay, soon};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        three_names_on_one_server_are_one_lock,
        a_member_that_is_lost_keeps_no_other_from_being_released,
        ten_free_names_are_locked_by_ten_concurrent_commands_and_released_by_ten_more,
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

async fn ten_free_names_are_locked_by_ten_concurrent_commands_and_released_by_ten_more() {
    let Some(bench) = Bench::new().await else { return };
    // A given server cannot be used through a relay, because its URL may have more than host and
    // port.
    let Some(server) = bench.running.own_server() else { return };
    let relay = Relay::to(server.address()).await;
    let locks = Locks::new(connect(&format!("redis://{}?timeout=30s", relay.address)).await.unwrap());
    // A first lock and release load the scripts into the server.
    locks.mutex("n0").lock().await.unwrap().release().await.unwrap();
    let names = names(10);
    let before = calls(&bench).await;
    relay.hold_replies_for(10);
    let all = multi(&locks, &names);
    let guard = soon(
        "the lock waits for a reply before it has sent all ten attempts",
        all.lock_within(Duration::from_secs(60)),
    )
    .await
    .unwrap();
    assert_eq!(calls(&bench).await - before, 10, "a name costs more than one command");
    relay.hold_replies_for(10);
    soon("the release waits for a reply before it has sent all ten releases", guard.release()).await.unwrap();
    assert_eq!(calls(&bench).await - before, 20, "the release of a name costs more than one command");
    assert_eq!(key_count(&bench, &names).await, 0, "the release left a member locked");
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
