//! Tests of the faults of a Redis server. A lock must survive each fault, or its loss must be
//! reported to its holder.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]

use std::{error::Error as _, time::Duration};

use dlock_core::{Error, Kind, LockOptions, Locks, LostReason, Owner, Wait};
use dlock_testbed::servers::Data;
use futures_util::future::join_all;

use crate::common::{
    Bench, Subscription, busy, claim, connect, granted,
    relay::{Relay, Replies},
    soon,
};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_server_that_lost_the_scripts_receives_them_again,
        a_holder_and_a_waiter_survive_killed_connections,
        a_message_that_was_lost_with_the_subscription_is_made_good,
        a_subscriber_that_the_server_drops_for_its_full_buffer_is_made_good,
        a_call_to_a_paused_server_ends_within_its_timeout,
        many_calls_to_a_hanging_server_end_as_soon_as_a_few,
        a_restart_with_its_data_is_not_noticed_by_a_holder,
        a_restart_without_its_data_is_reported_and_tokens_still_grow,
        a_ttl_continues_to_run_while_the_server_is_down,
        a_waiter_outlives_a_restart,
        a_full_memory_refuses_a_grant_and_lets_a_holder_renew_and_release,
        a_replica_that_cannot_be_written_to_is_unavailable,
        a_forced_release_whose_reply_is_lost_breaks_one_lock,
        a_release_whose_reply_is_lost_is_not_reported_as_a_loss,
        a_release_of_a_lost_lock_reports_the_loss,
        a_key_of_another_type_is_refused_and_unchanged,
        data_of_other_programs_is_neither_listed_nor_read_nor_broken,
        data_in_place_of_a_lock_is_neither_renewed_nor_released,
        a_token_that_cannot_be_drawn_refuses_the_grant_and_is_unchanged,
        a_hash_without_a_ttl_is_held_for_ever_and_never_granted,
        with_keyspace_events_a_holder_is_notified_of_a_lost_key_at_once,
        with_keyspace_events_a_waiter_is_woken_without_a_message,
        without_the_servers_setting_keyspace_events_report_no_loss,
        a_key_that_is_lost_without_an_event_is_reported_by_the_next_renewal,
        keyspace_events_arrive_again_after_the_subscription_was_cut,
        a_list_runs_no_script_for_a_key_of_another_program,
        an_unsupported_downgrade_is_refused_at_once_and_the_hold_is_still_renewed,
        a_read_inside_a_mutex_outlives_the_mutex_or_is_refused,
    }
}

async fn a_server_that_lost_the_scripts_receives_them_again() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    for kind in crate::common::KINDS {
        let (mut claim, _) = claim(&store, &crate::common::unique(), *kind, 1500, Wait::Never);
        bench.send("SCRIPT FLUSH").await;
        granted(claim.attempt().await);
        bench.send("SCRIPT FLUSH").await;
        claim.renew().await.unwrap();
        bench.send("SCRIPT FLUSH").await;
        claim.release().await.unwrap();
    }
    assert_eq!(bench.query::<Vec<String>>("KEYS t-*").await, [""; 0]);
}

async fn a_holder_and_a_waiter_survive_killed_connections() {
    let Some(bench) = Bench::new().await else { return };
    let (a, b) = (bench.locks("").await, bench.locks("").await);
    let held = a.mutex("foo").lock().await.unwrap();
    let waiter = tokio::spawn(b.mutex("foo").lock().ttl(Duration::from_secs(600)).into_future());
    wait_for_waiter(&bench).await;
    bench.send("CLIENT KILL TYPE pubsub").await;
    bench.send("CLIENT KILL TYPE normal SKIPME yes").await;
    wait_for_waiter(&bench).await;
    assert!(!held.is_lost());
    held.release().await.unwrap();
    let held =
        soon("the waiter was not woken after its connections were killed", waiter).await.unwrap().unwrap();
    assert!(a.mutex("foo").try_lock().await.unwrap().is_none(), "two clients hold the lock");
    held.release().await.unwrap();
}

