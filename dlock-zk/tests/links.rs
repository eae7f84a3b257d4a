//! Failures that only this store can have: links that break, are restored late or are slow, and
//! nodes of other programs.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]

mod common;

use std::time::Duration;

use common::{lasting_directory, locks, soon, store, unique};
use dlock_conformance::{Proxy, Unreachable, or_ignore};
use dlock_core::{
    Guard, Kind, LockName, Locks,
    driver::{Attempt, Request},
};
use dlock_testbed::servers::{
    Running,
    zookeeper::{Flavour, start, word},
};
use futures_util::future::{join, join_all};
use tokio::{
    sync::OnceCell,
    time::{Instant, sleep, timeout},
};
use zookeeper_client::{Acls, Client, CreateMode, Error as ZkError};

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_hold_is_downgraded_in_its_own_session_though_new_claims_have_another on 2 threads,
        a_short_time_for_calls_leaves_time_for_another_session on 2 threads,
        a_waiter_keeps_its_place_while_its_link_is_cut_for_longer_than_its_ttl on 2 threads,
        heartbeats_that_are_answered_late_keep_a_hold on 2 threads,
        heartbeats_that_are_answered_keep_a_hold_whose_node_cannot_be_read_in_time on 2 threads,
        connecting_succeeds_though_half_of_the_hosts_are_silent on 2 threads,
        an_attempt_ends_within_three_quarters_of_the_ttl_and_a_renewal_within_a_third on 2 threads,
        a_heartbeat_is_a_write_that_changes_no_node on 2 threads,
        a_session_has_six_heartbeats_in_its_timeout on 2 threads,
        a_busy_try_reads_from_the_leader_first on 2 threads,
        a_waiting_permit_sets_its_watches_together on 2 threads,
        a_permit_with_too_many_nodes_to_watch_is_woken_by_the_others on 2 threads,
        a_claim_that_a_stray_node_keeps_out_is_shown_as_waiting_and_not_broken on 2 threads,
    }])
}

/// Server that the tests of this file share. It is stopped with the process.
static SERVER: OnceCell<Result<Running, Unreachable>> = OnceCell::const_new();

async fn server() -> Option<&'static Running> {
    or_ignore(SERVER.get_or_init(|| start(Flavour::Standalone)).await.as_ref().map_err(Clone::clone))
}

async fn direct(running: &Running) -> Locks {
    locks(&format!("{}/test?timeout=10s&session=30s", running.url())).await
}

/// Connects through a proxy. Calls have a long time limit for busy machines, unless `params` has
/// another one.
async fn behind_proxy(running: &Running, params: &str) -> (Locks, Proxy) {
    let patient = if params.contains("timeout=") { "" } else { "&timeout=10s" };
    let proxy = Proxy::to(running.servers()[0].address()).await.expect("a port is free");
    (locks(&format!("zk://{}/test?{params}{patient}", proxy.address())).await, proxy)
}

/// Opens a client of `zookeeper-client`, for direct access to nodes.
async fn raw(running: &Running) -> Client {
    Client::connect(running.url().trim_start_matches("zk://")).await.expect("the server is running")
}

/// Returns the nodes in a lock's directory, in order of their names.
async fn nodes(raw: &Client, name: &str) -> Vec<String> {
    let mut nodes = match raw.list_children(&format!("/test/{name}")).await {
        Err(ZkError::NoNode) => Vec::new(),
        nodes => nodes.expect("the server replies"),
    };
    nodes.sort_unstable();
    nodes
}

