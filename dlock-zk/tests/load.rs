//! The size of the sessions, and the number of the requests, of one client with many locks or many
//! waiters.
#![expect(clippy::disallowed_methods, reason = "contenders and relays are tasks")]
#![allow(clippy::print_stdout, reason = "figures for the reader of the test's output")]

mod common;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use common::{locks, soon, store, unique};
use dlock_conformance::{Data, Proxy, or_ignore};
use dlock_core::{Error, Guard, Locks};
use dlock_testbed::servers::{
    Running,
    zookeeper::{Flavour, start_with, word},
};
use futures_util::{StreamExt as _, future::join_all, stream};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
    time::sleep,
};
use zookeeper_client::Client;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        no_session_has_more_bytes_of_paths_than_a_server_can_read_back on 2 threads,
        a_broken_connection_costs_no_lock_however_many_paths_are_watched on 2 threads,
        a_waiter_lists_the_queue_again_when_many_ahead_of_it_have_left on 2 threads,
        a_server_that_replies_late_once_is_not_queried_by_each_waiter on 2 threads,
        waiters_send_no_requests_while_nothing_changes on 2 threads,
        a_client_that_gets_no_further_session_uses_those_that_it_has on 2 threads,
        a_jute_maxbuffer_of_128_kibibytes_is_enough on 2 threads,
    }])
}

/// Maximum bytes of paths in a session, which is the limit in dlock.
const MOST: usize = 100 * 1024;

/// Returns long names, so that few locks have many bytes of paths.
fn long_names(count: usize) -> Vec<String> {
    let run = unique();
    (0..count).map(|number| format!("{run}-{number}-{}", "x".repeat(400))).collect()
}

async fn hold_all(client: &Locks, names: &[String], renew_every: Duration) -> Vec<Guard> {
    let lock = |name: &String| client.mutex(name.as_str()).lock().renew_every(renew_every).into_future();
    stream::iter(names).map(lock).buffered(100).map(|guard| guard.expect("the lock is free")).collect().await
}

async fn counter(running: &Running, key: &str) -> u64 {
    let reply = word(running.servers()[0].address(), "mntr").await.expect("the server replies");
    let value = reply.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('\t'));
    value.map_or(0, |value| value.trim().parse().expect("a number"))
}

async fn requests(running: &Running) -> u64 {
    counter(running, "zk_packets_received").await
}

async fn watches(running: &Running) -> u64 {
    counter(running, "zk_watch_count").await
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !condition().await {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// Waits until the server receives only heartbeats.
async fn settled(running: &Running) {
    let mut seen = 0;
    until("the requests do not stop", async || {
        let before = std::mem::replace(&mut seen, requests(running).await);
        sleep(Duration::from_millis(300)).await;
        seen.abs_diff(before) < 8
    })
    .await;
}

async fn no_session_has_more_bytes_of_paths_than_a_server_can_read_back() {
    let Some(running) = store(Flavour::Standalone).await else { return };
    let client = locks(&format!("{}/test?timeout=10s&session=30s", running.url())).await;
    let names = long_names(600);
    let guards = hold_all(&client, &names, Duration::from_secs(5)).await;
    let raw =
        Client::connect(running.url().trim_start_matches("zk://")).await.expect("the server is running");
    let look = async |name: &String| {
        let directory = format!("/test/{name}");
        let node = raw.list_children(&directory).await.expect("the server replies").concat();
        let path = format!("{directory}/{node}");
        let stat = raw.check_stat(&path).await.expect("the server replies").expect("the lock is held");
        (stat.ephemeral_owner, path.len())
    };
    let mut bytes = HashMap::<i64, usize>::new();
    for (owner, length) in stream::iter(&names).map(look).buffered(50).collect::<Vec<_>>().await {
        *bytes.entry(owner).or_default() += length;
    }
    assert!(bytes.values().all(|bytes| *bytes <= MOST), "bytes of paths in each session: {bytes:?}");
    assert!(bytes.len() <= 4, "a session is given up before it is full: {bytes:?}");
    // A session with free room is used again, and an unused session ends.
    join_all(guards.into_iter().map(Guard::release))
        .await
        .into_iter()
        .for_each(|done| done.expect("the claim holds the lock"));
    drop(hold_all(&client, &names[..10], Duration::from_secs(5)).await);
    soon("the client cannot be closed", client.close()).await;
}

async fn a_broken_connection_costs_no_lock_however_many_paths_are_watched() {
    const HELD: usize = 400;
    let Some(running) = store(Flavour::Standalone).await else { return };
    let proxy = Proxy::to(running.servers()[0].address()).await.expect("a port is free");
    let client = locks(&format!("zk://{}/test?timeout=10s&session=20s", proxy.address())).await;
    let names = long_names(HELD);
    let guards = hold_all(&client, &names, Duration::from_millis(500)).await;
    until("the holders do not watch their nodes", async || watches(&running).await >= HELD as u64).await;
    proxy.cut();
    // Longer than the time for which a hold lasts without a heartbeat.
    sleep(Duration::from_secs(15)).await;
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    assert_eq!(lost, 0, "of {HELD} locks are lost, although the server was running all the time");
    drop(
        soon("the lock is not granted", client.mutex(unique()).lock().into_future())
            .await
            .expect("the lock is free"),
    );
}

async fn a_waiter_lists_the_queue_again_when_many_ahead_of_it_have_left() {
    const AHEAD: u64 = 300;
    let Some(running) = store(Flavour::Standalone).await else { return };
    let url = format!("{}/test?timeout=10s&session=30s", running.url());
    let (holder, last) = (locks(&url).await, locks(&url).await);
    let proxy = Proxy::to(running.servers()[0].address()).await.expect("a port is free");
    let mortal = locks(&format!("zk://{}/test?timeout=10s&session=4s", proxy.address())).await;
    let name = unique();
    let held = holder.mutex(&name).lock().await.expect("the lock is free");
    let _waiting: Vec<_> =
        (0..AHEAD).map(|_| tokio::spawn(mortal.mutex(&name).lock().into_future())).collect();
    until("the claims do not join the queue", async || watches(&running).await >= AHEAD).await;
    let next = tokio::spawn(last.mutex(&name).lock().into_future());
    until("the claim does not join the queue", async || watches(&running).await > AHEAD).await;
    let before = requests(&running).await;
    proxy.hang_up();
    // The watch of the holder on its own node, if it was renewed, and the watch of the last waiter.
    until("the session of the holder does not end", async || watches(&running).await <= 2).await;
    settled(&running).await;
    held.release().await.expect("the claim holds the lock");
    drop(
        soon("the waiter is not woken", next)
            .await
            .expect("the task does not panic")
            .expect("the lock is granted"),
    );
    let made = requests(&running).await - before;
    assert!(made < 100, "{made} requests to get past {AHEAD} deleted nodes");
}

/// Starts a relay. Returns its address, and the number of bytes that the server has sent.
async fn counting(server: SocketAddr) -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let (address, bytes) =
        (listener.local_addr().expect("the listener is bound"), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&bytes);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let counted = Arc::clone(&counted);
            tokio::spawn(async move {
                let server = TcpStream::connect(server).await?;
                client.set_nodelay(true)?;
                server.set_nodelay(true)?;
                let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                    (client.into_split(), server.into_split());
                let replies = async {
                    let mut chunk = vec![0; 64 * 1024];
                    loop {
                        let count = from_server.read(&mut chunk).await?;
                        if count == 0 {
                            return Ok(());
                        }
                        counted.fetch_add(count as u64, Relaxed);
                        to_client.write_all(&chunk[..count]).await?;
                    }
                };
                tokio::select! {
                    ended = copy(&mut from_client, &mut to_server) => ended.map(drop),
                    ended = replies => ended,
                }
            });
        }
    });
    (address, bytes)
}