/// Waits until a waiter subscribes to the channel of the mutex `foo`.
async fn wait_for_waiter(bench: &Bench) {
    while bench.query::<(String, u64)>("PUBSUB NUMSUB redisson_lock__channel:{foo}").await.1 == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn a_message_that_was_lost_with_the_subscription_is_made_good() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    bench.send("HSET foo aaaa:1 1").await;
    bench.send("PEXPIRE foo 600000").await;
    let waiter = tokio::spawn(locks.mutex("foo").lock().ttl(Duration::from_secs(600)).into_future());
    wait_for_waiter(&bench).await;
    bench.unsubscribe_and_send("DEL foo").await;
    drop(soon("the waiter made no attempt after it had subscribed again", waiter).await.unwrap().unwrap());
}

async fn a_subscriber_that_the_server_drops_for_its_full_buffer_is_made_good() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    let limit =
        |value: &str| redis::cmd("CONFIG").arg(&["SET", "client-output-buffer-limit", value]).to_owned();
    bench.send("HSET foo aaaa:1 1").await;
    bench.send("PEXPIRE foo 600000").await;
    let waiter = tokio::spawn(locks.mutex("foo").lock().ttl(Duration::from_secs(600)).into_future());
    wait_for_waiter(&bench).await;
    let subscribers: String = bench.query("CLIENT LIST TYPE pubsub").await;
    let (subscriber, _) = subscribers.split_once(' ').expect("the waiter subscribes");
    // The client subscribes again only after all of this, so it misses the release.
    let mut commands = redis::pipe();
    commands.atomic().add_command(limit("pubsub 1 0 0"));
    commands.cmd("PUBLISH").arg("redisson_lock__channel:{foo}").arg("x".repeat(64 * 1024));
    commands.add_command(limit("pubsub 33554432 8388608 60")).cmd("DEL").arg("foo");
    commands.exec_async(&mut bench.raw.clone()).await.unwrap();
    let held =
        soon("the waiter made no attempt after it had subscribed again", waiter).await.unwrap().unwrap();
    let clients: String = bench.query("CLIENT LIST").await;
    let is_kept = clients.lines().any(|client| client.split(' ').next() == Some(subscriber));
    assert!(!is_kept, "the server has kept the subscriber: {clients}");
    held.release().await.unwrap();
}

async fn a_call_to_a_paused_server_ends_within_its_timeout() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("timeout=1s").await;
    bench.send("CLIENT PAUSE 3000").await;
    let result = soon("the call does not end", locks.mutex("foo").try_lock().into_future()).await;
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
}

async fn many_calls_to_a_hanging_server_end_as_soon_as_a_few() {
    let Some(bench) = Bench::new().await else { return };
    let Some(server) = bench.running.own_server() else { return };
    let locks = bench.locks("timeout=1s").await;
    server.pause().await.unwrap();
    // The client detects the broken connection. From now on a caller must connect first.
    locks.mutex("foo").try_lock().await.unwrap_err();
    let calls = (0..50).map(|number| locks.mutex(format!("foo{number}")).try_lock().into_future());
    for result in soon("the calls connect one after the other", join_all(calls)).await {
        assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    }
    server.resume().await.unwrap();
}

async fn a_restart_with_its_data_is_not_noticed_by_a_holder() {
    let Some(bench) = Bench::new().await else { return };
    let Some(server) = bench.running.own_server() else { return };
    let locks = bench.locks("").await;
    // A server may take some seconds to start while other tests run.
    let held = locks.mutex("foo").lock().ttl(Duration::from_secs(20)).await.unwrap();
    let token = held.token();
    server.kill().await.unwrap();
    server.start(Data::Kept).await.unwrap();
    tokio::select! {
        reason = held.lost() => panic!("the hold was lost although the server kept its data: {reason}"),
        () = tokio::time::sleep(Duration::from_secs(21)) => {}
    }
    held.release().await.unwrap();
    assert!(locks.mutex("foo").lock().await.unwrap().token() > token);
}