/// Returns the session of the only claim in a lock's directory.
async fn owner(raw: &Client, name: &str) -> i64 {
    let node = nodes(raw, name).await.concat();
    let stat = raw.check_stat(&format!("/test/{name}/{node}")).await.expect("the server replies");
    stat.expect("the server is running").ephemeral_owner
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !condition().await {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Returns a counter from the server's reply to `mntr`.
async fn counter(running: &Running, key: &str) -> u64 {
    let reply = word(running.servers()[0].address(), "mntr").await.expect("the server replies");
    let line = reply.lines().find_map(|line| line.strip_prefix(key));
    line.expect("the server reports the counter").trim().parse().expect("a number")
}

/// Cuts the client's link and restores it. Returns a hold from before the cut, and a hold whose
/// attempt began during the cut.
async fn after_a_cut(client: &Locks, proxy: &Proxy, names: [&str; 2]) -> [Guard; 2] {
    let held = client.rwlock(names[0]).write().lock().await.expect("the lock is free");
    proxy.hang_up();
    // By then the session has noticed the cut.
    sleep(Duration::from_millis(200)).await;
    let locking = tokio::spawn(client.mutex(names[1]).lock().into_future());
    // By then the claim has given up its session.
    sleep(Duration::from_millis(2500)).await;
    proxy.pass();
    let mut next = soon("the call does not end", locking).await.expect("the task does not panic");
    let again = async {
        loop {
            match next {
                Ok(guard) => break guard,
                // No server could be reached in time.
                Err(error) => assert!(error.is_transient(), "{error:?}"),
            }
            next = client.mutex(names[1]).lock().await;
        }
    };
    let next = soon("the link is restored, and the lock is not granted", again).await;
    // The first session has a connection again, and a heartbeat was confirmed.
    until("the first session does not reconnect", async || {
        assert!(!held.is_lost(), "the link was restored in time");
        held.remaining() > Duration::from_secs(8)
    })
    .await;
    [held, next]
}

async fn a_hold_is_downgraded_in_its_own_session_though_new_claims_have_another() {
    let Some(running) = server().await else { return };
    let (raw, names) = (raw(running).await, [unique(), unique()]);
    let (client, proxy) = behind_proxy(running, "session=20s").await;
    let [held, _next] = after_a_cut(&client, &proxy, [&names[0], &names[1]]).await;
    let first = owner(&raw, &names[0]).await;
    assert_ne!(first, owner(&raw, &names[1]).await, "new claims use a session without a connection");
    let token = held.token();
    let read = held.downgrade().await.expect("the session is alive");
    assert_eq!((read.token(), owner(&raw, &names[0]).await), (token, first));
    read.release().await.expect("the claim holds the lock");
    assert_eq!(nodes(&raw, &names[0]).await, [""; 0]);
}

async fn a_short_time_for_calls_leaves_time_for_another_session() {
    let Some(running) = server().await else { return };
    let (raw, names) = (raw(running).await, [unique(), unique()]);
    let (client, proxy) = behind_proxy(running, "session=20s&timeout=400ms").await;
    let _held = after_a_cut(&client, &proxy, [&names[0], &names[1]]).await;
    let owners = join_all(names.iter().map(|name| owner(&raw, name))).await;
    assert_ne!(owners[0], owners[1], "new claims use a session without a connection");
}

async fn a_waiter_keeps_its_place_while_its_link_is_cut_for_longer_than_its_ttl() {
    let Some(running) = server().await else { return };
    let (raw, name) = (raw(running).await, unique());
    let held = direct(running).await.mutex(&name).lock().await.expect("the lock is free");
    let (client, proxy) = behind_proxy(running, "session=20s").await;
    let waiting = tokio::spawn(client.mutex(&name).lock().ttl(Duration::from_secs(4)).into_future());
    until("the claim does not join the queue", async || nodes(&raw, &name).await.len() == 2).await;
    let before = nodes(&raw, &name).await;
    proxy.hang_up();
    sleep(Duration::from_millis(4800)).await;
    proxy.pass();
    held.release().await.expect("the claim holds the lock");
    let next = soon("the lock is not granted", waiting)
        .await
        .expect("the task does not panic")
        .expect("the link was restored in time");
    assert!(
        before.contains(&nodes(&raw, &name).await.concat()),
        "the claim was deleted, and joined the queue again at the end"
    );
    drop(next);
}

async fn heartbeats_that_are_answered_late_keep_a_hold() {
    let Some(running) = server().await else { return };
    let name = unique();
    // The client sends a heartbeat every 1.5 s. A hold is lost after 6 s without a confirmed
    // heartbeat.
    let (client, proxy) = behind_proxy(running, "session=9s").await;
    let held =
        client.mutex(&name).lock().renew_every(Duration::from_millis(50)).await.expect("the lock is free");
    // By then the hold was renewed, and its node is watched.
    sleep(Duration::from_millis(300)).await;
    // A round trip takes longer than the interval between two heartbeats, and far less than the
    // session timeout.
    proxy.delay(Duration::from_millis(800));
    sleep(Duration::from_millis(7500)).await;
    assert!(!held.is_lost(), "every heartbeat was confirmed");
}

async fn heartbeats_that_are_answered_keep_a_hold_whose_node_cannot_be_read_in_time() {
    let Some(running) = server().await else { return };
    let (client, proxy) = behind_proxy(running, "session=9s").await;
    let held = client.mutex(unique()).lock().ttl(Duration::from_secs(3)).await.expect("the lock is free");
    // The hold was not renewed yet. A renewal has a third of the ttl, 1 s, and a round trip takes
    // 1.6 s.
    proxy.delay(Duration::from_millis(800));
    sleep(Duration::from_millis(7500)).await;
    assert!(!held.is_lost(), "every heartbeat was confirmed");
}

async fn connecting_succeeds_though_half_of_the_hosts_are_silent() {
    let Some(running) = server().await else { return };
    let address = running.servers()[0].address();
    let silent = [
        Proxy::to(address).await.expect("a port is free"),
        Proxy::to(address).await.expect("a port is free"),
    ];
    silent.iter().for_each(Proxy::stall);
    let hosts =
        format!("{},{address},{},localhost:{}", silent[0].address(), silent[1].address(), address.port());
    for number in 0..12 {
        // Uses the default time limit of a call.
        let client = common::connect(&format!("zk://{hosts}/test")).await;
        assert!(client.is_ok(), "connection {number}: {client:?}");
    }
}

/// The server is silent. Each call may end a little later on a busy machine.
async fn an_attempt_ends_within_three_quarters_of_the_ttl_and_a_renewal_within_a_third() {
    const TTL: Duration = Duration::from_secs(8);
    let Some(running) = server().await else { return };
    let proxy = Proxy::to(running.servers()[0].address()).await.expect("a port is free");
    let url = format!("zk://{}/test?timeout=60s&session=60s", proxy.address());
    let store = common::connect(&url).await.expect("a server is running");
    let claim = || {
        let name = LockName::new(unique()).expect("the name is legal");
        store.backend.claim(Request::new(name, Kind::Mutex, TTL))
    };
    let (mut held, mut other) = (claim(), claim());
    assert!(matches!(held.attempt().await, Ok(Attempt::Granted(_))), "the lock is free");
    proxy.stall();
    let (attempt, renewal) =
        join(timeout(TTL * 7 / 8, other.attempt()), timeout(TTL / 2, held.renew())).await;
    let attempt = attempt.expect("the attempt takes longer than three quarters of the ttl");
    assert!(attempt.is_err(), "the server is silent: {attempt:?}");
    drop(renewal.expect("the renewal takes longer than a third of the ttl"));
}

/// Returns the number of the last transaction that the servers have confirmed.
async fn transaction(running: &Running) -> u64 {
    let reply = word(running.servers()[0].address(), "srvr").await.expect("the server replies");
    let line = reply
        .lines()
        .find_map(|line| line.strip_prefix("Zxid: 0x"))
        .expect("the server reports the transaction");
    u64::from_str_radix(line.trim(), 16).expect("a number")
}

async fn a_heartbeat_is_a_write_that_changes_no_node() {
    // The test has its own server, so that no other client writes.
    let Some(running) = store(Flavour::Standalone).await else { return };
    let (client, _proxy) = behind_proxy(&running, "session=10s").await;
    let held = client.mutex(unique()).lock().await.expect("the lock is free");
    let (before, nodes_before) = (transaction(&running).await, counter(&running, "zk_znode_count").await);
    until("the heartbeats are no writes", async || transaction(&running).await >= before + 2).await;
    assert_eq!(counter(&running, "zk_znode_count").await, nodes_before, "heartbeats leave a node");
    assert!(!held.is_lost());
}

async fn a_session_has_six_heartbeats_in_its_timeout() {
    const SESSION: Duration = Duration::from_secs(6);
    // The test has its own server, so that no other client writes.
    let Some(running) = store(Flavour::Standalone).await else { return };
    let (client, _proxy) = behind_proxy(&running, "session=6s").await;
    let held = client.mutex(unique()).lock().await.expect("the lock is free");
    let (before, began) = (transaction(&running).await, Instant::now());
    until("the client sends no heartbeats", async || transaction(&running).await >= before + 6).await;
    // The first of the six may follow at once.
    let took = began.elapsed();
    assert!(took >= SESSION * 4 / 6, "six heartbeats in {took:?}");
    assert!(took < SESSION * 3 / 2, "only six heartbeats in {took:?}");
    assert!(!held.is_lost());
}

async fn a_busy_try_reads_from_the_leader_first() {
    const TRIES: u64 = 50;
    // The test has its own server, so that no other client is counted.
    let Some(running) = store(Flavour::Standalone).await else { return };
    let (client, name) = (direct(&running).await, unique());
    let _held = client.mutex(&name).lock().await.expect("the lock is free");
    let before = counter(&running, "zk_packets_received").await;
    for _ in 0..TRIES {
        assert!(client.mutex(&name).try_lock().await.expect("the server replies").is_none());
    }
    let made = counter(&running, "zk_packets_received").await - before;
    assert!(
        (2 * TRIES..2 * TRIES + 20).contains(&made),
        "{made} requests, although each try needs `sync` and a listing"
    );
}

async fn a_waiting_permit_sets_its_watches_together() {
    const PERMITS: u32 = 40;
    let Some(running) = store(Flavour::Standalone).await else { return };
    let (other, name) = (direct(&running).await, unique());
    let semaphore = other.semaphore(&name, PERMITS);
    let held = join_all((0..PERMITS).map(|_| semaphore.acquire().into_future())).await;
    assert!(held.iter().all(Result::is_ok), "each claim has a permit");
    let (client, proxy) = behind_proxy(&running, "session=20s").await;
    let before = counter(&running, "zk_watch_count").await;
    proxy.delay(Duration::from_millis(200));
    let began = Instant::now();
    let waiting = tokio::spawn(client.semaphore(&name, PERMITS).acquire().into_future());
    until("the claim does not set its watches", async || {
        counter(&running, "zk_watch_count").await >= before + u64::from(PERMITS)
    })
    .await;
    // Consecutive round trips would take at least 16 s.
    assert!(began.elapsed() < Duration::from_secs(10), "it took {:?}", began.elapsed());
    drop(held);
    proxy.pass();
    drop(
        soon("the waiter is not woken", waiting)
            .await
            .expect("the task does not panic")
            .expect("the lock is free"),
    );
}

/// Returns the greatest number of watches of one session.
async fn watches_of_a_session(running: &Running) -> usize {
    let reply = word(running.servers()[0].address(), "wchc").await.expect("the server replies");
    // A line names a session, and the indented lines after it are the paths that it watches.
    let sessions = reply.split("0x").map(|session| session.matches("\n\t").count());
    sessions.max().unwrap_or_default()
}

async fn a_permit_with_too_many_nodes_to_watch_is_woken_by_the_others() {
    const PERMITS: u32 = 50;
    // A session watches 116 KiB of paths, and each path has more than 3 KiB.
    const MOST_WATCHES: usize = 40;
    // With a ttl of 30 s, a waiter makes an attempt of its own after 10 s, and polls each second.
    const SOON: Duration = Duration::from_secs(6);
    let Some(running) = store(Flavour::Standalone).await else { return };
    let name = format!("{:/<1024}", unique());
    let client = || async { locks(&format!("{}/test?timeout=10s&session=60s", running.url())).await };
    let (other, client) = (client().await, client().await);
    let acquire = || other.semaphore(&name, PERMITS).acquire().into_future();
    let mut held = Vec::new();
    for _ in 0..PERMITS {
        held.push(acquire().await.expect("there are as many permits"));
    }
    for place in ["nearest", "farthest"] {
        let waiting = tokio::spawn(client.semaphore(&name, PERMITS).acquire().into_future());
        let mut watched = 0;
        until("the claim does not set its watches", async || {
            watched = watches_of_a_session(&running).await;
            watched >= MOST_WATCHES / 2
        })
        .await;
        assert!(watched < MOST_WATCHES, "a session has {watched} watches, and room for fewer");
        let left = if place == "nearest" { held.pop().expect("held") } else { held.remove(0) };
        left.release().await.expect("the claim holds a permit");
        let next = timeout(SOON, waiting)
            .await
            .unwrap_or_else(|_| panic!("the permit of the {place} holder is granted late"))
            .expect("the task does not panic")
            .expect("a permit is free");
        next.release().await.expect("the claim holds a permit");
        held.push(acquire().await.expect("a permit is free"));
    }
}

async fn a_claim_that_a_stray_node_keeps_out_is_shown_as_waiting_and_not_broken() {
    let Some(running) = server().await else { return };
    let (raw, client, name) = (raw(running).await, direct(running).await, unique());
    lasting_directory(&raw, &name).await;
    let stray = format!("/test/{name}/0");
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    raw.create(&stray, b"by hand", &options).await.expect("all clients may create nodes");
    let waiting = tokio::spawn(client.mutex(&name).lock().into_future());
    until("the claim does not join the queue", async || nodes(&raw, &name).await.len() == 2).await;
    let state = client.inspect(&name).await.expect("the server replies").expect("a claim is waiting");
    assert!(state.holders.is_empty(), "a blocked claim is shown as a holder: {state:?}");
    assert_eq!((state.queue.len(), state.queue[0].id.as_str()), (2, "0"), "the node that blocks the claim");
    assert!(!client.force_release(&name).await.expect("the server replies"), "the lock had no holder");
    assert_eq!(nodes(&raw, &name).await.len(), 2, "a waiting claim was deleted");
    raw.delete(&stray, None).await.expect("all clients may delete nodes");
    drop(
        soon("the waiter is not woken", waiting)
            .await
            .expect("the task does not panic")
            .expect("the lock is granted"),
    );
}