async fn a_server_that_replies_late_once_is_not_queried_by_each_waiter() {
    const WAITERS: u64 = 800;
    let Some(running) = store(Flavour::Standalone).await else { return };
    let proxy = Proxy::to(running.servers()[0].address()).await.expect("a port is free");
    let (relay, bytes) = counting(proxy.address()).await;
    let other = locks(&format!("{}/test?timeout=10s&session=60s", running.url())).await;
    let client = locks(&format!("zk://{relay}/test?session=30s")).await;
    let name = unique();
    let held = other.mutex(&name).lock().await.expect("the lock is free");
    let own = client.mutex(unique()).lock().await.expect("the lock is free");
    let (before, requests_before) = (bytes.load(Relaxed), requests(&running).await);
    proxy.hold_answers();
    let waiting: Vec<_> =
        (0..WAITERS).map(|_| tokio::spawn(client.mutex(&name).lock().into_future())).collect();
    sleep(Duration::from_secs(4)).await;
    proxy.pass();
    let watching =
        async || watches(&running).await >= WAITERS || waiting.iter().any(|waiter| waiter.is_finished());
    until("the claims do not join the queue", watching).await;
    let failed = waiting.iter().filter(|waiter| waiter.is_finished()).count();
    let (received, sent) = (bytes.load(Relaxed) - before, requests(&running).await - requests_before);
    println!("{WAITERS} waiters: {sent} requests, {received} bytes");
    assert_eq!(failed, 0, "waiters failed although the server replies again");
    assert!(!own.is_lost(), "the client's other lock is lost");
    assert!(sent < WAITERS * 8, "{sent} requests for {WAITERS} waiters");
    assert!(received < 8_000_000, "{received} bytes: each waiter listed the queue");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    drop(held);
}

async fn waiters_send_no_requests_while_nothing_changes() {
    const WATCHED: Duration = Duration::from_secs(5);
    let Some(running) = store(Flavour::Standalone).await else { return };
    let other = locks(&format!("{}/test?timeout=10s&session=60s", running.url())).await;
    for count in [1, 100, 1000] {
        let client = locks(&format!("{}/test?timeout=10s&session=60s", running.url())).await;
        let name = unique();
        let held = other.mutex(&name).lock().await.expect("the lock is free");
        let before = watches(&running).await;
        // Each waiter makes at least three attempts in its ttl.
        let wait = || client.mutex(&name).lock().ttl(Duration::from_secs(3)).into_future();
        let waiting: Vec<_> = (0..count).map(|_| tokio::spawn(wait())).collect();
        until("the claims do not join the queue", async || watches(&running).await >= before + count).await;
        settled(&running).await;
        let before = requests(&running).await;
        sleep(WATCHED).await;
        let made = requests(&running).await - before;
        assert!(made < 25, "{count} waiters sent {made} requests in {WATCHED:?}");
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
        drop(held);
        soon("the client cannot be closed", client.close()).await;
    }
}