async fn a_restart_without_its_data_is_reported_and_tokens_still_grow() {
    let Some(bench) = Bench::new().await else { return };
    let Some(server) = bench.running.own_server() else { return };
    let locks = bench.locks("").await;
    let held = locks.mutex("foo").lock().ttl(Duration::from_secs(12)).await.unwrap();
    server.kill().await.unwrap();
    server.start(Data::Lost).await.unwrap();
    let reason = tokio::time::timeout(Duration::from_secs(20), held.lost()).await;
    assert_eq!(reason.expect("the loss was not reported to the holder"), LostReason::Deleted);
    let next = locks.mutex("foo").lock().await.unwrap();
    assert!(next.token() > held.token(), "the tokens do not grow: {next:?} after {held:?}");
}

async fn a_ttl_continues_to_run_while_the_server_is_down() {
    const DOWN: Duration = Duration::from_secs(3);
    let Some(bench) = Bench::new().await else { return };
    let Some(server) = bench.running.own_server() else { return };
    let store = bench.store("").await;
    let (mut long, _) = claim(&store, "long", Kind::Mutex, 600_000, Wait::Never);
    let (mut short, _) = claim(&store, "short", Kind::Mutex, 3000, Wait::Never);
    granted(long.attempt().await);
    granted(short.attempt().await);
    server.kill().await.unwrap();
    tokio::time::sleep(DOWN).await;
    server.start(Data::Kept).await.unwrap();
    let store = bench.store("").await;
    // The server has kept its data.
    let left = busy(claim(&store, "long", Kind::Mutex, 600_000, Wait::Never).0.attempt().await);
    assert!(left <= Duration::from_secs(600) - DOWN, "the lock lasts for {left:?}");
    granted(claim(&store, "short", Kind::Mutex, 600_000, Wait::Never).0.attempt().await);
}

async fn a_waiter_outlives_a_restart() {
    let Some(bench) = Bench::new().await else { return };
    let Some(server) = bench.running.own_server() else { return };
    let (a, b) = (bench.locks("").await, bench.locks("").await);
    let held = a.mutex("foo").lock().await.unwrap();
    let waiter = tokio::spawn(b.mutex("foo").lock().ttl(Duration::from_secs(600)).into_future());
    wait_for_waiter(&bench).await;
    server.kill().await.unwrap();
    server.start(Data::Kept).await.unwrap();
    held.release().await.unwrap();
    drop(soon("the waiter does not reconnect", waiter).await.unwrap().unwrap());
}

async fn a_full_memory_refuses_a_grant_and_lets_a_holder_renew_and_release() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let (mut held, _) = claim(&store, "foo", Kind::Mutex, 1500, Wait::Never);
    granted(held.attempt().await);
    bench.send("CONFIG SET maxmemory 1").await;
    let (mut other, _) = claim(&store, "bar", Kind::Mutex, 1500, Wait::Never);
    let error = other.attempt().await.unwrap_err();
    assert!(error.is_transient(), "the lack of memory counts as permanent: {error:?}");
    assert!(error.source().unwrap().to_string().contains("maxmemory"), "{error:?}");
    held.renew().await.unwrap();
    held.release().await.unwrap();
    other.release().await.unwrap();
    bench.send("CONFIG SET maxmemory 0").await;
    assert_eq!(bench.all_keys().await, ["redisson_lock_token:{foo}"], "a refused claim holds the lock");
}

async fn a_replica_that_cannot_be_written_to_is_unavailable() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    bench.send("REPLICAOF 127.0.0.1 1").await;
    let (mut claim, _) = claim(&store, "foo", Kind::Mutex, 1500, Wait::Never);
    let error = claim.attempt().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    bench.send("REPLICAOF NO ONE").await;
    granted(claim.attempt().await);
}

