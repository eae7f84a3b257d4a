//! Tests of the cost of waiting and holding for the server, as the README promises it.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::{collections::BTreeMap, time::Duration};

use common::Bench;
use dlock_core::{Kind, LockOptions, Who};
use futures_util::future::join_all;
use tokio::time::sleep;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        waiters_and_holders_send_no_command_while_nothing_changes,
        many_holds_are_renewed_in_few_calls,
        a_label_costs_a_client_one_command_and_an_acquisition_none,
        an_acquisition_executes_eight_commands_on_the_server_and_a_release_five,
    }])
}

impl Bench {
    /// Returns the names of all commands that the server has executed since `CONFIG RESETSTAT`, and
    /// how often it has, with those that scripts have called.
    async fn executed(&self) -> BTreeMap<String, u64> {
        let stats: String = self.query("INFO commandstats").await;
        let count = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let own = name.starts_with("config") || name == "info";
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?)).filter(|_| !own)
        };
        stats.lines().filter_map(count).collect()
    }

    /// Returns the number of commands that the server has executed, without this one.
    async fn commands(&self) -> u64 {
        let stats: String = self.query("INFO stats").await;
        let line = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        line.expect("the server counts them").trim().parse().expect("a number")
    }
}

async fn waiters_and_holders_send_no_command_while_nothing_changes() {
    let Some(bench) = Bench::new().await else { return };
    let (a, b) = (bench.locks("").await, bench.locks("").await);
    let options = LockOptions::new().ttl(Duration::from_secs(600));
    let mut held = Vec::new();
    let mut waiters = Vec::new();
    for (kind, other) in [
        (Kind::Mutex, Kind::Mutex),
        (Kind::Fair, Kind::Fair),
        (Kind::Read, Kind::Write),
        (Kind::Write, Kind::Read),
    ] {
        let name = format!("foo-{other}");
        held.push(a.of(kind, &name).lock(&options).await.unwrap());
        let lock = b.of(other, &name);
        let options = options.clone();
        waiters.push(tokio::spawn(async move { lock.lock(&options).await }));
    }
    // Four holders have made one attempt each. Four waiters have made two attempts each, before and
    // after their subscription.
    while bench.calls("evalsha").await < 4 + 4 * 2 {
        sleep(Duration::from_millis(10)).await;
    }
    let before = bench.commands().await;
    sleep(Duration::from_secs(3)).await;
    let commands = bench.commands().await - before - 1;
    assert_eq!(
        commands, 0,
        "four waiters and four holders with a ttl of 600 s sent commands within three seconds"
    );
    drop(held);
    for waiter in waiters {
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
}

async fn many_holds_are_renewed_in_few_calls() {
    const HOLDS: u64 = 1000;
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    let all = (0..HOLDS).map(|number| {
        let mutex = locks.mutex(format!("foo{number}"));
        mutex.lock().ttl(Duration::from_secs(6)).into_future()
    });
    let held: Vec<_> = join_all(all).await.into_iter().map(|held| held.expect("the lock is free")).collect();
    let before = bench.calls("evalsha").await;
    // Each hold is renewed after two, four and six seconds.
    sleep(Duration::from_secs(7)).await;
    let calls = bench.calls("evalsha").await - before;
    assert!(
        held.iter().all(|held| !held.is_lost()),
        "a hold was lost, so the calls do not cover all renewals"
    );
    assert!((2 * HOLDS / 200..HOLDS / 2).contains(&calls), "{calls} calls for three renewals of {HOLDS}");
}

async fn a_label_costs_a_client_one_command_and_an_acquisition_none() {
    const PAIRS: u64 = 1000;
    let Some(bench) = Bench::new().await else { return };
    // Another client loads the scripts into the server.
    let other = bench.locks("").await.with_who(Who::new("anna").expect("legal"));
    other.mutex("foo").lock().await.unwrap().release().await.unwrap();
    let locks = bench.locks("").await.with_who(Who::new("bert").expect("legal"));
    bench.send("CONFIG RESETSTAT").await;
    for _ in 0..PAIRS {
        locks.mutex("foo").lock().await.unwrap().release().await.unwrap();
    }
    let (pairs, texts) = (bench.calls("evalsha").await, bench.calls("eval").await);
    assert_eq!((pairs, texts), (2 * PAIRS, 1), "scripts of the pairs and of the label");
    // A label of a lock is another text.
    let before = bench.calls("eval").await;
    locks.mutex("foo").lock().label("the nightly run").await.unwrap().release().await.unwrap();
    assert_eq!(bench.calls("eval").await - before, 1);
}

async fn an_acquisition_executes_eight_commands_on_the_server_and_a_release_five() {
    const PAIRS: u64 = 100;
    let Some(bench) = Bench::new().await else { return };
    let mutex = bench.locks("").await.mutex("foo");
    // The first pair loads the scripts, writes the label and creates the token.
    mutex.lock().await.unwrap().release().await.unwrap();
    bench.send("CONFIG RESETSTAT").await;
    for _ in 0..PAIRS {
        mutex.lock().await.unwrap().release().await.unwrap();
    }
    let executed = bench.executed().await;
    let acquire = ["evalsha", "time", "exists", "get", "pttl", "setrange", "hset", "pexpire"];
    let release = ["evalsha", "hexists", "del", "publish", "lindex"];
    let mut expected = BTreeMap::new();
    for name in acquire.iter().chain(&release) {
        *expected.entry((*name).to_owned()).or_insert(0) += PAIRS;
    }
    assert_eq!(executed, expected);
}
