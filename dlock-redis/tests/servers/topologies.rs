//! Tests of failovers, of messages that belong to one shard, and of other faults that need several
//! servers.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]

use std::time::Duration;

use dlock_core::{Error, Kind, LockOptions, Locks, LostReason, Who};
use dlock_testbed::servers::{
    Running, Server,
    redis::{Brand, Flavour, start},
};
use futures_util::future::join_all;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::common::{
    connect, error_text, query, raw, relay::Relay, replicated, servers, soon, unsubscribe_and_send,
};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_failover_that_loses_nothing_is_not_noticed_by_a_holder,
        a_failover_that_loses_a_grant_is_reported_and_the_next_token_is_greater,
        a_cluster_that_is_too_old_is_refused_with_what_it_needs,
        on_a_cluster_waiters_listen_to_one_shard,
        on_a_cluster_clients_that_publish_in_different_ways_exclude_each_other,
        on_a_cluster_each_waiter_for_a_mutex_sends_attempts,
        on_a_cluster_a_node_that_hangs_keeps_no_lock_of_another_from_being_renewed,
        on_a_cluster_a_message_that_was_lost_with_the_subscription_is_made_good,
        on_a_cluster_a_release_whose_reply_is_lost_is_not_reported_as_a_loss,
        on_a_cluster_odd_names_are_locks_of_every_kind,
        a_client_connects_to_a_cluster_while_one_node_hangs,
        a_killed_node_delays_no_wake_up_by_another_node,
        a_waiter_is_woken_by_the_node_to_which_its_slot_has_moved,
        while_a_slot_moves_its_locks_stay_held_and_its_free_names_are_unavailable,
        one_node_of_a_cluster_is_refused_with_the_scheme_for_all,
        the_locks_of_a_cluster_that_reports_no_addresses_are_listed,
        on_a_cluster_labels_are_reported_whichever_node_has_them,
        on_a_cluster_a_node_that_hangs_does_not_delay_calls_whose_labels_it_stores,
    }
}

async fn locks(running: &Running, ttl: u64) -> Locks {
    let store = connect(running.url()).await.expect("the servers are running");
    Locks::new(store).with_defaults(LockOptions::new().ttl(Duration::from_secs(ttl)))
}