async fn a_forced_release_whose_reply_is_lost_breaks_one_lock() {
    let Some(bench) = Bench::new().await else { return };
    let Some(server) = bench.running.own_server() else { return };
    let relay = Relay::to(server.address()).await;
    let breaker = Locks::new(connect(&format!("redis://{}?timeout=30s", relay.address)).await.unwrap());
    let (a, b) = (bench.locks("").await, bench.locks("").await);
    // A first call loads the script into the server.
    assert!(!breaker.force_release("bar").await.unwrap());
    let _broken = a.mutex("foo").lock().await.unwrap();
    let waiter = tokio::spawn(b.mutex("foo").lock().ttl(Duration::from_secs(600)).into_future());
    wait_for_waiter(&bench).await;
    relay.set_all(Replies::Hold);
    let forced = tokio::spawn(async move { breaker.force_release("foo").await });
    let next = soon("the waiter is not granted", waiter).await.unwrap().unwrap();
    // The client loses the reply with its connection, and sends the command again on another one.
    relay.set_all(Replies::Disconnect);
    assert!(soon("the call does not end", forced).await.unwrap().unwrap());
    assert!(a.mutex("foo").try_lock().await.unwrap().is_none(), "the lock of the next holder was broken too");
    drop(next);
}

async fn a_release_whose_reply_is_lost_is_not_reported_as_a_loss() {
    let Some(bench) = Bench::new().await else { return };
    let Some(server) = bench.running.own_server() else { return };
    for params in ["", "?dialect=plain"] {
        let relay = Relay::to(server.address()).await;
        let locks = Locks::new(connect(&format!("redis://{}{params}", relay.address)).await.unwrap());
        let kinds = if params.is_empty() { crate::common::KINDS } else { &[Kind::Mutex] };
        for kind in kinds {
            let lock = locks.of(*kind, "foo");
            // A first call loads the script into the server.
            lock.lock(&LockOptions::new()).await.unwrap().release().await.unwrap();
            let (held, before) = (lock.lock(&LockOptions::new()).await.unwrap(), relay.connections());
            relay.lose_reply();
            let released = soon("the call does not end", held.release()).await;
            assert!(
                released.is_ok(),
                "{kind}: a release that was sent twice does not detect the first one: {released:?}"
            );
            assert!(relay.connections() > before, "the release was not sent again");
        }
    }
}

async fn a_release_of_a_lost_lock_reports_the_loss() {
    let Some(bench) = Bench::new().await else { return };
    for (params, kinds) in [("", crate::common::KINDS), ("dialect=plain", &[Kind::Mutex])] {
        let locks = bench.locks(params).await;
        for kind in kinds {
            for end in ["DEL foo", "SET foo precious"] {
                let held = locks.of(*kind, "foo").lock(&LockOptions::new()).await.unwrap();
                bench.send(end).await;
                let released = held.release().await;
                let is_lost = matches!(released, Err(Error::Lost { reason: LostReason::Deleted, .. }));
                assert!(is_lost, "{kind}, {end}: {released:?}");
                bench.send("DEL foo").await;
            }
        }
    }
}

async fn a_key_of_another_type_is_refused_and_unchanged() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    bench.send("SET foo precious").await;
    for kind in crate::common::KINDS {
        let (mut claim, _) = claim(&store, "foo", *kind, 1500, Wait::Forever);
        let attempt = claim.attempt().await;
        assert!(matches!(attempt, Err(Error::WrongKind { .. })), "{kind}: {attempt:?}");
        claim.release().await.unwrap();
    }
    let forced = store.inspect.as_ref().unwrap().force_release(&"foo".parse().unwrap()).await;
    assert!(matches!(forced, Err(Error::WrongKind { .. })), "{forced:?}");
    assert_eq!(bench.query::<String>("GET foo").await, "precious");
}

