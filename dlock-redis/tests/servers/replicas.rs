//! Tests of replicas. With `wait_replicas`, a grant that no replica has is refused. dlock never
//! reads the holder of a lock from a replica.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use dlock_core::{ClaimId, Error, Guard, Kind, LockOptions, Locks, Result, Wait, driver::Renewal};
use dlock_testbed::servers::{Running, Server, redis::Flavour};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use crate::common::{Bench, claim, connect, granted, query, raw, relay::Relay, servers, soon};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_grant_does_not_wait_if_no_replica_is_connected,
        a_grant_that_no_replica_has_is_refused_and_not_left_held,
        a_detachment_that_no_replica_has_is_not_confirmed,
        one_replica_is_enough_although_more_were_requested,
        replicas_may_take_longer_than_a_command_may,
        a_waiter_is_granted_when_the_replica_is_back,
        grants_that_wait_for_a_replica_delay_no_renewal,
        a_grant_that_waits_for_replicas_costs_one_or_two_round_trips,
        while_no_replica_replies_each_grant_delays_the_next_one,
        on_a_cluster_without_replicas_all_locks_are_granted,
        on_a_cluster_the_wait_is_sent_to_the_node_that_has_the_key,
        on_a_cluster_a_new_connection_confirms_no_write_of_another_one,
        what_is_held_is_seen_though_no_replica_has_heard_of_it,
    }
}

/// Slots of the third node of a cluster.
const LAST_THIRD: std::ops::RangeInclusive<u16> = 10_923..=16_383;

/// Prefix of names whose locks are on the first node.
const FIRST: &str = "{bar}";
/// Prefix of names whose locks are on the second node.
const SECOND: &str = "{foo}";

async fn locks(running: &Running, replicas: u32) -> Locks {
    let url = format!("{}?wait_replicas={replicas}&replicas_timeout=1s", running.url());
    Locks::new(connect(&url).await.expect("the servers are running"))
}

/// Starts a server and its replica.
async fn pair() -> Option<(Running, Running)> {
    let (primary, replica) = (servers(Flavour::Standalone).await?, servers(Flavour::Standalone).await?);
    let address = primary.servers()[0].address();
    query::<()>(&replica.servers()[0], &format!("REPLICAOF {} {}", address.ip(), address.port())).await;
    follows(&primary.servers()[0]).await;
    Some((primary, replica))
}

/// Starts a cluster of two nodes, with the third node as a replica of the second.
async fn cluster() -> Option<Running> {
    let running = servers(Flavour::Cluster).await?;
    let [_, second, third] = running.servers() else { panic!("three nodes") };
    let id: String = query(second, "CLUSTER MYID").await;
    let mut moves = redis::pipe();
    for slot in LAST_THIRD {
        moves.cmd("CLUSTER").arg("SETSLOT").arg(slot).arg("NODE").arg(&id).ignore();
    }
    // With a higher epoch, the other nodes accept the assignment.
    moves.cmd("CLUSTER").arg("BUMPEPOCH").ignore();
    let mut raw = raw(&format!("redis://{}", second.address())).await;
    moves.exec_async(&mut raw).await.expect("the slots are empty");
    // A node that has lost its last slot to another node becomes a replica of that node.
    follows(second).await;
    let port = format!(":{}@", third.address().port());
    for server in running.servers() {
        while query::<String>(server, "CLUSTER NODES").await.lines().any(|node| {
            let third = node.contains(&port);
            third != node.contains("slave")
        }) {
            sleep(Duration::from_millis(20)).await;
        }
    }
    running.ready().await.expect("the cluster is complete");
    Some(running)
}

/// Waits until a replica follows the primary.
async fn follows(primary: &Server) {
    while !query::<String>(primary, "INFO replication").await.contains("state=online") {
        sleep(Duration::from_millis(20)).await;
    }
}

