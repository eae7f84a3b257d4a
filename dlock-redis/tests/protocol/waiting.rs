//! Tests of the requests that waiters send while nothing changes.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]

use std::time::Duration;

use dlock_core::{Kind, LockOptions};
use tokio::{task::JoinSet, time::sleep};

use crate::common::{Bench, soon};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        only_the_first_of_a_clients_waiters_for_a_mutex_sends_attempts,
        each_waiter_for_another_kind_than_a_mutex_sends_attempts,
        the_next_waiter_sends_attempts_when_the_first_has_left,
    }
}

impl Bench {
    async fn attempts(&self) -> u64 {
        self.calls("evalsha").await + self.calls("eval").await
    }

    /// Waits until the server has executed this number of attempts.
    async fn wait_for_attempts(&self, attempts: u64) {
        let reached = async {
            while self.attempts().await < attempts {
                sleep(Duration::from_millis(5)).await;
            }
        };
        soon("a waiter makes no attempt", reached).await;
    }
}

/// Ttl of the waiters. A waiter that makes its own attempts makes at least one in a third of it.
const TTL: Duration = Duration::from_secs(12);

async fn only_the_first_of_a_clients_waiters_for_a_mutex_sends_attempts() {
    const WAITERS: usize = 20;
    let Some(bench) = Bench::new().await else { return };
    bench.send("CONFIG SET notify-keyspace-events Egxe").await;
    let clients = [bench.locks("").await, bench.locks("keyspace_events=on").await];
    let holder = bench.locks("").await;
    let held = holder.mutex("foo").lock().ttl(Duration::from_secs(300)).await.expect("the lock is free");
    let mut waiters = JoinSet::new();
    for lock in clients.iter().flat_map(|client| vec![client.mutex("foo"); WAITERS]) {
        waiters.spawn(async move { lock.lock().ttl(TTL).await });
    }
    bench.wait_for_attempts((clients.len() * WAITERS) as u64).await;
    let before = bench.attempts().await;
    sleep(TTL * 3 / 4).await;
    let sent = bench.attempts().await - before;
    // The waiters of one client with their own attempts would have made at least two each.
    assert!(sent < WAITERS as u64, "{WAITERS} waiters of each client made {sent} attempts together");
    held.release().await.expect("the lock is still held");
    for _ in 0..clients.len() * WAITERS {
        let next = soon("a waiter was not woken", waiters.join_next()).await.expect("a waiter");
        next.expect("no panic").expect("the lock is free").release().await.expect("the lock is still held");
    }
}

async fn each_waiter_for_another_kind_than_a_mutex_sends_attempts() {
    const WAITERS: u64 = 20;
    let Some(bench) = Bench::new().await else { return };
    let holder = bench.locks("").await;
    for (held, wanted) in [
        (Kind::Fair, Kind::Fair),
        (Kind::Write, Kind::Read),
        (Kind::Read, Kind::Write),
        (Kind::Permit, Kind::Permit),
    ] {
        let name = format!("foo-{wanted}");
        let options = LockOptions::new().ttl(Duration::from_secs(300));
        let _held = holder.of(held, &name).lock(&options).await.expect("the lock is free");
        let (client, start) = (bench.locks("").await, bench.attempts().await);
        let mut waiters = JoinSet::new();
        for _ in 0..WAITERS {
            let lock = client.of(wanted, &name);
            waiters.spawn(async move { lock.lock(&LockOptions::new().ttl(TTL / 4)).await });
        }
        // The attempts before and after the subscription.
        bench.wait_for_attempts(start + 2 * WAITERS).await;
        // The first waiter alone would take 20 s for these attempts.
        bench.wait_for_attempts(bench.attempts().await + WAITERS).await;
        waiters.shutdown().await;
        client.close().await;
    }
}

async fn the_next_waiter_sends_attempts_when_the_first_has_left() {
    let Some(bench) = Bench::new().await else { return };
    let client = bench.locks("").await;
    let wait = || {
        let lock = client.mutex("foo");
        tokio::spawn(async move { lock.lock().ttl(Duration::from_secs(3)).await })
    };
    bench.send("HSET foo aaaa:1 1").await;
    let first = wait();
    bench.wait_for_subscriber("redisson_lock__channel:{foo}").await;
    let attempts = bench.attempts().await;
    let second = wait();
    bench.wait_for_attempts(attempts + 1).await;
    first.abort();
    assert!(
        first.await.is_err_and(|error| error.is_cancelled()),
        "granted while another client holds the lock"
    );
    // No message reports the deletion.
    bench.send("DEL foo").await;
    let guard = soon("the second waiter makes no attempt", second)
        .await
        .expect("no panic")
        .expect("the lock is free");
    guard.release().await.expect("the lock is still held");
}