async fn data_of_other_programs_is_neither_listed_nor_read_nor_broken() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    let mut raw = bench.raw.clone();
    let mut set = redis::cmd("MSET");
    set.arg("bytes").arg(&[0xff_u8, 0xfe][..]).arg("page").arg("x".repeat(4_000_000));
    set.exec_async(&mut raw).await.unwrap();
    redis::cmd("HSET").arg("blob").arg(&[b':', 0xff][..]).arg("1").exec_async(&mut raw).await.unwrap();
    let mut count = redis::cmd("HSET");
    count.arg("counters");
    (0..50_000).for_each(|number| {
        count.arg(format!("user:{number}")).arg("1");
    });
    count.exec_async(&mut raw).await.unwrap();
    let bytes_sent = async || -> u64 {
        let stats: String = bench.query("INFO stats").await;
        let bytes = stats.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
        bytes.expect("the server counts them").trim().parse().expect("a number")
    };
    let before = bytes_sent().await;
    let held = locks.mutex("foo").lock().await.unwrap();
    let names = locks.list("").await.unwrap();
    let names: Vec<_> = names.into_iter().map(|state| state.name.to_string()).collect();
    assert_eq!(names, ["blob", "foo"], "the list differs from the hashes with a field that may be an owner");
    let read = bytes_sent().await - before;
    assert!(read < 1_000_000, "{read} bytes were read for two locks");
    let forced = locks.force_release("counters").await;
    assert!(matches!(forced, Err(Error::WrongKind { .. })), "{forced:?}");
    assert_eq!(bench.query::<usize>("HLEN counters").await, 50_000);
    held.release().await.unwrap();
}

async fn data_in_place_of_a_lock_is_neither_renewed_nor_released() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    for kind in crate::common::KINDS {
        let held =
            locks.of(*kind, "foo").lock(&LockOptions::new().ttl(Duration::from_secs(3))).await.unwrap();
        bench.send("SET foo precious").await;
        assert_eq!(soon("the loss was not reported to the holder", held.lost()).await, LostReason::Deleted);
        drop(held);
        assert_eq!(bench.query::<String>("GET foo").await, "precious");
        bench.send("DEL foo").await;
    }
    locks.close().await;
}

async fn a_token_that_cannot_be_drawn_refuses_the_grant_and_is_unchanged() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    for put in ["SET redisson_lock_token:{foo} precious", "HSET redisson_lock_token:{foo} precious 1"] {
        bench.send(put).await;
        let before: Vec<u8> = bench.query("DUMP redisson_lock_token:{foo}").await;
        for kind in crate::common::KINDS {
            let (mut claim, _) = claim(&store, "foo", *kind, 1500, Wait::Forever);
            let attempt = claim.attempt().await;
            assert!(matches!(&attempt, Err(error) if !error.is_transient()), "{kind}: {attempt:?}");
            assert!(!bench.query::<bool>("EXISTS foo").await, "{kind}: the refused claim holds the lock");
            claim.release().await.unwrap();
        }
        assert_eq!(bench.query::<Vec<u8>>("DUMP redisson_lock_token:{foo}").await, before);
        bench.send("DEL redisson_lock_token:{foo}").await;
    }
    assert_eq!(bench.all_keys().await, [""; 0]);
}

async fn a_hash_without_a_ttl_is_held_for_ever_and_never_granted() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    bench.send("HSET foo aaaa:1 1").await;
    for kind in [Kind::Mutex, Kind::Fair] {
        let (mut claim, _) = claim(&store, "foo", kind, 1500, Wait::Never);
        assert!(busy(claim.attempt().await) > Duration::from_secs(3600));
    }
    bench.send("HSET foo mode write aaaa:1:write 1").await;
    bench.send("HDEL foo aaaa:1").await;
    for kind in [Kind::Read, Kind::Write] {
        let (mut claim, _) = claim(&store, "foo", kind, 1500, Wait::Never);
        assert!(busy(claim.attempt().await) > Duration::from_secs(3600));
    }
    assert_eq!(bench.query::<i64>("PTTL foo").await, -1, "the hold of another client was given a ttl");
    // The key of dlock's own hold gets a ttl again after it has lost it.
    let (mut ours, _) = claim(&store, "bar", Kind::Mutex, 1500, Wait::Never);
    granted(ours.attempt().await);
    bench.send("PERSIST bar").await;
    ours.renew().await.unwrap();
    assert!(bench.query::<i64>("PTTL bar").await > 0);
}

