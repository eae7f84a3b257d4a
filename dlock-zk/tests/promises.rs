//! The promises of the README that only this store can break, on one server.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]
#![allow(clippy::print_stdout, reason = "figures for the reader of the test's output")]

mod common;

use std::time::Duration;

use common::{connect, lasting_directory, locks, soon, store, unique};
use dlock_conformance::{Data, Proxy, Unreachable, or_ignore};
use dlock_core::{
    Error, Kind, LockName, LockOptions, Locks, LostReason, Observed,
    driver::{Attempt, Request},
};
use dlock_testbed::servers::{
    Running,
    zookeeper::{Flavour, start, word},
};
use futures_util::future::join_all;
use tokio::{
    sync::OnceCell,
    time::{Instant, sleep},
};
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Error as ZkError, Permission};

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_holder_whose_link_is_cut_knows_before_another_gets_the_lock on 2 threads,
        a_node_whose_reply_was_lost_is_adopted,
        a_dropped_future_leaves_no_node_though_the_link_was_cut,
        after_an_expired_session_new_claims_and_waiters_continue_in_another,
        used_names_leave_nothing,
        tokens_grow_on_after_the_directory_was_deleted_and_start_again_with_the_servers_data,
        a_hold_without_its_holder_is_refused_before_any_request,
        a_pair_costs_three_requests,
        the_first_use_of_a_name_costs_two_or_three_more,
        many_holds_of_a_session_cost_its_heartbeats_and_no_other_request on 2 threads,
        a_hold_whose_node_is_deleted_is_lost_at_once_and_a_request_to_release_is_only_shown,
        a_claim_whose_new_node_has_the_name_of_an_older_one_waits_for_the_claims_ahead on 2 threads,
        stray_nodes_block_as_they_block_curator_and_are_survived,
        a_name_of_curators_semaphore_is_refused_and_unchanged,
        missing_rights_are_named_and_the_login_of_the_url_has_them,
        a_holder_whose_node_is_unreadable_is_an_error_that_names_the_right,
        a_root_that_grants_no_rights_costs_no_hold on 2 threads,
        a_missing_chroot_and_a_session_that_is_not_granted_are_reported,
        an_unset_ttl_is_the_longest_that_the_session_can_keep,
        a_crowd_of_one_client_queues_and_is_drained_with_few_requests on 2 threads,
        an_observer_is_notified_of_each_change,
    }])
}

/// Server that the tests of this file share. It is stopped with the process.
static SERVER: OnceCell<Result<Running, Unreachable>> = OnceCell::const_new();

async fn server() -> Option<&'static Running> {
    or_ignore(SERVER.get_or_init(|| start(Flavour::Standalone)).await.as_ref().map_err(Clone::clone))
}

/// Returns the URL of a client whose locks are below `/test`. Calls have a long time limit for busy
/// machines.
fn url(running: &Running, params: &str) -> String {
    format!("{}/test?timeout=10s&{params}", running.url())
}

/// Connects through a proxy.
async fn behind_proxy(running: &Running, params: &str) -> (Locks, Proxy) {
    let proxy = Proxy::to(running.servers()[0].address()).await.expect("a port is free");
    (locks(&format!("zk://{}/test?timeout=10s&{params}", proxy.address())).await, proxy)
}

/// Opens a client of `zookeeper-client`, for direct access to nodes.
async fn raw(running: &Running) -> Client {
    let hosts = running.url().trim_start_matches("zk://");
    Client::connect(hosts).await.expect("the server is running")
}

