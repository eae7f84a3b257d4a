//! Failures of ensembles, such as followers that freeze and leaders that die.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]

mod common;

use std::time::Duration;

use common::{connect, lasting_directory, locks, some, soon, store, unique};
use dlock_conformance::{Data, Proxy};
use dlock_core::Locks;
use dlock_testbed::servers::{Server, zookeeper::Flavour};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_holder_on_a_follower_that_freezes_knows_before_another_gets_the_lock on 2 threads,
        a_lock_outlives_the_leader_and_tokens_grow_on on 2 threads,
        a_server_that_waits_for_the_others_is_no_lasting_error on 2 threads,
        a_leader_that_freezes_costs_no_lock on 2 threads,
        a_create_that_arrives_after_its_claim_was_released_leaves_no_node on 2 threads,
    }])
}

fn url(servers: &[Server], params: &str) -> String {
    let hosts: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
    format!("zk://{}/test?timeout=10s&{params}", hosts.join(","))
}

/// The leader may end the session earlier than the client expects, because the frozen follower has
/// not reported the last heartbeats.
async fn a_holder_on_a_follower_that_freezes_knows_before_another_gets_the_lock() {
    let Some(running) = store(Flavour::Ensemble).await else { return };
    for phase in 0..5 {
        let [frozen, other] = some(&running, "Mode: follower").await;
        let name = unique();
        let holder = locks(&url(std::slice::from_ref(&frozen), "session=3s")).await;
        let client = locks(&url(&[other], "session=20s")).await;
        let held = holder.mutex(&name).lock().await.expect("the lock is free");
        sleep(Duration::from_millis(phase * 130)).await;
        frozen.pause().await.expect("the server is running");
        let next = soon("the session of the holder does not end", client.mutex(&name).lock().into_future())
            .await
            .expect("the lock is granted");
        assert!(held.is_lost(), "phase {phase}: two claims hold the lock");
        drop(next);
        frozen.resume().await.expect("the server is running");
        running.ready().await.expect("the servers agree");
    }
}

async fn a_lock_outlives_the_leader_and_tokens_grow_on() {
    let Some(running) = store(Flavour::Ensemble).await else { return };
    // The longest session, because an election may take long on a busy machine.
    let url = url(running.servers(), "session=60s");
    let (a, b) = (locks(&url).await, locks(&url).await);
    let name = unique();
    let held = a.mutex(&name).lock().renew_every(Duration::from_millis(200)).await.expect("the lock is free");
    let waiting = tokio::spawn(b.mutex(&name).lock().into_future());
    let [leader] = some(&running, "Mode: leader").await;
    leader.kill().await.expect("the server is running");
    let [_other] = some(&running, "Mode: leader").await;
    leader.start(Data::Kept).await.expect("the server starts");
    running.ready().await.expect("the servers agree");
    // Each client has a connection to a running server again.
    for client in [&a, &b] {
        drop(
            soon("the client is cut off", client.mutex(unique()).lock().into_future())
                .await
                .expect("the lock is free"),
        );
    }
    assert!(!held.is_lost(), "a majority had the node all the time");
    assert!(!waiting.is_finished(), "two claims hold the lock");
    let token = held.token();
    held.release().await.expect("the claim holds the lock");
    let next = soon("the waiter was not woken", waiting)
        .await
        .expect("the task does not panic")
        .expect("the lock is granted");
    assert!(next.token() > token, "the token decreased");
    // The waiter's token is the number of its node, which may be older than the election.
    let token = next.token();
    next.release().await.expect("the claim holds the lock");
    let next =
        soon("the client is cut off", a.mutex(&name).lock().into_future()).await.expect("the lock is free");
    assert!(next.token() > token, "the token of the new leader is lower");
}

async fn a_server_that_waits_for_the_others_is_no_lasting_error() {
    let Some(running) = store(Flavour::Ensemble).await else { return };
    let [one, others @ ..] = running.servers() else { panic!("three servers") };
    for other in others {
        other.kill().await.expect("the server is running");
    }
    // The server accepts connections and refuses sessions.
    let url = format!("zk://{}/test?session=20s&timeout=2s", one.address());
    let error = connect(&url).await.map(drop).expect_err("the server has no majority");
    assert!(error.is_transient(), "{error:?}");
    let text =
        format!("{error} {}", std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default());
    assert!(
        text.contains("zk") && (text.contains("opened a session") || text.contains("within 2s")),
        "{text}"
    );
    others[0].start(Data::Kept).await.expect("the server starts");
    let connected = async {
        loop {
            match connect(&url).await {
                Ok(store) => break store,
                Err(error) => assert!(error.is_transient(), "{error:?}"),
            }
        }
    };
    drop(soon("two of three servers open no session", connected).await);
}