/// Waits until there are subscriptions. Returns their channels.
async fn subscribed_channels(cluster: &Running) -> Vec<String> {
    loop {
        let mut channels = Vec::new();
        for server in cluster.servers() {
            channels.extend(query::<Vec<String>>(server, "PUBSUB SHARDCHANNELS").await);
        }
        if !channels.is_empty() {
            return channels;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn a_failover_that_loses_nothing_is_not_noticed_by_a_holder() {
    let Some(running) = servers(Flavour::Sentinel).await else { return };
    let (a, b) = (locks(&running, 12).await, locks(&running, 12).await);
    let held = a.mutex("foo").lock().await.unwrap();
    replicated(&running.servers()[0]).await;
    running.servers()[0].kill().await.unwrap();
    // At least two renewals are due, one of them after the promotion.
    tokio::time::sleep(Duration::from_secs(14)).await;
    assert!(!held.is_lost(), "the hold was not renewed on the new primary, which has the lock");
    assert!(b.mutex("foo").try_lock().await.unwrap().is_none(), "two clients hold the lock");
    held.release().await.unwrap();
    assert!(b.mutex("foo").lock().await.unwrap().token() > None);
}

async fn a_failover_that_loses_a_grant_is_reported_and_the_next_token_is_greater() {
    let Some(running) = servers(Flavour::Sentinel).await else { return };
    let [primary, replica, ..] = running.servers() else { panic!("a primary and its replica") };
    let (a, b) = (locks(&running, 12).await, locks(&running, 12).await);
    replicated(primary).await;
    replica.pause().await.unwrap();
    // Otherwise the grant would wait in the replica's socket, and still reach the replica.
    query::<u64>(primary, "CLIENT KILL TYPE replica").await;
    let held = a.mutex("foo").lock().await.unwrap();
    primary.kill().await.unwrap();
    replica.resume().await.unwrap();
    // Asynchronous replication cannot prevent that both clients hold the lock for some time. The
    // tokens still grow, and the loss is reported to the first holder.
    let next = async {
        loop {
            if let Ok(next) = b.mutex("foo").lock().await {
                return next;
            }
        }
    };
    let next = timeout(Duration::from_secs(30), next).await.expect("the replica was promoted");
    assert!(next.token() > held.token(), "a fence would refuse the new holder: {next:?} after {held:?}");
    let lost = timeout(Duration::from_secs(20), held.lost());
    let reason = lost.await.expect("the loss was not reported to the holder");
    assert!(matches!(reason, LostReason::Deleted | LostReason::Expired), "{reason:?}");
}

async fn a_cluster_that_is_too_old_is_refused_with_what_it_needs() {
    let Some(running) = dlock_conformance::or_ignore(start(Brand::Redis5, Flavour::Cluster).await) else {
        return;
    };
    let error = connect(running.url()).await.unwrap_err();
    assert!(!error.is_transient(), "a retry does not help: {error:?}");
    let text = error_text(&error);
    assert!(text.contains("a cluster needs Redis 6 or later"), "{text}");
}

/// Waits until there are no subscriptions.
async fn wait_for_no_subscriptions(cluster: &Running) {
    for server in cluster.servers() {
        while !query::<Vec<String>>(server, "PUBSUB SHARDCHANNELS").await.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn on_a_cluster_waiters_listen_to_one_shard() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let (a, b) = (locks(&running, 600).await, locks(&running, 600).await);
    let held = a.mutex("foo").lock().await.unwrap();
    let waiter = tokio::spawn(b.mutex("foo").lock().into_future());
    let channels =
        timeout(Duration::from_secs(10), subscribed_channels(&running)).await.expect("no client subscribes");
    assert_eq!(channels, ["redisson_lock__channel:{foo}"]);
    held.release().await.unwrap();
    drop(timeout(Duration::from_secs(10), waiter).await.expect("the waiter was not woken").unwrap().unwrap());
}

/// Returns the number of calls of these commands on a server.
async fn calls<const COUNT: usize>(server: &Server, commands: [&str; COUNT]) -> [u64; COUNT] {
    let stats: String = query(server, "INFO commandstats").await;
    commands.map(|command| {
        let start = format!("cmdstat_{command}:calls=");
        let calls = stats.lines().find_map(|line| line.strip_prefix(&start)?.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    })
}

/// Returns the number of subscriptions to the channel of the mutex `foo`, on all nodes: to the
/// classic channel and to the channel of the shard.
async fn subscriptions(cluster: &Running) -> [u64; 2] {
    let mut counts = [0, 0];
    for server in cluster.servers() {
        for (count, command) in counts.iter_mut().zip(["NUMSUB", "SHARDNUMSUB"]) {
            let command = format!("PUBSUB {command} redisson_lock__channel:{{foo}}");
            *count += query::<(String, u64)>(server, &command).await.1;
        }
    }
    counts
}

/// Waits until there are these numbers of subscriptions.
async fn wait_for_subscriptions(cluster: &Running, counts: [u64; 2]) {
    let subscribed = async {
        while subscriptions(cluster).await != counts {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), subscribed).await.expect("not these subscriptions");
}

async fn on_a_cluster_clients_that_publish_in_different_ways_exclude_each_other() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let client = async |pubsub: &str| {
        Locks::new(connect(&format!("{}?pubsub={pubsub}", running.url())).await.unwrap())
    };
    let (classic, sharded) = (client("classic").await, client("sharded").await);
    let (none, only_classic, only_sharded) = ([0, 0], [1, 0], [0, 1]);
    for (holder, published, waiting, subscribed) in
        [(&classic, [1, 0], &sharded, only_sharded), (&sharded, [0, 1], &classic, only_classic)]
    {
        let held = holder.mutex("foo").lock().ttl(Duration::from_secs(600)).await.unwrap();
        assert!(waiting.mutex("foo").try_lock().await.unwrap().is_none(), "two clients hold the lock");
        let waiter = tokio::spawn(waiting.mutex("foo").lock().ttl(Duration::from_secs(6)).into_future());
        wait_for_subscriptions(&running, subscribed).await;
        let node = &running.servers()[2];
        let before = calls(node, ["publish", "spublish"]).await;
        held.release().await.unwrap();
        let after = calls(node, ["publish", "spublish"]).await;
        let calls = [after[0] - before[0], after[1] - before[1]];
        assert_eq!(calls, published, "the waiter has received the message of the release");
        let next = timeout(Duration::from_secs(10), waiter).await.expect("the waiter sends no attempt");
        next.unwrap().unwrap().release().await.unwrap();
        wait_for_subscriptions(&running, none).await;
    }
}

async fn on_a_cluster_each_waiter_for_a_mutex_sends_attempts() {
    const WAITERS: u64 = 20;
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let (holder, client) = (locks(&running, 300).await, locks(&running, 3).await);
    let _held = holder.mutex("foo").lock().await.unwrap();
    let attempts = async || calls(&running.servers()[2], ["eval", "evalsha"]).await.iter().sum::<u64>();
    let wait_for_attempts = async |count: u64| {
        let reached = async {
            while attempts().await < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("a waiter makes no attempt", reached).await;
    };
    let (start, mut waiters) = (attempts().await, JoinSet::new());
    for _ in 0..WAITERS {
        waiters.spawn(client.mutex("foo").lock().into_future());
    }
    // The attempts before and after the subscription.
    wait_for_attempts(start + 2 * WAITERS).await;
    // The first waiter alone would take 20 s for these attempts.
    wait_for_attempts(attempts().await + WAITERS).await;
}

async fn on_a_cluster_a_node_that_hangs_keeps_no_lock_of_another_from_being_renewed() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let locks = locks(&running, 3).await;
    // Names in one slot of each node. The slot of `{foo}` is on the last node.
    let names = ["{bar}", "{c}", "{foo}"].map(|tag| (0..10).map(move |number| format!("{tag}{number}")));
    let all = names.into_iter().flatten().map(|name| locks.mutex(name).lock().into_future());
    let held: Vec<_> = join_all(all).await.into_iter().map(|held| held.expect("the lock is free")).collect();
    for server in running.servers() {
        // Otherwise the other nodes would declare the whole cluster down.
        query::<()>(server, "CONFIG SET cluster-node-timeout 60000").await;
    }
    let hung = &running.servers()[2];
    hung.pause().await.unwrap();
    // Longer than a ttl, and longer than the timeout of a call.
    tokio::time::sleep(Duration::from_millis(4500)).await;
    let lost: Vec<_> = held.iter().filter(|held| held.is_lost()).map(|held| held.name().as_str()).collect();
    let expected: Vec<_> = (0..10).map(|number| format!("{{foo}}{number}")).collect();
    assert_eq!(lost, expected, "the lost locks are not exactly those of the silent node");
    hung.resume().await.unwrap();
}

async fn on_a_cluster_a_message_that_was_lost_with_the_subscription_is_made_good() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let locks = locks(&running, 600).await;
    let server = &running.servers()[2];
    query::<()>(server, "HSET foo aaaa:1 1").await;
    query::<()>(server, "PEXPIRE foo 600000").await;
    let waiter = tokio::spawn(locks.mutex("foo").lock().into_future());
    subscribed_channels(&running).await;
    unsubscribe_and_send(&mut raw(&format!("redis://{}", server.address())).await, "DEL foo").await;
    drop(
        timeout(Duration::from_secs(10), waiter)
            .await
            .expect("the waiter made no further attempt")
            .unwrap()
            .unwrap(),
    );
}

async fn on_a_cluster_a_release_whose_reply_is_lost_is_not_reported_as_a_loss() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let server = &running.servers()[2];
    let relay = Relay::to(server.address()).await;
    let port = relay.address.port();
    query::<()>(server, &format!("CONFIG SET cluster-announce-port {port}")).await;
    // Waits until all nodes send their clients through the relay.
    for server in running.servers() {
        while !query::<String>(server, "CLUSTER NODES").await.contains(&format!(":{port}@")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let locks = locks(&running, 30).await;
    for round in 0..10 {
        // A first call loads the script into the server.
        locks.mutex("foo").lock().await.unwrap().release().await.unwrap();
        let (held, before) = (locks.mutex("foo").lock().await.unwrap(), relay.connections());
        relay.lose_reply();
        let released = timeout(Duration::from_secs(10), held.release()).await.expect("the call does not end");
        assert!(released.is_ok(), "{round}: the second release does not detect the first one: {released:?}");
        assert!(relay.connections() > before, "the release was not sent again");
    }
}

async fn on_a_cluster_odd_names_are_locks_of_every_kind() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let (a, b) = (locks(&running, 600).await, locks(&running, 600).await);
    for name in ["a{b", "a}b", "a{}b", "}{", "{", "{}{c}"] {
        for kind in crate::common::KINDS {
            let options = LockOptions::new().ttl(Duration::from_secs(600));
            let held = a.of(*kind, name).lock(&options).await.unwrap();
            // A reader excludes a writer, not another reader.
            let lock = b.of(if *kind == Kind::Read { Kind::Write } else { *kind }, name);
            assert!(lock.try_lock(&options).await.unwrap().is_none(), "two clients hold `{name}` as {kind}");
            let state = b.inspect(name).await.unwrap().expect("the lock is held");
            assert_eq!((state.name.as_str(), state.holders.len()), (name, 1));
            let waiter = tokio::spawn(async move { lock.lock(&options).await });
            subscribed_channels(&running).await;
            held.release().await.unwrap();
            let held = timeout(Duration::from_secs(10), waiter)
                .await
                .expect("the waiter was not woken")
                .unwrap()
                .unwrap();
            held.release().await.unwrap();
            // Otherwise the subscriptions of two rounds could not be distinguished.
            timeout(Duration::from_secs(10), wait_for_no_subscriptions(&running))
                .await
                .expect("a subscription remains");
        }
    }
}

async fn a_client_connects_to_a_cluster_while_one_node_hangs() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    for server in running.servers() {
        // Otherwise the other nodes would declare the whole cluster down.
        query::<()>(server, "CONFIG SET cluster-node-timeout 60000").await;
    }
    running.servers()[0].pause().await.unwrap();
    let connected = connect(running.url()).await;
    let locks = Locks::new(connected.expect("the other nodes reply"));
    // A name of the second node.
    let held = locks.mutex("{c}").lock().await.expect("the second node replies");
    held.release().await.unwrap();
    running.servers()[0].resume().await.unwrap();
}

async fn a_killed_node_delays_no_wake_up_by_another_node() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let [killed, others @ ..] = running.servers() else { panic!("three nodes") };
    for other in others {
        query::<()>(other, "CONFIG SET cluster-require-full-coverage no").await;
    }
    // A name on the killed node, and a name on the next node.
    let (killed_name, live_name) = ("bar", "c");
    let holder = locks(&running, 600).await;
    let store = connect(&format!("{}?timeout=20s", running.url())).await.unwrap();
    let waiting = Locks::new(store).with_defaults(LockOptions::new().ttl(Duration::from_secs(600)));
    let _held = holder.mutex(killed_name).lock().await.unwrap();
    let _waiter = tokio::spawn(waiting.mutex(killed_name).lock().into_future());
    wait_for_subscriber(killed, killed_name).await;
    killed.kill().await.unwrap();
    // By now the client tries to reach the killed node.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let held = holder.mutex(live_name).lock().await.unwrap();
    let waiter = tokio::spawn(waiting.mutex(live_name).lock().into_future());
    wait_for_subscriber(&others[0], live_name).await;
    held.release().await.unwrap();
    let woken = timeout(Duration::from_secs(10), waiter).await.expect("the waiter was not woken in time");
    woken.unwrap().unwrap().release().await.unwrap();
}

async fn a_waiter_is_woken_by_the_node_to_which_its_slot_has_moved() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let [from, to, other] = running.servers() else { panic!("three nodes") };
    let (a, b) = (locks(&running, 600).await, locks(&running, 600).await);
    let name = "bar";
    let held = a.mutex(name).lock().await.unwrap();
    let waiter = tokio::spawn(b.mutex(name).lock().into_future());
    wait_for_subscriber(from, name).await;
    let slot = begin_move(name, from, to).await;
    move_keys(slot, from, to).await;
    end_move(slot, [to, from, other]).await;
    wait_for_subscriber(to, name).await;
    held.release().await.unwrap();
    let woken = timeout(Duration::from_secs(10), waiter).await.expect("the waiter was not woken");
    woken.unwrap().unwrap().release().await.unwrap();
}