/// Returns the nodes in a lock's directory, or none if there is no directory.
async fn nodes(raw: &Client, name: &str) -> Vec<String> {
    match raw.list_children(&format!("/test/{name}")).await {
        Err(ZkError::NoNode) => Vec::new(),
        nodes => nodes.expect("the server replies"),
    }
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !condition().await {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Each change is reported long before the observer inspects the lock on its own.
async fn an_observer_is_notified_of_each_change() {
    let Some(running) = server().await else { return };
    let (a, b) = (locks(&url(running, "session=40s")).await, locks(&url(running, "session=40s")).await);
    let name = unique();
    let interval = *b.info().ttl.end() / 3;
    // The election has no directory yet.
    let mut observer = b.election(&name).observe().await.expect("a server is running");
    let mut until = async |what: &str, label: Option<&str>| {
        let reported = async {
            loop {
                match (observer.next().await, label) {
                    (Observed::Vacant { .. }, None) => return,
                    (Observed::Leader(leader), Some(label)) if leader.who == label => return,
                    _ => {}
                }
            }
        };
        tokio::time::timeout(interval * 3 / 4, reported).await.unwrap_or_else(|_| panic!("{what}"));
    };
    until("the first state is not reported", None).await;
    for label in ["1", "2", "3"] {
        let term = a.election(&name).candidate().label(label).elect().await.expect("there is no rival");
        until("the observer was not notified of a new leader", Some(label)).await;
        term.resign().await.expect("the term is current");
        until("the observer was not notified of a resignation", None).await;
    }
}

/// The most important promise. In half of the runs the proxy passes no more data. In the other half
/// it refuses connections.
async fn a_holder_whose_link_is_cut_knows_before_another_gets_the_lock() {
    const RUNS: u64 = 50;
    let Some(running) = server().await else { return };
    let run = async |number: u64| {
        let name = unique();
        let (cut_off, proxy) = behind_proxy(running, "session=3s").await;
        let other = locks(&url(running, "session=10s")).await;
        let held = cut_off.mutex(&name).lock().await.expect("the lock is free");
        // Cuts the link at different times between two heartbeats and two renewals.
        sleep(Duration::from_millis(number * 37 % 700)).await;
        if number.is_multiple_of(2) {
            proxy.stall()
        } else {
            proxy.hang_up()
        }
        let next = other.mutex(&name).lock().await.expect("the session of the holder ends");
        // Read immediately after the grant.
        let knew = held.is_lost();
        assert!(knew, "run {number}: another client has the lock, and the holder does not know");
        assert_ne!(held.token(), next.token());
        assert!(next.token() > held.token());
        assert_eq!(held.lost().await, LostReason::Expired);
    };
    join_all((0..RUNS).map(run)).await;
}

async fn a_node_whose_reply_was_lost_is_adopted() {
    let Some(running) = server().await else { return };
    let (raw, name) = (raw(running).await, unique());
    let (client, proxy) = behind_proxy(running, "session=10s").await;
    // Creates the directory.
    let other = locks(&url(running, "session=10s"))
        .await
        .rwlock(&name)
        .read()
        .lock()
        .await
        .expect("the lock is free");
    proxy.hold_answers();
    let locking = tokio::spawn(client.rwlock(&name).read().lock().into_future());
    until("the node is not created", async || nodes(&raw, &name).await.len() == 2).await;
    let mut made = nodes(&raw, &name).await;
    made.sort_unstable();
    proxy.cut();
    proxy.pass();
    let guard = soon("the lock is not granted", locking)
        .await
        .expect("the task does not panic")
        .expect("the claim already has the node");
    let mut now = nodes(&raw, &name).await;
    now.sort_unstable();
    assert_eq!(now, made, "another node was created");
    guard.release().await.expect("the claim holds the lock");
    assert_eq!(nodes(&raw, &name).await.len(), 1);
    drop(other);
}

async fn a_dropped_future_leaves_no_node_though_the_link_was_cut() {
    let Some(running) = server().await else { return };
    let (raw, name) = (raw(running).await, unique());
    let (client, proxy) = behind_proxy(running, "session=10s").await;
    for wait in [0, 1, 5, 20] {
        proxy.hold_requests();
        let locking = tokio::spawn(client.mutex(&name).lock().into_future());
        sleep(Duration::from_millis(wait)).await;
        locking.abort();
        proxy.pass();
        client
            .mutex(&name)
            .lock()
            .await
            .expect("the lock is granted")
            .release()
            .await
            .expect("the claim holds the lock");
        until("a node is left", async || nodes(&raw, &name).await.is_empty()).await;
    }
}

async fn after_an_expired_session_new_claims_and_waiters_continue_in_another() {
    let Some(running) = server().await else { return };
    let (name, other_name) = (unique(), unique());
    let (client, proxy) = behind_proxy(running, "session=4s").await;
    let other = locks(&url(running, "session=10s")).await;
    let held = client.mutex(&name).lock().await.expect("the lock is free");
    let blocking = other.mutex(&other_name).lock().await.expect("the lock is free");
    let waiting = tokio::spawn(client.mutex(&other_name).lock().into_future());
    until("the claim does not wait", async || {
        other
            .inspect(&other_name)
            .await
            .expect("the server replies")
            .is_some_and(|state| state.queue.len() == 1)
    })
    .await;
    proxy.stall();
    assert_eq!(soon("the holder is not notified", held.lost()).await, LostReason::Expired);
    // The server has ended the session when both nodes are deleted.
    until("the session does not end", async || {
        let state = other.inspect(&other_name).await.expect("the server replies");
        state.is_some_and(|state| state.queue.is_empty())
            && other.inspect(&name).await.expect("the server replies").is_none()
    })
    .await;
    proxy.pass();
    let again = async {
        loop {
            match client.mutex(&name).lock().await {
                Ok(guard) => break guard,
                Err(error) => assert!(error.is_transient(), "{error:?}"),
            }
        }
    };
    let again = soon("the client has no session", again).await;
    assert!(again.token() > held.token(), "the token decreased");
    blocking.release().await.expect("the claim holds the lock");
    // The waiter joined the queue again, or failed because the store was unavailable for too long.
    match soon("the call does not end", waiting).await.expect("the task does not panic") {
        Ok(guard) => drop(guard),
        Err(error) => assert!(error.is_transient(), "{error:?}"),
    }
}

async fn used_names_leave_nothing() {
    let Some(running) = server().await else { return };
    let (raw, client) = (raw(running).await, locks(&url(running, "session=10s")).await);
    let name = unique();
    for kind in [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit] {
        drop(
            client
                .of(kind, &name)
                .lock(&LockOptions::new().ttl(Duration::from_secs(5)))
                .await
                .expect("the lock is free"),
        );
    }
    until("the directory is not deleted", async || {
        raw.check_stat(&format!("/test/{name}")).await.expect("the server replies").is_none()
    })
    .await;
}

/// Limit: servers without their data know neither the locks nor the last token.
async fn tokens_grow_on_after_the_directory_was_deleted_and_start_again_with_the_servers_data() {
    let Some(running) = store(Flavour::Standalone).await else { return };
    let (url, name) = (url(&running, "session=20s"), unique());
    let (raw, client) = (raw(&running).await, locks(&url).await);
    let mut token = None;
    for _ in 0..5 {
        let held = client.mutex(&name).lock().await.expect("the lock is free");
        assert!(held.token() > token, "the token decreased");
        token = held.token();
        held.release().await.expect("the lock is held");
        until("the directory is not deleted", async || {
            raw.check_stat(&format!("/test/{name}")).await.expect("the server replies").is_none()
        })
        .await;
    }
    let held = client.mutex(&name).lock().await.expect("the lock is free");
    let server = &running.servers()[0];
    server.kill().await.expect("the server is running");
    server.start(Data::Lost).await.expect("the server starts again");
    running.ready().await.expect("the server is ready again");
    let next = locks(&url).await.mutex(&name).lock().await.expect("the server knows no holder");
    assert!(next.token() < held.token(), "the tokens grow, although the README says that they do not");
    soon("the loss is not reported", held.lost()).await;
}

async fn a_hold_without_its_holder_is_refused_before_any_request() {
    let Some(running) = server().await else { return };
    // A request would wait for its reply for ten seconds.
    let (client, proxy) = behind_proxy(running, "session=60s").await;
    let held = client.mutex(unique()).lock().await.expect("the lock is free");
    proxy.stall();
    let began = Instant::now();
    let refused =
        held.detach(Duration::from_secs(1)).await.map(drop).expect_err("nodes end with their session");
    let text = format!("{refused:?}");
    assert!(text.contains("session") && text.contains("Unsupported"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(8), "the client sent a request");
}

/// Returns the number of requests that the server has received from all clients.
async fn requests(running: &Running) -> u64 {
    let reply = word(running.servers()[0].address(), "mntr").await.expect("the server replies");
    let line = reply.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
    line.expect("the server reports the counter").trim().parse().expect("a number")
}

/// Returns the maximum number of requests within `took` that are not sent for claims. These are the
/// heartbeats of a client with a session of 30 s, and the requests of the test itself.
fn idle(took: Duration) -> u64 {
    10 + took.as_secs()
}

async fn a_pair_costs_three_requests() {
    const PAIRS: u64 = 500;
    // The test has its own server, so that no other client is counted.
    let Some(running) = store(Flavour::Standalone).await else { return };
    let (client, name) = (locks(&url(&running, "session=30s")).await, unique());
    // If the server deleted the directory from time to time, creating it again would cost more
    // requests.
    lasting_directory(&raw(&running).await, &name).await;
    let (before, began) = (requests(&running).await, Instant::now());
    for _ in 0..PAIRS {
        client
            .mutex(&name)
            .lock()
            .await
            .expect("the lock is free")
            .release()
            .await
            .expect("the claim holds the lock");
    }
    let (made, most) = (requests(&running).await - before, 3 * PAIRS + idle(began.elapsed()));
    assert!((3 * PAIRS..most).contains(&made), "{made} requests for {PAIRS} pairs");
}

async fn the_first_use_of_a_name_costs_two_or_three_more() {
    const NAMES: u64 = 100;
    // The test has its own server, so that no other client is counted.
    let Some(running) = store(Flavour::Standalone).await else { return };
    let (client, name) = (locks(&url(&running, "session=30s")).await, unique());
    let pair = async |number: u64| {
        let lock = client.mutex(format!("{name}-{number}"));
        lock.lock().await.expect("the lock is free").release().await.expect("the claim holds the lock");
    };
    // The first claim also creates the directory of all locks.
    pair(NAMES).await;
    let (before, began) = (requests(&running).await, Instant::now());
    for number in 0..NAMES {
        pair(number).await;
    }
    let (made, most) = (requests(&running).await - before, 6 * NAMES + idle(began.elapsed()));
    assert!((5 * NAMES..most).contains(&made), "{made} requests for the first pairs of {NAMES} names");
}

/// `DLOCK_MANY` is the number of holds. Default: 500.
async fn many_holds_of_a_session_cost_its_heartbeats_and_no_other_request() {
    const WATCHED: Duration = Duration::from_secs(8);
    let held = std::env::var("DLOCK_MANY").map_or(500, |text| text.parse().expect("a number"));
    let Some(running) = store(Flavour::Standalone).await else { return };
    let (client, name) = (locks(&url(&running, "session=30s")).await, unique());
    let before = requests(&running).await;
    let lock = |number| client.mutex(format!("{name}-{number}")).lock().into_future();
    let holds: Vec<_> = join_all((0..held).map(lock))
        .await
        .into_iter()
        .map(|guard| guard.expect("the lock is free"))
        .collect();
    // Each hold creates its directory and its node. From its first renewal on it watches its node.
    let watches = async || {
        let reply = word(running.servers()[0].address(), "mntr").await.expect("the server replies");
        reply.lines().find_map(|line| line.strip_prefix("zk_watch_count")?.trim().parse().ok()).unwrap_or(0)
    };
    until("the holders do not watch their nodes", async || watches().await >= held).await;
    let (between, began) = (requests(&running).await, Instant::now());
    sleep(WATCHED).await;
    let (made, took) = (requests(&running).await - between, began.elapsed());
    println!(
        "{held} holds: {} requests until each has renewed, and {made} in {took:.1?} after that",
        between - before
    );
    assert!(made < idle(took), "{made} requests in {took:?} for {held} holds");
    assert!(holds.iter().all(|held| !held.is_lost()));
}

async fn a_hold_whose_node_is_deleted_is_lost_at_once_and_a_request_to_release_is_only_shown() {
    let Some(running) = server().await else { return };
    let (raw, client) = (raw(running).await, locks(&url(running, "session=10s")).await);
    let name = unique();
    // The hold watches its node from its first renewal on.
    let held =
        client.mutex(&name).lock().renew_every(Duration::from_millis(50)).await.expect("the lock is free");
    sleep(Duration::from_millis(300)).await;
    let node = format!("/test/{name}/{}", nodes(&raw, &name).await.concat());
    raw.set_data(&node, b"__REVOKE__", None).await.expect("all clients may write nodes");
    sleep(Duration::from_millis(300)).await;
    assert!(!held.is_lost(), "a request to release must not end the hold");
    let state = client.inspect(&name).await.expect("the server replies").expect("the lock is held");
    assert_eq!(state.holders[0].who.as_deref(), Some("asked to release the lock"));
    assert_eq!(state.holders[0].token, held.token());
    raw.delete(&node, None).await.expect("all clients may delete nodes");
    assert_eq!(soon("the holder is not notified", held.lost()).await, LostReason::Deleted);
}

/// The directory of a lock is deleted while a waiter is silent. Its numbers begin at zero again, so
/// the waiter's new node has the name of its deleted one, which the client has seen at the head of
/// the queue.
async fn a_claim_whose_new_node_has_the_name_of_an_older_one_waits_for_the_claims_ahead() {
    let Some(running) = server().await else { return };
    let (raw, store) = (raw(running).await, connect(&url(running, "")).await.expect("the server is running"));
    let name = unique();
    lasting_directory(&raw, &name).await;
    let claim = |ttl: Duration| {
        let name = LockName::new(name.clone()).expect("the name is legal");
        store.backend.claim(Request::new(name, Kind::Mutex, ttl))
    };
    let mut holder = claim(*store.backend.info().ttl.end());
    assert!(matches!(holder.attempt().await, Ok(Attempt::Granted(_))), "the lock is free");
    let mut waiter = claim(Duration::from_secs(1));
    assert!(matches!(waiter.attempt().await, Ok(Attempt::Busy { .. })), "the lock is held");
    let of_waiter =
        nodes(&raw, &name).await.into_iter().max_by_key(|node| node[node.len() - 10..].to_owned());
    // Shares the listings with the first waiter.
    let mut last = claim(Duration::from_secs(1));
    assert!(matches!(last.attempt().await, Ok(Attempt::Busy { .. })), "the lock is held");
    until("the silent waiters are not deleted", async || nodes(&raw, &name).await.len() == 1).await;
    holder.release().await.expect("the server replies");
    until("the holder is not deleted", async || nodes(&raw, &name).await.is_empty()).await;

    let directory = format!("/test/{name}");
    raw.delete(&directory, None).await.expect("the directory is empty");
    lasting_directory(&raw, &name).await;
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let ahead = format!("{directory}/_c_0b9c1d52-8b1b-4a86-8a5b-0c0f6a1c7d11-lock-");
    raw.create(&ahead, b"", &options).await.expect("all clients may create nodes");
    for _ in 0..10 {
        let attempt = waiter.attempt().await.expect("the server replies");
        assert!(matches!(attempt, Attempt::Busy { .. }), "two claims hold the lock: {attempt:?}");
        let nodes = nodes(&raw, &name).await;
        assert!(of_waiter.as_ref().is_some_and(|node| nodes.contains(node)), "{of_waiter:?} in {nodes:?}");
    }
    waiter.release().await.expect("the server replies");
    last.release().await.expect("the server replies");
}

async fn stray_nodes_block_as_they_block_curator_and_are_survived() {
    let Some(running) = server().await else { return };
    let (raw, client) = (raw(running).await, locks(&url(running, "session=10s")).await);
    let name = unique();
    lasting_directory(&raw, &name).await;
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for stray in ["日本", "zzz", "zlock-a", "lock-日bcdefghi", "x__lock__0000000001"] {
        raw.create(&format!("/test/{name}/{stray}"), b"\xff", &options)
            .await
            .expect("all clients may create nodes");
    }
    let held = client
        .mutex(&name)
        .try_lock()
        .await
        .expect("the server replies")
        .expect("none of these nodes is ahead");
    held.release().await.expect("the claim holds the lock");
    raw.create(&format!("/test/{name}/0"), b"", &options).await.expect("all clients may create nodes");
    assert!(
        client.mutex(&name).try_lock().await.expect("the server replies").is_none(),
        "the lock was granted although Curator would wait"
    );
    let waiting = tokio::spawn(client.mutex(&name).lock().into_future());
    sleep(Duration::from_millis(100)).await;
    raw.delete(&format!("/test/{name}/0"), None).await.expect("all clients may delete nodes");
    drop(
        soon("the waiter is not woken", waiting)
            .await
            .expect("the task does not panic")
            .expect("the lock is granted"),
    );
    for stray in nodes(&raw, &name).await {
        // The claim's own node may be among these nodes, and the claim deletes it as well.
        let _ = raw.delete(&format!("/test/{name}/{stray}"), None).await;
    }
}

async fn a_name_of_curators_semaphore_is_refused_and_unchanged() {
    let Some(running) = server().await else { return };
    let (raw, client) = (raw(running).await, locks(&url(running, "session=10s")).await);
    let name = unique();
    lasting_directory(&raw, &name).await;
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for directory in ["leases", "locks"] {
        let path = format!("/test/{name}/{directory}");
        raw.create(&path, b"", &options).await.expect("all clients may create nodes");
    }
    for kind in [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit] {
        let options = LockOptions::new().ttl(Duration::from_secs(5));
        let refused = client.of(kind, &name).lock(&options).await.map(drop);
        assert!(matches!(refused, Err(Error::WrongKind { .. })), "{kind}: {refused:?}");
    }
    until("a claim is left", async || nodes(&raw, &name).await.len() == 2).await;
    assert!(client.inspect(&name).await.expect("the server replies").is_none(), "no claim has the lock");
}

async fn missing_rights_are_named_and_the_login_of_the_url_has_them() {
    let Some(running) = server().await else { return };
    let (base, host) = (unique(), running.url().trim_start_matches("zk://"));
    let owner = locks(&format!("zk://app:s%40cret@{host}/{base}?acl=creator&session=10s")).await;
    let held = owner.mutex("a").lock().await.expect("the lock is free");
    let stranger = locks(&format!("zk://{host}/{base}?session=10s")).await;
    for refused in [
        stranger.mutex("a").try_lock().await.map(drop),
        stranger.mutex("b").lock().await.map(drop),
        stranger.inspect("a").await.map(drop),
    ] {
        let error = refused.expect_err("only the owner has the rights");
        let text = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        assert!(
            matches!(error, Error::Refused { .. }) && text.contains("CREATE, DELETE and READ"),
            "{error:?}"
        );
    }
    let friend = locks(&format!("zk://app:s%40cret@{host}/{base}?acl=creator&session=10s")).await;
    assert!(friend.mutex("a").try_lock().await.expect("the server replies").is_none());
    held.release().await.expect("the claim holds the lock");
    drop(friend.mutex("a").try_lock().await.expect("the server replies").expect("the lock is free"));
    soon("a client without rights cannot be closed", stranger.close()).await;
}

async fn a_holder_whose_node_is_unreadable_is_an_error_that_names_the_right() {
    let Some(running) = server().await else { return };
    let (client, name) = (locks(&url(running, "session=10s")).await, unique());
    let hosts = running.url().trim_start_matches("zk://");
    let other = Client::connector()
        .with_auth("digest", b"other:pw")
        .connect(hosts)
        .await
        .expect("a server is running");
    // The directory itself is open to all clients.
    lasting_directory(&other, &name).await;
    let node = format!("/test/{name}/_c_caa75163-f1f4-467d-9207-2ba259767d1e-lock-");
    let options = CreateMode::EphemeralSequential.with_acls(Acls::creator_all());
    other.create(&node, b"", &options).await.expect("all clients may create nodes");
    let error = client.mutex(&name).lock().await.map(drop).expect_err("the node cannot be watched");
    let text = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(
        matches!(error, Error::Refused { .. }) && text.contains("each node must grant READ"),
        "{error:?}"
    );
    let state = client.inspect(&name).await.expect("the server replies").expect("the lock is held");
    assert_eq!(
        (state.holders.len(), state.queue.len()),
        (1, 0),
        "the claim has left, and the holder is shown: {state:?}"
    );
}

/// A server refuses the heartbeats of such a client, and a refusal confirms them.
async fn a_root_that_grants_no_rights_costs_no_hold() {
    // The test has its own server, because other tests create nodes below the root.
    let Some(running) = store(Flavour::Standalone).await else { return };
    let (raw, client) = (raw(&running).await, locks(&url(&running, "session=4s")).await);
    let held = client.mutex(unique()).lock().await.expect("the lock is free");
    let nobody = [Acl::new(Permission::ALL, AuthId::new("digest", "nobody:x"))];
    raw.set_acl("/", &nobody, None).await.expect("all clients may change the rights");
    let refused = raw.delete("/dlock heartbeat", Some(-2)).await;
    assert!(matches!(refused, Err(ZkError::NoAuth)), "{refused:?}");
    // Without confirmed heartbeats, the hold would be lost before the end of the session.
    let lost = tokio::time::timeout(Duration::from_secs(6), held.lost()).await;
    assert!(lost.is_err(), "the hold is lost: {lost:?}");
    held.release().await.expect("the directories have their own rights");
}

async fn a_missing_chroot_and_a_session_that_is_not_granted_are_reported() {
    let Some(running) = server().await else { return };
    let (raw, chroot) = (raw(running).await, unique());
    let refusal = |url: String| async move {
        connect(&url).await.map(drop).expect_err("the URL is refused").to_string()
    };
    let missing = refusal(url(running, &format!("chroot=/{chroot}"))).await;
    assert!(missing.contains("does not exist") && missing.contains(&chroot), "{missing}");
    let long = refusal(url(running, "session=10m")).await;
    assert!(long.contains("session=1m") && long.contains("maxSessionTimeout"), "{long}");
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    raw.create(&format!("/{chroot}"), b"", &options).await.expect("all clients may create nodes");
    let below = locks(&url(running, &format!("session=10s&chroot=/{chroot}"))).await;
    let whole = locks(&format!("{}/{chroot}/test?session=10s", running.url())).await;
    let held = below.mutex("x").lock().await.expect("the lock is free");
    assert!(
        whole.mutex("x").try_lock().await.expect("the server replies").is_none(),
        "two locks have one node"
    );
    assert_eq!(below.info().identity, whole.info().identity);
    held.release().await.expect("the claim holds the lock");
}

async fn an_unset_ttl_is_the_longest_that_the_session_can_keep() {
    let Some(running) = server().await else { return };
    let client = Locks::new(connect(&url(running, "session=20s")).await.expect("a server is running"));
    let held = client.mutex(unique()).lock().await.expect("a default that the store can keep");
    assert!(held.remaining() <= Duration::from_secs(10) && held.remaining() > Duration::from_secs(8));
}

/// `DLOCK_MANY` is the number of waiters. Default: 1 000.
async fn a_crowd_of_one_client_queues_and_is_drained_with_few_requests() {
    // The test has its own server, so that no other client is counted.
    let Some(running) = store(Flavour::Standalone).await else { return };
    let crowd = std::env::var("DLOCK_MANY").map_or(1000, |text| text.parse().expect("a number"));
    let (client, name) = (locks(&url(&running, "session=30s")).await, unique());
    let held = client.mutex(&name).lock().await.expect("the lock is free");
    let (before, began) = (requests(&running).await, Instant::now());
    let takes_its_turn = |_| {
        let lock = client.mutex(&name).lock().into_future();
        tokio::spawn(async {
            lock.await.expect("the lock is granted").release().await.expect("the claim holds the lock")
        })
    };
    let waiting: Vec<_> = (0..crowd).map(takes_its_turn).collect();
    let raw = raw(&running).await;
    soon("the claims do not join the queue", async {
        while raw.get_children(&format!("/test/{name}")).await.expect("the server replies").1.num_children
            <= crowd
        {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let queued = began.elapsed();
    // The requests stop when each waiter has set its watch.
    let mut seen = 0;
    until("the requests do not stop", async || {
        let now = requests(&running).await;
        sleep(Duration::from_millis(300)).await;
        let settled = now.abs_diff(seen) < 5;
        seen = requests(&running).await;
        settled
    })
    .await;
    let (to_queue, before) = (requests(&running).await - before, requests(&running).await);
    let began = Instant::now();
    held.release().await.expect("the claim holds the lock");
    for waiter in waiting {
        soon("the lock is not granted", waiter).await.expect("the task does not panic");
    }
    let (drained, took) = (requests(&running).await - before, began.elapsed());
    println!(
        "{crowd} waiters: queued in {queued:.1?} with {to_queue} requests, drained in {took:.1?} with {drained}"
    );
    let crowd = u64::try_from(crowd).expect("a small number");
    assert!(drained <= crowd * 3 + 50, "{drained} requests for {crowd} hand-offs");
}
