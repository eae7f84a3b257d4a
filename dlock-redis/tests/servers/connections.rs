//! Tests of the connections of one client: their number and their names.

use std::time::Duration;

use dlock_core::{Guard, LockOptions, Locks};
use dlock_testbed::servers::{Running, Server, redis::Flavour};
use futures_util::future::{join, join_all};
use tokio::time::{sleep, timeout};

use crate::common::{connect, query, servers, soon};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_client_has_two_connections_and_with_wait_replicas_a_third_one,
        on_a_cluster_a_client_has_one_connection_to_each_node_and_with_wait_replicas_two,
        on_a_cluster_connections_have_neither_the_name_of_the_client_nor_that_of_the_library,
    }
}

/// Connects a client as the user `app`, which no connection of the test has.
async fn client(running: &Running, params: &str) -> Locks {
    for server in running.servers() {
        query::<()>(server, "ACL SETUSER app on nopass +@all ~* &*").await;
    }
    let url = running.url().replacen("://", "://app:any@", 1);
    let store = connect(&format!("{url}?{params}")).await.expect("the servers are running");
    Locks::new(store).with_defaults(LockOptions::new().ttl(Duration::from_secs(600)))
}

/// Returns the entries of the client's connections in the server's list.
async fn connections(server: &Server) -> Vec<String> {
    let list: String = query(server, "CLIENT LIST").await;
    list.lines().filter(|line| line.contains(" user=app ")).map(str::to_owned).collect()
}

/// Waits until the client has this number of connections to a server.
async fn wait_for_connections(server: &Server, count: usize) {
    let reached = async {
        while connections(server).await.len() != count {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let result = timeout(Duration::from_secs(10), reached).await;
    assert!(result.is_ok(), "not {count} connections: {:?}", connections(server).await);
}

/// Locks a mutex, and waits for it with another claim until the server has the subscription, which
/// `command` lists. Then runs `check`, and releases both.
async fn hold_and_wait(
    locks: &Locks,
    name: &str,
    server: &Server,
    command: &str,
    check: impl Future<Output = ()>,
) {
    let held = locks.mutex(name).lock().await.expect("the lock is free");
    let check = async {
        let subscribed = async {
            while query::<Vec<String>>(server, command).await.is_empty() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        soon("the waiter does not subscribe", subscribed).await;
        check.await;
        held.release().await.expect("the lock is held");
    };
    let (next, ()) = join(locks.mutex(name).lock().into_future(), check).await;
    next.expect("the lock is free").release().await.expect("the lock is held");
}

/// Locks as many mutexes as a client with a connection for each would notice.
async fn many(locks: &Locks, names: &str) -> Vec<Guard> {
    let all = (0..20).map(|number| locks.mutex(format!("{names}{number}")).lock().into_future());
    join_all(all).await.into_iter().map(|held| held.expect("the lock is free")).collect()
}

async fn a_client_has_two_connections_and_with_wait_replicas_a_third_one() {
    let Some(running) = servers(Flavour::Standalone).await else { return };
    let server = &running.servers()[0];
    for (params, without_waiter) in [("", 1), ("keyspace_events=on", 2), ("wait_replicas=1", 2)] {
        let locks = client(&running, params).await;
        assert_eq!(connections(server).await.len(), 1, "{params}: before the first claim");
        let held = many(&locks, "bar").await;
        wait_for_connections(server, without_waiter).await;
        let with_waiter = if params.starts_with("wait") { 3 } else { 2 };
        hold_and_wait(&locks, "foo", server, "PUBSUB CHANNELS redisson*", async {
            assert_eq!(connections(server).await.len(), with_waiter, "{params}: with a waiter");
        })
        .await;
        drop(held);
        locks.close().await;
        drop(locks);
        wait_for_connections(server, 0).await;
    }
}

async fn on_a_cluster_a_client_has_one_connection_to_each_node_and_with_wait_replicas_two() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    for (params, count) in [("", 1), ("wait_replicas=1", 2)] {
        let locks = client(&running, params).await;
        // Names on each of the nodes.
        for (tag, server) in ["{bar}", "{c}", "{foo}"].iter().zip(running.servers()) {
            let held = many(&locks, tag).await;
            hold_and_wait(&locks, &format!("{tag}foo"), server, "PUBSUB SHARDCHANNELS", async {}).await;
            drop(held);
        }
        for server in running.servers() {
            wait_for_connections(server, count).await;
        }
        locks.close().await;
        drop(locks);
        for server in running.servers() {
            wait_for_connections(server, 0).await;
        }
    }
}

async fn on_a_cluster_connections_have_neither_the_name_of_the_client_nor_that_of_the_library() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let _locks = client(&running, "client_name=billing-7").await;
    for server in running.servers() {
        let all = connections(server).await;
        assert!(!all.is_empty(), "the client has no connection to the node");
        for name in [" name=billing-7 ", " name=dlock ", " lib-name=dlock "] {
            assert!(!all.iter().any(|line| line.contains(name)), "{all:?}");
        }
    }
}
