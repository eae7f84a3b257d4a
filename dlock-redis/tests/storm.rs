//! Tests of the number of connections that a client with many waiters opens to a server that
//! accepts none.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::time::{Duration, Instant};

use common::{Bench, connect, parse_command, raw, servers};
use dlock_conformance::Proxy;
use dlock_core::{Guard, LockOptions, Locks, Result};
use dlock_testbed::servers::redis::Flavour;
use futures_util::future::join_all;
use tokio::{task::JoinHandle, time::sleep};

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        many_waiters_make_few_connections_to_a_port_that_closes_them,
        many_waiters_make_few_connections_to_a_server_that_has_too_many,
        many_callers_make_few_connections_to_a_cluster_that_has_too_many,
    }])
}

const WAITERS: usize = 500;

/// Time for which the server accepts no connection.
const OUTAGE: Duration = Duration::from_secs(8);

/// A long ttl, with which a waiter only makes another attempt after an error.
const TTL: Duration = Duration::from_secs(600);

/// Starts many waiters of one client, each for its own name that another client holds.
async fn waiters(locks: &Locks, bench: &Bench) -> Vec<JoinHandle<Result<Guard>>> {
    let mut held = redis::pipe();
    for number in 0..WAITERS {
        held.hset(format!("foo{number}"), "aaaa:1", 1).ignore();
    }
    held.exec_async(&mut bench.raw.clone()).await.expect("writable");
    let waiting: Vec<_> = (0..WAITERS)
        .map(|number| tokio::spawn(locks.mutex(format!("foo{number}")).lock().ttl(TTL).into_future()))
        .collect();
    let subscribed = async {
        while bench.query::<Vec<String>>("PUBSUB CHANNELS redisson_lock__channel:*").await.len() < WAITERS {
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), subscribed).await.expect("the waiters never subscribed");
    waiting
}

async fn locks(url: &str) -> Locks {
    Locks::new(connect(&format!("{url}?timeout=1s")).await.expect("the server is running"))
        .with_defaults(LockOptions::new().ttl(TTL))
}

/// Tries other locks all the time, like a busy client, so that the client detects the broken
/// connection.
async fn try_locks_for(locks: &Locks, duration: Duration) {
    let end = Instant::now() + duration;
    let tries = (0..WAITERS).map(async |number| {
        while Instant::now() < end {
            locks.mutex(format!("bar{number}")).try_lock().await.ok();
            sleep(Duration::from_millis(10)).await;
        }
    });
    join_all(tries).await;
}

/// Waits until the client can use the server again. A call ends after a second, and at first all
/// waiters make their attempts at once.
async fn wait_until_usable(locks: &Locks) {
    let granted = async {
        while locks.mutex("baz").try_lock().await.is_err() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), granted)
        .await
        .expect("the client cannot use the server after the outage");
}

fn assert_few(connections: usize, within: Duration) {
    // Five per second, and five more at the beginning.
    let limit = 5 * (1 + within.as_secs() as usize);
    assert!(connections <= limit, "{connections} connections in {within:?}");
    assert!(connections >= 4, "the client has stopped connecting: {connections} connections in {within:?}");
}

async fn many_waiters_make_few_connections_to_a_port_that_closes_them() {
    let Some(bench) = Bench::new().await else { return };
    let Some(server) = bench.running.own_server() else { return };
    let proxy = Proxy::to(server.address()).await.expect("a port is free");
    let locks = locks(&format!("redis://{}", proxy.address())).await;
    let waiting = waiters(&locks, &bench).await;
    let (before, started_at) = (proxy.connections(), Instant::now());
    proxy.hang_up();
    try_locks_for(&locks, OUTAGE).await;
    assert_few(proxy.connections() - before, started_at.elapsed());
    proxy.pass();
    wait_until_usable(&locks).await;
    for waiter in waiting {
        waiter.abort();
    }
}

async fn many_waiters_make_few_connections_to_a_server_that_has_too_many() {
    let Some(bench) = Bench::new().await else { return };
    if bench.running.own_server().is_none() {
        return;
    }
    let locks = locks(bench.running.url()).await;
    let waiting = waiters(&locks, &bench).await;
    let rejected = async || -> usize {
        let stats: String = bench.query("INFO stats").await;
        let line = stats.lines().find_map(|line| line.strip_prefix("rejected_connections:"));
        line.expect("the server counts them").trim().parse().expect("a number")
    };
    let started_at = Instant::now();
    bench.send("CONFIG SET maxclients 1").await;
    bench.send("CLIENT KILL TYPE pubsub").await;
    bench.send("CLIENT KILL TYPE normal SKIPME yes").await;
    try_locks_for(&locks, OUTAGE).await;
    assert_few(rejected().await, started_at.elapsed());
    bench.send("CONFIG SET maxclients 100").await;
    wait_until_usable(&locks).await;
    for waiter in waiting {
        waiter.abort();
    }
}

async fn many_callers_make_few_connections_to_a_cluster_that_has_too_many() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let locks = locks(running.url()).await;
    drop(locks.mutex("foo").lock().await.expect("the cluster is running"));
    let mut raws = Vec::new();
    for server in running.servers() {
        raws.push(raw(&format!("redis://{}", server.address())).await);
    }
    for raw in &mut raws {
        parse_command("CONFIG SET maxclients 1").exec_async(raw).await.unwrap();
        parse_command("CLIENT KILL TYPE normal SKIPME yes").exec_async(raw).await.unwrap();
    }
    let mut counts = Vec::new();
    for _ in 0..4 {
        try_locks_for(&locks, OUTAGE / 4).await;
        let mut rejected = 0;
        for raw in &mut raws {
            let stats: String = parse_command("INFO stats").query_async(raw).await.unwrap();
            let line = stats.lines().find_map(|line| line.strip_prefix("rejected_connections:"));
            rejected += line.expect("the server counts them").trim().parse::<usize>().expect("a number");
        }
        counts.push(rejected);
    }
    // At first a command fails for each slot. Later the client crate opens connections for one
    // command at a time.
    let later = counts[3] - counts[0];
    assert!(later < 600, "{later} connections in six seconds: {counts:?}");
}
