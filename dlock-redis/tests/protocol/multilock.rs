//! MultiLock on one server: how many commands it costs, and that they are sent together.
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

/// How many of these keys exist.
async fn known(bench: &Bench, names: &[String]) -> usize {
    bench.query(&format!("EXISTS {}", names.join(" "))).await
}

async fn three_names_on_one_server_are_one_lock() {
    let Some(bench) = Bench::new().await else { return };
    let (a, b, names) = (bench.locks("").await, bench.locks("").await, names(3));
    let guard = multi(&a, &names).lock_within(Duration::from_secs(10)).await.unwrap();
    assert_eq!((guard.tokens().len(), known(&bench, &names).await), (3, 3));
    for name in &names {
        assert!(b.mutex(name).try_lock().await.unwrap().is_none(), "{name} is not held");
    }
    guard.release().await.unwrap();
    assert_eq!(known(&bench, &names).await, 0, "the release left a member locked");
    let busy = b.mutex("n1").lock().await.unwrap();
    assert!(multi(&a, &names).try_lock(&LockOptions::new()).await.unwrap().is_none(), "n1 is held");
    a.close().await;
    assert_eq!(known(&bench, &names).await, 1, "more than what the other holds");
    busy.release().await.unwrap();
}

async fn a_member_that_is_lost_keeps_no_other_from_being_released() {
    let Some(bench) = Bench::new().await else { return };
    let (locks, names) = (bench.locks("").await, names(3));
    let guard = multi(&locks, &names).lock(&LockOptions::new().ttl(Duration::from_secs(3))).await.unwrap();
    // The first name in their order.
    bench.send("DEL n0").await;
    soon("the holder was never told", guard.lost()).await;
    assert_eq!(known(&bench, &names).await, 2, "the other members were released before the guard was");
    assert!(guard.release().await.is_err(), "the release does not tell that a member was lost");
    assert_eq!(known(&bench, &names).await, 0, "the release left a member locked");
}

async fn ten_free_names_are_locked_by_ten_concurrent_commands_and_released_by_ten_more() {
    let Some(bench) = Bench::new().await else { return };
    // The URL of a given server may have more than host and port, so a relay cannot stand before it.
    let Some(server) = bench.running.own_server() else { return };
    let relay = Relay::to(server.address()).await;
    let locks = Locks::new(connect(&format!("redis://{}?timeout=30s", relay.address)).await.unwrap());
    // A first lock and release, so that the server knows the scripts.
    locks.mutex("n0").lock().await.unwrap().release().await.unwrap();
    let names = names(10);
    let before = calls(&bench).await;
    relay.hold_replies_for(10);
    let all = multi(&locks, &names);
    let asked = all.lock_within(Duration::from_secs(60));
    let guard =
        soon("the lock waits for an answer before it has asked for all ten names", asked).await.unwrap();
    assert_eq!(calls(&bench).await - before, 10, "a name costs more than one command");
    relay.hold_replies_for(10);
    soon("the release waits for an answer before it has let all ten names go", guard.release())
        .await
        .unwrap();
    assert_eq!(calls(&bench).await - before, 20, "a name costs more than one command to let go");
    assert_eq!(known(&bench, &names).await, 0, "the release left a member locked");
}

/// How often scripts were run.
async fn calls(bench: &Bench) -> u64 {
    let stats: String = bench.query("INFO commandstats").await;
    let ran = stats.lines().filter(|line| line.starts_with("cmdstat_eval"));
    let count = |line: &str| line.split(['=', ',']).nth(1).and_then(|calls| calls.parse::<u64>().ok());
    ran.map(|line| count(line).expect("a number")).sum()
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
                let some = &names[..=1 + round % 2];
                let guard = multi(&locks, some).lock_within(Duration::from_secs(60)).await;
                guard.expect("granted in the end").release().await.expect("held until now");
            }
        }));
    }
    for contender in join_all(contenders).await {
        contender.expect("granted in the end");
    }
    assert_eq!(known(&bench, &names).await, 0, "the release left a member locked");
}