/// Tries a lock of this kind, with a name for each kind.
async fn try_lock(locks: &Locks, kind: Kind, prefix: &str) -> Result<Option<Guard>> {
    locks.of(kind, format!("{prefix}{kind}")).try_lock(&LockOptions::new()).await
}

/// Returns the keys that clients have left on a server, except tokens and labels.
async fn left(server: &Server) -> Vec<String> {
    let mut keys: Vec<String> = query(server, "KEYS *").await;
    keys.retain(|key| !key.starts_with("redisson_lock_token:") && !key.starts_with("dlock_who:"));
    keys
}

/// Returns the number of calls of `WAIT` on a server.
async fn waits(server: &Server) -> u32 {
    calls(server, "wait").await
}

/// Returns the number of calls of a command on a server.
async fn calls(server: &Server, command: &str) -> u32 {
    let (stats, start): (String, _) =
        (query(server, "INFO commandstats").await, format!("cmdstat_{command}:calls="));
    let calls = stats.lines().find_map(|line| line.strip_prefix(&start)?.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

async fn a_grant_does_not_wait_if_no_replica_is_connected() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("wait_replicas=1&replicas_timeout=60s").await;
    let result = soon(
        "the client waits for a replica that does not exist",
        locks.mutex("foo").try_lock().into_future(),
    )
    .await;
    assert!(result.unwrap().is_some(), "the lock is not granted without a replica, unlike by Redisson");
}

async fn a_grant_that_no_replica_has_is_refused_and_not_left_held() {
    let Some((primary, replica)) = pair().await else { return };
    let locks = locks(&primary, 1).await;
    for kind in crate::common::KINDS {
        let held = try_lock(&locks, *kind, SECOND).await.unwrap();
        held.expect("the replica replies").release().await.unwrap();
    }
    replica.servers()[0].pause().await.unwrap();
    for kind in crate::common::KINDS {
        let result = try_lock(&locks, *kind, SECOND).await;
        assert!(
            matches!(result, Err(Error::Unavailable { .. })),
            "{kind}: granted without a replica: {result:?}"
        );
    }
    locks.close().await;
    assert_eq!(left(&primary.servers()[0]).await, [""; 0], "a refused claim holds the lock");
    replica.servers()[0].resume().await.unwrap();
}

/// No renewal follows a detachment, so a replica must have received it.
async fn a_detachment_that_no_replica_has_is_not_confirmed() {
    let Some((primary, replica)) = pair().await else { return };
    let url = format!("{}?wait_replicas=1&replicas_timeout=1s", primary.url());
    let store = connect(&url).await.expect("the servers are running");
    for kind in crate::common::KINDS {
        let (mut held, _) = claim(&store, &format!("foo-{kind}"), *kind, 600_000, Wait::Never);
        granted(held.attempt().await);
        let (lasting, ticket) = (Duration::from_secs(1200), ClaimId::random());
        let before = waits(&primary.servers()[0]).await;
        assert_eq!(held.detach(lasting, ticket).await.unwrap(), Renewal::Renewed { valid_for: lasting });
        assert_eq!(waits(&primary.servers()[0]).await, before + 1, "{kind}");
        replica.servers()[0].pause().await.unwrap();
        let result = held.detach(lasting, ticket).await;
        assert!(matches!(result, Err(Error::Unavailable { .. })), "{kind}: {result:?}");
        replica.servers()[0].resume().await.unwrap();
        held.release().await.unwrap();
        assert_eq!(held.detach(lasting, ticket).await.unwrap(), Renewal::Lost, "{kind}");
    }
}

async fn one_replica_is_enough_although_more_were_requested() {
    let Some((primary, _replica)) = pair().await else { return };
    let locks = locks(&primary, 2).await;
    assert!(
        locks.mutex("foo").try_lock().await.unwrap().is_some(),
        "one replica that replies is not enough, unlike for Redisson"
    );
}

async fn replicas_may_take_longer_than_a_command_may() {
    let Some((primary, replica)) = pair().await else { return };
    let url = format!("{}?timeout=1s&wait_replicas=1&replicas_timeout=20s", primary.url());
    let locks = Locks::new(connect(&url).await.unwrap());
    replica.servers()[0].pause().await.unwrap();
    let attempt = tokio::spawn(locks.mutex("foo").try_lock().into_future());
    sleep(Duration::from_secs(2)).await;
    replica.servers()[0].resume().await.unwrap();
    let result = soon("the attempt does not end", attempt).await.unwrap();
    assert!(result.expect("the timeout of replicas had not passed").is_some());
}

async fn a_waiter_is_granted_when_the_replica_is_back() {
    let Some((primary, replica)) = pair().await else { return };
    let (server, locks) = (&primary.servers()[0], locks(&primary, 1).await);
    replica.servers()[0].pause().await.unwrap();
    let waiter = tokio::spawn(locks.mutex("foo").lock().into_future());
    // The first `WAIT` shows the client that there is a replica. The next ones show that the
    // replica does not reply.
    while waits(server).await < 3 {
        sleep(Duration::from_millis(10)).await;
    }
    replica.servers()[0].resume().await.unwrap();
    soon("the waiter makes no further attempt", waiter).await.unwrap().unwrap().release().await.unwrap();
}

async fn grants_that_wait_for_a_replica_delay_no_renewal() {
    let Some((primary, replica)) = pair().await else { return };
    let locks = locks(&primary, 1).await;
    let held = locks.mutex("held").lock().ttl(Duration::from_secs(6)).await.unwrap();
    replica.servers()[0].pause().await.unwrap();
    let attempts: Vec<_> = (0..40)
        .map(|number| tokio::spawn(locks.mutex(format!("other{number}")).lock().into_future()))
        .collect();
    sleep(Duration::from_secs(12)).await;
    assert!(!held.is_lost(), "the lock was not renewed although the primary replies");
    attempts.iter().for_each(tokio::task::JoinHandle::abort);
    replica.servers()[0].resume().await.unwrap();
    held.release().await.unwrap();
}

async fn a_grant_that_waits_for_replicas_costs_one_or_two_round_trips() {
    const GRANTS: u32 = 10;
    let Some((primary, _replica)) = pair().await else { return };
    let (server, locks) = (&primary.servers()[0], locks(&primary, 1).await);
    let grant = async || {
        let held = locks.mutex("foo").try_lock().await.unwrap().expect("the lock is free");
        held.release().await.unwrap();
    };
    // The first grant shows the client that there is a replica, and writes the label.
    grant().await;
    let first = waits(server).await;
    assert!((1..=2).contains(&first), "the first grant has sent WAIT {first} times");
    let counts = async || (calls(server, "eval").await, calls(server, "info").await, waits(server).await);
    let before = counts().await;
    for _ in 0..GRANTS {
        grant().await;
    }
    let after = counts().await;
    let waited = after.2 - before.2;
    assert!((GRANTS..=2 * GRANTS).contains(&waited), "{GRANTS} grants have sent WAIT {waited} times");
    assert_eq!(after.0 - before.0, waited, "not one renewal with each WAIT");
    // The counts were queried with INFO twice after its first count and before its last one.
    assert_eq!(after.1 - before.1, waited + 3, "not one INFO with each WAIT");
}

async fn while_no_replica_replies_each_grant_delays_the_next_one() {
    let Some((primary, replica)) = pair().await else { return };
    let locks = locks(&primary, 1).await;
    // Shows the client that there is a replica.
    try_lock(&locks, Kind::Mutex, FIRST)
        .await
        .unwrap()
        .expect("the replica replies")
        .release()
        .await
        .unwrap();
    replica.servers()[0].pause().await.unwrap();
    let started_at = Instant::now();
    let tries = join_all([Kind::Mutex, Kind::Fair, Kind::Write].map(async |kind| {
        let result = try_lock(&locks, kind, SECOND).await;
        assert!(matches!(result, Err(Error::Unavailable { .. })), "{kind}: {result:?}");
        started_at.elapsed()
    }));
    let mut ended = tries.await;
    ended.sort_unstable();
    for (after, seconds) in ended.iter().zip([1.0, 2.0, 3.0]) {
        // The server may end `WAIT` some milliseconds early.
        assert!(after.as_secs_f64() > seconds - 0.1, "the calls have ended after {ended:?}");
    }
    replica.servers()[0].resume().await.unwrap();
}

async fn on_a_cluster_without_replicas_all_locks_are_granted() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let locks = locks(&running, 1).await;
    for number in 0..20 {
        let held = locks.mutex(format!("foo{number}")).try_lock().await.unwrap();
        assert!(held.is_some(), "a free lock is not granted");
    }
}