/// Begins to move the slot of a name, and returns the slot.
async fn begin_move(name: &str, from: &Server, to: &Server) -> u64 {
    let slot = query::<u64>(from, &format!("CLUSTER KEYSLOT {name}")).await;
    let (old, new) = (query::<String>(from, "CLUSTER MYID").await, query::<String>(to, "CLUSTER MYID").await);
    query::<()>(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {old}")).await;
    query::<()>(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {new}")).await;
    slot
}

/// Moves the keys of a slot.
async fn move_keys(slot: u64, from: &Server, to: &Server) {
    let keys: Vec<String> = query(from, &format!("CLUSTER GETKEYSINSLOT {slot} 100")).await;
    let mut migrate = redis::cmd("MIGRATE");
    migrate.arg("127.0.0.1").arg(to.address().port()).arg("").arg(0).arg(5000).arg("KEYS");
    migrate.arg(keys);
    migrate.exec_async(&mut raw(&format!("redis://{}", from.address())).await).await.expect("migrated");
}

/// Gives a slot to the first of the nodes.
async fn end_move(slot: u64, nodes: [&Server; 3]) {
    let new = query::<String>(nodes[0], "CLUSTER MYID").await;
    for node in nodes {
        query::<()>(node, &format!("CLUSTER SETSLOT {slot} NODE {new}")).await;
    }
}

async fn while_a_slot_moves_its_locks_stay_held_and_its_free_names_are_unavailable() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let [from, to, other] = running.servers() else { panic!("three nodes") };
    let ttl = Duration::from_secs(6);
    let (a, b) = (locks(&running, ttl.as_secs()).await, locks(&running, ttl.as_secs()).await);
    // The names have one slot.
    let held = a.mutex("bar").lock().await.unwrap();
    let queued = tokio::spawn(b.mutex("bar").lock().into_future());
    wait_for_subscriber(from, "bar").await;
    let slot = begin_move("bar", from, to).await;
    let free = b.mutex("{bar}-free");
    for moved in [false, true] {
        let refused = [free.try_lock().await.map(drop), free.lock().await.map(drop)];
        for refused in refused {
            assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        }
        tokio::time::sleep(ttl).await;
        assert!(!held.is_lost(), "the lock is lost while its slot moves, keys moved: {moved}");
        assert!(!queued.is_finished(), "the waiter has ended, keys moved: {moved}");
        if !moved {
            move_keys(slot, from, to).await;
        }
    }
    end_move(slot, [to, from, other]).await;
    let granted = timeout(ttl, free.lock().into_future()).await.expect("the slot has moved");
    granted.expect("the lock is free").release().await.unwrap();
    held.release().await.unwrap();
    let next = timeout(ttl, queued).await.expect("the waiter for a held lock waits").unwrap();
    next.expect("the lock is free").release().await.unwrap();
}

/// Waits until a client subscribes to the channel of a mutex on a node.
async fn wait_for_subscriber(node: &Server, name: &str) {
    let subscribed = async {
        let command = format!("PUBSUB SHARDNUMSUB redisson_lock__channel:{{{name}}}");
        while query::<(String, u64)>(node, &command).await.1 == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), subscribed).await.expect("no client subscribes");
}