async fn a_client_that_gets_no_further_session_uses_those_that_it_has() {
    // Two connections from one address, and therefore two sessions of this client.
    let Some(running) = or_ignore(start_with("maxClientCnxns=2\n").await) else { return };
    let client = locks(&format!("{}/test?timeout=1s&session=30s", running.url())).await;
    let names = long_names(1000);
    let mut guards = Vec::new();
    let refused = loop {
        match client.mutex(names[guards.len()].as_str()).lock().await {
            Ok(guard) => guards.push(guard),
            Err(error) => break error,
        }
    };
    let source = std::error::Error::source(&refused).map(ToString::to_string).unwrap_or_default();
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused:?}");
    assert!(source.contains("maxClientCnxns"), "the error does not name the limit: {source}");
    assert!(guards.len() > 300, "two sessions have room for more than {} claims", guards.len());
    let held = &names[..guards.len()];
    let state = client.inspect(&held[0]).await.expect("the sessions are alive");
    assert!(state.is_some_and(|state| state.holders.len() == 1), "the lock is held");
    let listed = client.list(&held[0]).await.expect("the sessions are alive");
    assert_eq!(listed.len(), 1, "the lock is held");
    assert!(client.force_release(&held[0]).await.expect("the sessions are alive"), "the lock is held");
    // The room of a released claim serves a new one, in the oldest session and in the newest.
    for (guard, name) in [(guards.remove(1), &names[900]), (guards.pop().expect("held"), &names[901])] {
        guard.release().await.expect("the claim holds the lock");
        let next = client.mutex(name.as_str()).lock().await;
        guards.push(next.expect("the session has room for the claim"));
    }
    let lost = guards.iter().skip(1).filter(|guard| guard.is_lost()).count();
    assert_eq!(lost, 0, "of {} holds are lost", guards.len());
}

/// Kills the server, and starts it again with its data.
async fn restart(running: &Running) {
    let server = &running.servers()[0];
    server.kill().await.expect("the server is running");
    server.start(Data::Kept).await.expect("the server starts again");
    running.ready().await.expect("the server reads its data");
}

async fn a_jute_maxbuffer_of_128_kibibytes_is_enough() {
    const HELD: usize = 1500;
    const LONG: usize = 70;
    const WAITERS: usize = 2500;
    let Some(running) = or_ignore(start_with("jute.maxbuffer=131072\n").await) else { return };
    let proxy = Proxy::to(running.servers()[0].address()).await.expect("a port is free");
    let client = locks(&format!("zk://{}/test?timeout=10s&session=40s", proxy.address())).await;
    let crowd = locks(&format!("zk://{}/test?timeout=10s&session=40s", proxy.address())).await;
    let run = unique();
    let mut names: Vec<_> = (0..HELD).map(|number| format!("{run}-{number}")).collect();
    // A slash has three bytes in a path.
    names.extend((0..LONG).map(|number| format!("{run}-{number:/>982}")));
    let guards = hold_all(&client, &names, Duration::from_millis(500)).await;
    until("the holders do not watch their nodes", async || watches(&running).await >= names.len() as u64)
        .await;
    // Their queue has more than 128 KiB of names.
    let waiting: Vec<_> =
        (0..WAITERS).map(|_| tokio::spawn(crowd.mutex(&names[0]).lock().into_future())).collect();
    let all = (names.len() + WAITERS) as u64;
    until("the claims do not join the queue", async || watches(&running).await >= all).await;
    let assert_all_kept = |event: &str| {
        let lost = guards.iter().filter(|guard| guard.is_lost()).count();
        assert_eq!(lost, 0, "of {} holds are lost after {event}", guards.len());
        let ended = waiting.iter().filter(|waiter| waiter.is_finished()).count();
        assert_eq!(ended, 0, "of {WAITERS} waiters have ended after {event}");
    };
    proxy.cut();
    until("the claims do not watch again", async || watches(&running).await >= all).await;
    // Longer than the time for which a hold lasts without a heartbeat.
    sleep(Duration::from_secs(28)).await;
    assert_all_kept("the connections broke");
    restart(&running).await;
    until("the claims do not watch again", async || watches(&running).await >= all).await;
    sleep(Duration::from_secs(28)).await;
    assert_all_kept("the server was restarted");
    // The ends of the sessions are transactions with all paths.
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    drop(guards);
    soon("the crowd cannot be closed", crowd.close()).await;
    soon("the client cannot be closed", client.close()).await;
    restart(&running).await;
    let client = locks(&format!("{}/test?timeout=10s&session=40s", running.url())).await;
    drop(hold_all(&client, &names[HELD..], Duration::from_secs(5)).await);
}