async fn a_leader_that_freezes_costs_no_lock() {
    const CLIENTS: usize = 12;
    let Some(running) = store(Flavour::Ensemble).await else { return };
    let hosts: Vec<_> = running.servers().iter().map(|server| server.address().to_string()).collect();
    // All parameters have their defaults.
    let url = format!("zk://{}/test", hosts.join(","));
    let clients = join_all((0..CLIENTS).map(|_| locks(&url))).await;
    let hold = async |client: &Locks| client.mutex(unique()).lock().await.expect("the lock is free");
    let guards = join_all(clients.iter().map(hold)).await;
    let [leader] = some(&running, "Mode: leader").await;
    leader.pause().await.expect("the server is running");
    let began = Instant::now();
    // The other servers need some seconds to elect a leader.
    let connected = async {
        loop {
            match connect(&url).await {
                Ok(store) => break Locks::new(store),
                Err(error) => assert!(error.is_transient(), "{error:?}"),
            }
        }
    };
    let newcomer = soon("no client can connect", connected).await;
    drop(soon("the lock is not granted", newcomer.mutex(unique()).lock().into_future()).await);
    assert!(began.elapsed() < Duration::from_secs(30), "a new client has waited for {:?}", began.elapsed());
    for number in 0..5 {
        let client = connect(&url).await;
        assert!(client.is_ok(), "connection {number}: {client:?}");
    }
    sleep(Duration::from_secs(25).saturating_sub(began.elapsed())).await;
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    assert_eq!(lost, 0, "of {CLIENTS} locks are lost, although a majority was running all the time");
    leader.resume().await.expect("the server is running");
}

/// The request is delayed on the way to one server, and the session continues through another
/// server. An attempt to connect to the first server may be delayed, too. If both arrive together,
/// the first server executes the request, because the session has moved back to it. This depends on
/// milliseconds, so several clients try it at the same time.
async fn a_create_that_arrives_after_its_claim_was_released_leaves_no_node() {
    const CLIENTS: usize = 12;
    let Some(running) = store(Flavour::Ensemble).await else { return };
    let servers = running.servers();
    let raw = zookeeper_client::Client::connect(&servers[2].address().to_string()).await;
    let raw = raw.expect("the server is running");
    let release_before_create = async |_| {
        let [first, second] = [Proxy::to(servers[0].address()).await, Proxy::to(servers[1].address()).await];
        let (first, second) = (first.expect("a port is free"), second.expect("a port is free"));
        second.hang_up();
        let client =
            locks(&format!("zk://{},{}/test?session=20s&timeout=4s", first.address(), second.address()))
                .await;
        let name = unique();
        lasting_directory(&raw, &name).await;
        // The client has a connection through the first proxy.
        drop(
            soon("the lock is not granted", client.mutex(unique()).lock().into_future())
                .await
                .expect("the lock is free"),
        );
        first.hold_requests();
        second.pass();
        let given_up = client.mutex(&name).lock().wait(Duration::from_millis(500)).await;
        assert!(given_up.is_err(), "no request has arrived: {given_up:?}");
        // The release of the claim, and this lock, go through the second server.
        drop(
            soon("the lock is not granted", client.mutex(unique()).lock().into_future())
                .await
                .expect("the lock is free"),
        );
        first.pass();
        // The session is alive, so the node stays unless the server refuses the late request or
        // the client deletes the node.
        let other = locks(&url(&servers[2..], "session=20s")).await;
        drop(
            soon("a late request has created a node", other.mutex(&name).lock().into_future())
                .await
                .expect("the lock is granted"),
        );
        // The late request may not have arrived yet. If it has created a node, the client's next
        // heartbeat gets the error that the session has moved, and the client deletes the node.
        sleep(Duration::from_secs(1)).await;
        soon("the client cannot be closed", other.close()).await;
        let empty = async {
            while !raw.list_children(&format!("/test/{name}")).await.expect("the server replies").is_empty() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        soon("a late request has created a node", empty).await;
        soon("the client cannot be closed", client.close()).await;
    };
    join_all((0..CLIENTS).map(release_before_create)).await;
}
