//! How many connections a client with many waiters makes to a server that takes none.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

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

/// How long the server takes no connection.
const AWAY: Duration = Duration::from_secs(8);

/// A ttl so long that a waiter asks again only because of an error.
const TTL: Duration = Duration::from_secs(600);

/// Many waiters of one client, each for a name of its own that another client holds.
async fn waiters(locks: &Locks, bench: &Bench) -> Vec<JoinHandle<Result<Guard>>> {
    let mut held = redis::pipe();
    for number in 0..WAITERS {
        held.hset(format!("foo{number}"), "aaaa:1", 1).ignore();
    }
    held.exec_async(&mut bench.raw.clone()).await.expect("writable");
    let waiting: Vec<_> = (0..WAITERS)
        .map(|number| tokio::spawn(locks.mutex(format!("foo{number}")).lock().ttl(TTL).into_future()))
        .collect();
    let listened = async {
        while bench.query::<Vec<String>>("PUBSUB CHANNELS redisson_lock__channel:*").await.len() < WAITERS {
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), listened).await.expect("the waiters never subscribed");
    waiting
}

async fn locks(url: &str) -> Locks {
    Locks::new(connect(&format!("{url}?timeout=1s")).await.expect("the server is there"))
        .with_defaults(LockOptions::new().ttl(TTL))
}

/// Asks for another lock now and then, as a busy client does, and so notices that the connection is broken.
async fn ask_for(locks: &Locks, time: Duration) {
    let until = Instant::now() + time;
    let tries = (0..WAITERS).map(async |number| {
        while Instant::now() < until {
            locks.mutex(format!("bar{number}")).try_lock().await.ok();
            sleep(Duration::from_millis(10)).await;
        }
    });
    join_all(tries).await;
}

/// Waits until the client can use the server again. A call ends after a second, and at first all waiters ask together.
async fn back(locks: &Locks) {
    let asked = async {
        while locks.mutex("baz").try_lock().await.is_err() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), asked)
        .await
        .expect("the server is back, but not to be used");
}

fn assert_few(connections: usize, within: Duration) {
    // Five a second, and five more at the beginning.
    let most = 5 * (1 + within.as_secs() as usize);
    assert!(connections <= most, "{connections} connections in {within:?}");
    assert!(connections >= 4, "the client gave up: {connections} connections in {within:?}");
}

async fn many_waiters_make_few_connections_to_a_port_that_closes_them() {
    let Some(bench) = Bench::new().await else { return };
    let Some(server) = bench.running.own_server() else { return };
    let proxy = Proxy::to(server.address()).await.expect("a port is free");
    let locks = locks(&format!("redis://{}", proxy.address())).await;
    let waiting = waiters(&locks, &bench).await;
    let (before, since) = (proxy.connections(), Instant::now());
    proxy.hang_up();
    ask_for(&locks, AWAY).await;
    assert_few(proxy.connections() - before, since.elapsed());
    // Once the server is back, the client can use it again.
    proxy.pass();
    back(&locks).await;
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
        line.expect("the server counts").trim().parse().expect("a number")
    };
    let since = Instant::now();
    bench.send("CONFIG SET maxclients 1").await;
    bench.send("CLIENT KILL TYPE pubsub").await;
    bench.send("CLIENT KILL TYPE normal SKIPME yes").await;
    ask_for(&locks, AWAY).await;
    assert_few(rejected().await, since.elapsed());
    bench.send("CONFIG SET maxclients 100").await;
    back(&locks).await;
    for waiter in waiting {
        waiter.abort();
    }
}

async fn many_callers_make_few_connections_to_a_cluster_that_has_too_many() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let locks = locks(running.url()).await;
    drop(locks.mutex("foo").lock().await.expect("it is there"));
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
        ask_for(&locks, AWAY / 4).await;
        let mut rejected = 0;
        for raw in &mut raws {
            let stats: String = parse_command("INFO stats").query_async(raw).await.unwrap();
            let line = stats.lines().find_map(|line| line.strip_prefix("rejected_connections:"));
            rejected += line.expect("the server counts").trim().parse::<usize>().expect("a number");
        }
        counts.push(rejected);
    }
    // At first a command fails for each slot. Later the client crate makes connections for one command at a time.
    let later = counts[3] - counts[0];
    assert!(later < 600, "{later} connections in six seconds: {counts:?}");
}