/// Waits until the client subscribes to the server's events of deleted keys.
async fn wait_for_event_subscriber(bench: &Bench) {
    while bench.query::<(String, u64)>("PUBSUB NUMSUB __keyevent@0__:del").await.1 == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn with_keyspace_events_a_holder_is_notified_of_a_lost_key_at_once() {
    let Some(bench) = Bench::new().await else { return };
    bench.send("CONFIG SET notify-keyspace-events Egxe").await;
    bench.send("CONFIG SET maxmemory-policy volatile-ttl").await;
    let locks = bench.locks("keyspace_events=on").await;
    for end in ["DEL foo", "UNLINK foo", "PEXPIRE foo 1", "CONFIG SET maxmemory 1"] {
        let held = locks.mutex("foo").lock().ttl(Duration::from_secs(600)).await.unwrap();
        wait_for_event_subscriber(&bench).await;
        bench.send(end).await;
        let reason = soon("the holder was not notified of the lost key", held.lost()).await;
        assert_eq!(reason, LostReason::Deleted, "{end}");
    }
}

async fn with_keyspace_events_a_waiter_is_woken_without_a_message() {
    let Some(bench) = Bench::new().await else { return };
    bench.send("CONFIG SET notify-keyspace-events Egxe").await;
    let locks = bench.locks("keyspace_events=on").await;
    // The keys are deleted without a message, like by Redisson's fair lock, its spin lock and its
    // `delete()`.
    for kind in crate::common::KINDS {
        let hash =
            if matches!(kind, Kind::Read | Kind::Write) { "mode write aaaa:1:write 1" } else { "aaaa:1 1" };
        bench.send(&format!("HSET foo {hash}")).await;
        let lock = locks.of(*kind, "foo");
        let waiter =
            tokio::spawn(async move { lock.lock(&LockOptions::new().ttl(Duration::from_secs(600))).await });
        wait_for_event_subscriber(&bench).await;
        while bench.query::<Vec<String>>("PUBSUB CHANNELS redisson*").await.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bench.send("DEL foo").await;
        soon("the waiter was not woken", waiter).await.unwrap().unwrap().release().await.unwrap();
        while !bench.query::<Vec<String>>("PUBSUB CHANNELS redisson*").await.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn without_the_servers_setting_keyspace_events_report_no_loss() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("keyspace_events=on").await;
    let mut events = Subscription::to(bench.running.url(), "__keyevent@0__:del").await;
    for setting in ["", "gxe", "Exe"] {
        let mut set = redis::cmd("CONFIG");
        set.arg(&["SET", "notify-keyspace-events", setting]);
        set.exec_async(&mut bench.raw.clone()).await.unwrap();
        let held = locks.mutex("foo").lock().ttl(Duration::from_secs(600)).await.unwrap();
        while bench.query::<(String, u64)>("PUBSUB NUMSUB __keyevent@0__:del").await.1 < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bench.send("DEL foo").await;
        assert!(events.is_silent(&bench).await, "the server publishes the event with `{setting}`");
        assert!(!held.is_lost(), "the loss was reported before a renewal, with `{setting}`");
        let released = held.release().await;
        assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
    }
    let held = locks.mutex("foo").lock().ttl(Duration::from_secs(6)).await.unwrap();
    bench.send("DEL foo").await;
    let reason = soon("the next renewal does not report the loss", held.lost()).await;
    assert_eq!(reason, LostReason::Deleted);
}

async fn a_key_that_is_lost_without_an_event_is_reported_by_the_next_renewal() {
    let Some(bench) = Bench::new().await else { return };
    bench.send("CONFIG SET notify-keyspace-events Egx").await;
    let locks = bench.locks("keyspace_events=on").await;
    let held = locks.mutex("foo").lock().ttl(Duration::from_secs(6)).await.unwrap();
    wait_for_event_subscriber(&bench).await;
    bench.unsubscribe_and_send("DEL foo").await;
    let reason = soon("the loss was not reported after the next renewal", held.lost()).await;
    assert_eq!(reason, LostReason::Deleted, "the lock was lost by its deadline, not by the server's reply");
}

async fn keyspace_events_arrive_again_after_the_subscription_was_cut() {
    let Some(bench) = Bench::new().await else { return };
    bench.send("CONFIG SET notify-keyspace-events Egx").await;
    let locks = bench.locks("keyspace_events=on").await;
    let held = locks.mutex("foo").lock().ttl(Duration::from_secs(600)).await.unwrap();
    for _ in 0..3 {
        wait_for_event_subscriber(&bench).await;
        bench.send("CLIENT KILL TYPE pubsub").await;
    }
    wait_for_event_subscriber(&bench).await;
    bench.send("DEL foo").await;
    assert_eq!(soon("the holder was not notified of the lost key", held.lost()).await, LostReason::Deleted);
}

async fn a_list_runs_no_script_for_a_key_of_another_program() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    let mut foreign = redis::pipe();
    for number in 0..20_000 {
        foreign.set(format!("session:{number}"), "x").ignore();
        foreign.hset_multiple(format!("user:{number}"), &[("name", "x"), ("city", "y")]).ignore();
    }
    foreign.exec_async(&mut bench.raw.clone()).await.unwrap();
    let names: Vec<_> = (0..300).map(|number| format!("foo{number:03}")).collect();
    let held = join_all(names.iter().map(|name| locks.mutex(name).lock().into_future())).await;
    bench.send("HSET bar aaaa:1 1").await;
    let waiter = tokio::spawn(locks.fair("bar").lock().ttl(Duration::from_secs(600)).into_future());
    bench.wait_for_subscriber("redisson_lock__channel:{bar}").await;
    bench.send("DEL bar").await;
    bench.send("CONFIG RESETSTAT").await;
    let listed = locks.list("").await.unwrap();
    let mut found: Vec<_> = listed.iter().map(|state| state.name.to_string()).collect();
    assert_eq!(found.remove(0), "bar", "a lock that has a waiter but no holder is not listed");
    assert_eq!(found, names);
    let scripts = bench.calls("eval").await + bench.calls("evalsha").await;
    assert!(scripts < 400, "{scripts} scripts for 301 locks among 40 000 keys of other programs");
    waiter.abort();
    drop(held);
}

async fn an_unsupported_downgrade_is_refused_at_once_and_the_hold_is_still_renewed() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    for kind in [Kind::Mutex, Kind::Fair] {
        let options = LockOptions::new().ttl(Duration::from_secs(2));
        let held = locks.of(kind, format!("{kind}")).lock(&options).await.unwrap();
        let scripts = async || bench.calls("eval").await + bench.calls("evalsha").await;
        let before = scripts().await;
        let result = soon("the downgrade does not end", held.downgrade()).await;
        let error = result.expect_err("Redisson has no such step");
        assert!(matches!(error.error(), Error::Unsupported { .. }), "{kind}: {error:?}");
        assert!(scripts().await <= before + 1, "{kind}: the downgrade was sent to the server");
        tokio::time::sleep(Duration::from_secs(3)).await;
        let held = error.into_guard();
        assert!(!held.is_lost(), "{kind}: the hold was not renewed after the refusal");
        held.release().await.unwrap();
    }
}

async fn a_read_inside_a_mutex_outlives_the_mutex_or_is_refused() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    let me = Owner::new();
    let ttl = Duration::from_secs(2);
    let outer = locks.mutex("foo").owned_by(&me).lock().ttl(ttl).await.unwrap();
    match locks.rwlock("foo").owned_by(&me).read().try_lock().await {
        Err(error) => assert!(!error.is_transient(), "a retry does not help: {error:?}"),
        Ok(None) => panic!("an owner has to wait for its own hold"),
        Ok(Some(inner)) => {
            outer.release().await.unwrap();
            tokio::time::sleep(ttl * 2).await;
            assert!(!inner.is_lost(), "the inner lock was granted, and lost with the outer guard");
        }
    }
}
