//! Tests of limits that an operator sets on the server.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]

use std::time::Duration;

use dlock_core::{Kind, LockOptions};
use tokio::time::{sleep, timeout};

use crate::common::{Bench, unique};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_server_without_room_for_subscriptions_costs_no_hold_and_no_waiter,
        a_server_that_closes_idle_connections_fails_no_call_and_costs_no_hold,
    }
}

async fn a_server_without_room_for_subscriptions_costs_no_hold_and_no_waiter() {
    let Some(bench) = Bench::new().await else { return };
    if bench.running.own_server().is_none() {
        return;
    }
    let ttl = Duration::from_secs(5);
    let options = LockOptions::new().ttl(ttl);
    let (holder, waiter) = (bench.locks("").await, bench.locks("").await);
    // Each client has a connection for commands from here on, and none for messages.
    drop(waiter.mutex(unique()).lock().await.unwrap());
    let mut held = Vec::new();
    for kind in [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit] {
        let name = unique();
        held.push((holder.of(kind, &name).lock(&options).await.unwrap(), kind, name));
    }
    let clients: String = bench.query("CLIENT LIST").await;
    bench.send(&format!("CONFIG SET maxclients {}", clients.lines().count())).await;
    let waiting: Vec<_> = held
        .iter()
        .map(|(_, kind, name)| {
            // A writer waits for the reader.
            let kind = if *kind == Kind::Read { Kind::Write } else { *kind };
            let (lock, options) = (waiter.of(kind, name), options.clone());
            (kind, tokio::spawn(async move { lock.lock(&options).await }))
        })
        .collect();
    sleep(ttl * 2).await;
    let stats: String = bench.query("INFO stats").await;
    assert!(!stats.contains("rejected_connections:0"), "the waiters did not subscribe: {stats}");
    for (held, kind, _) in held {
        assert!(!held.is_lost(), "the hold as {kind} is lost");
        held.release().await.unwrap();
    }
    for (kind, waiting) in waiting {
        let next =
            timeout(ttl * 2, waiting).await.unwrap_or_else(|_| panic!("the waiter for a {kind} waits"));
        next.unwrap().unwrap_or_else(|error| panic!("{kind}: {error:?}")).release().await.unwrap();
    }
}

async fn a_server_that_closes_idle_connections_fails_no_call_and_costs_no_hold() {
    let Some(bench) = Bench::new().await else { return };
    if bench.running.own_server().is_none() {
        return;
    }
    let ttl = Duration::from_secs(9);
    let (holder, waiter, idle) = (bench.locks("").await, bench.locks("").await, bench.locks("").await);
    let (name, free) = (unique(), unique());
    bench.send("CONFIG SET timeout 1").await;
    let held = holder.mutex(&name).lock().ttl(ttl).await.unwrap();
    let waiting = tokio::spawn(waiter.mutex(&name).lock().ttl(ttl).into_future());
    for _ in 0..4 {
        sleep(ttl / 3).await;
        let tried = idle.mutex(&free).try_lock().await.unwrap().expect("the lock is free");
        sleep(ttl / 3).await;
        tried.release().await.unwrap();
    }
    assert!(!held.is_lost(), "the hold is lost");
    held.release().await.unwrap();
    let next = timeout(ttl, waiting).await.expect("the waiter is woken").unwrap();
    next.unwrap().release().await.unwrap();
}