async fn on_a_cluster_the_wait_is_sent_to_the_node_that_has_the_key() {
    let Some(running) = cluster().await else { return };
    let locks = locks(&running, 1).await;
    let [first, second, third] = running.servers() else { panic!("three nodes") };
    for kind in crate::common::KINDS {
        let held = try_lock(&locks, *kind, SECOND).await.unwrap().expect("the replica replies");
        held.release().await.unwrap();
    }
    assert_eq!(waits(first).await, 0, "another node has received WAIT");
    assert!(waits(second).await >= 4, "the node has not received WAIT");
    third.pause().await.unwrap();
    for kind in crate::common::KINDS {
        // The third node is a replica of the second and has only its data, so the first node that
        // the client queries does not matter.
        let result = try_lock(&locks, *kind, SECOND).await;
        assert!(
            matches!(result, Err(Error::Unavailable { .. })),
            "{kind}: granted without a replica: {result:?}"
        );
        let held = try_lock(&locks, *kind, FIRST).await.unwrap();
        held.expect("the node has no replica").release().await.unwrap();
    }
    locks.close().await;
    assert_eq!(left(second).await, [""; 0], "a refused claim holds the lock");
    third.resume().await.unwrap();
}

async fn on_a_cluster_a_new_connection_confirms_no_write_of_another_one() {
    let Some(running) = cluster().await else { return };
    let [_, second, third] = running.servers() else { panic!("three nodes") };
    let broken = AtomicBool::new(false);
    let relay = Relay::rewriting(second.address(), move |words| {
        if words[0] == "WAIT" && !broken.swap(true, Relaxed) { Vec::new() } else { words }
    });
    let port = relay.await.address.port();
    query::<()>(second, &format!("CONFIG SET cluster-announce-port {port}")).await;
    let announced = async {
        for server in running.servers() {
            while !query::<String>(server, "CLUSTER NODES").await.contains(&format!(":{port}@")) {
                sleep(Duration::from_millis(20)).await;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), announced)
        .await
        .expect("the nodes announce their ports to each other");
    let locks = locks(&running, 1).await;
    third.pause().await.unwrap();
    let result = try_lock(&locks, Kind::Mutex, SECOND).await;
    assert!(matches!(result, Err(Error::Unavailable { .. })), "granted without a replica: {result:?}");
    third.resume().await.unwrap();
}

async fn what_is_held_is_seen_though_no_replica_has_heard_of_it() {
    let Some(running) = cluster().await else { return };
    let third = &running.servers()[2];
    let (a, b) = (Locks::new(connect(running.url()).await.unwrap()), locks(&running, 1).await);
    third.pause().await.unwrap();
    for kind in crate::common::KINDS {
        let held = try_lock(&a, *kind, SECOND).await.unwrap().expect("this client waits for no replica");
        let name = format!("{SECOND}{kind}");
        let state = b.inspect(&name).await.unwrap();
        assert_eq!(state.expect("a replica was queried").holders.len(), 1);
        let listed = b.list(&name).await.unwrap();
        assert_eq!(listed.len(), 1, "a replica was queried");
        held.release().await.unwrap();
        assert_eq!(b.inspect(&name).await.unwrap(), None, "a replica was queried");
    }
    third.resume().await.unwrap();
}