async fn one_node_of_a_cluster_is_refused_with_the_scheme_for_all() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    for server in running.servers() {
        let error = connect(&format!("redis://{}", server.address()))
            .await
            .expect_err("one node has only a third of the names");
        assert!(!error.is_transient(), "a retry does not help: {error:?}");
        assert!(error_text(&error).contains("`redis-cluster://`"), "{}", error_text(&error));
    }
}

async fn the_locks_of_a_cluster_that_reports_no_addresses_are_listed() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    for server in running.servers() {
        query::<()>(server, "CONFIG SET cluster-preferred-endpoint-type unknown-endpoint").await;
    }
    let locks = locks(&running, 600).await;
    let names: Vec<_> = (0..20).map(|number| format!("foo{number:02}")).collect();
    let held = join_all(names.iter().map(|name| locks.mutex(name).lock().into_future())).await;
    let listed = locks.list("foo").await.expect("the cluster reports the slots of its nodes");
    assert_eq!(listed.iter().map(|state| state.name.to_string()).collect::<Vec<_>>(), names);
    drop(held);
}

async fn on_a_cluster_labels_are_reported_whichever_node_has_them() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let (mut tickets, client) = (Vec::new(), locks(&running, 600).await);
    for number in 0..9 {
        let who = Who::new(format!("client {number}")).expect("legal");
        let locks = locks(&running, 600).await.with_who(who);
        let held = locks.mutex(format!("foo{number}")).lock().await.expect("the lock is free");
        tickets.push(held.detach(Duration::from_secs(600)).await.expect("the lock is held"));
    }
    let reported = async {
        // A node may receive the label after another node has granted the lock.
        loop {
            let listed = client.list("foo").await.expect("the nodes reply");
            let who: Vec<_> = listed.into_iter().map(|mut state| state.holders.remove(0).who).collect();
            if (0..9).all(|number| who[number] == Some(format!("client {number}"))) {
                return;
            }
        }
    };
    soon("a label is never reported", reported).await;
    for ticket in tickets {
        client.release(&ticket).await.expect("the lock is held");
    }
}

async fn on_a_cluster_a_node_that_hangs_does_not_delay_calls_whose_labels_it_stores() {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let url = format!("{}?timeout={}s", running.url(), TIMEOUT.as_secs());
    let locks = Locks::new(connect(&url).await.expect("the servers are running"))
        .with_defaults(LockOptions::new().ttl(TIMEOUT * 10));
    for server in running.servers() {
        // Otherwise the other nodes would declare the whole cluster down.
        query::<()>(server, "CONFIG SET cluster-node-timeout 60000").await;
    }
    let [_, _, hung] = running.servers() else { panic!("three nodes") };
    hung.pause().await.unwrap();
    // The slot of `{bar}` is on the first node. The labels are on all nodes.
    let calls = (0..20).map(|number| {
        let who = Who::new(format!("client {number}")).expect("legal");
        locks.clone().with_who(who).mutex(format!("{{bar}}{number}")).try_lock().into_future()
    });
    let began_at = Instant::now();
    let held = join_all(calls).await;
    let elapsed = began_at.elapsed();
    hung.resume().await.unwrap();
    assert!(held.iter().all(|held| matches!(held, Ok(Some(_)))), "{held:?}");
    assert!(elapsed < TIMEOUT / 6, "the calls took {elapsed:?}");
}
