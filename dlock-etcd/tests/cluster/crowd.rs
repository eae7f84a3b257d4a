//! Thousands of locks of one client, while members die.

use std::{env, time::Duration};

use dlock_conformance::Data;
use dlock_core::Locks;
use dlock_testbed::servers::etcd::{Flavour, ask};
use futures_util::future::{join_all, try_join_all};
use tokio::time::{Instant, sleep};

use crate::common::{Bench, TTL, connect, unique, wait_until};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        thousands_of_locks_of_one_client_outlive_each_member_and_cost_no_request_each on 2 threads,
    }
}

/// How many requests all members have had.
async fn requests(bench: &Bench) -> f64 {
    let mut all = 0.0;
    for server in bench.running.servers() {
        let metrics = ask(server, "/metrics").await.expect("a reply");
        let received = metrics.lines().filter(|line| line.starts_with("grpc_server_msg_received_total{"));
        all += received.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>();
    }
    all
}

/// `DLOCK_CROWD` says how many locks: 2000 if it does not.
async fn thousands_of_locks_of_one_client_outlive_each_member_and_cost_no_request_each() {
    const AT_ONCE: usize = 100;
    /// In this time each lock is renewed.
    const RENEWED: Duration = Duration::from_secs(8);
    let count: usize = env::var("DLOCK_CROWD").map_or(2000, |count| count.parse().expect("a number"));
    let Some(bench) = Bench::new(Flavour::Cluster).await else { return };
    let url = format!("{}?session=60s&timeout=9s", bench.running.url());
    let (locks, name) = (Locks::new(connect(&url).await.expect("the server is running")), unique());
    let mut held = Vec::new();
    while held.len() < count {
        let from = held.len();
        let some = from..count.min(from + AT_ONCE);
        let taken = some.map(|one| locks.mutex(format!("{name}-{one}")).lock().ttl(TTL).into_future());
        held.extend(try_join_all(taken).await.expect("the lock is free"));
    }
    // The client uses one of them.
    for server in bench.running.servers() {
        server.kill().await.expect("the server is running");
        sleep(Duration::from_secs(2)).await;
        server.start(Data::Kept).await.expect("the server starts again");
        bench.running.ready().await.expect("the servers are ready again");
    }
    // Each lock is asked for once after its watch broke, with its next renewal.
    let (began, mut before) = (Instant::now(), requests(&bench).await);
    loop {
        sleep(RENEWED).await;
        let now = requests(&bench).await;
        if now - before < 30.0 {
            before = now;
            break;
        }
        before = now;
        assert!(began.elapsed() < TTL * 8, "{count} locks cost requests without end");
    }
    let began = Instant::now();
    sleep(RENEWED).await;
    let (made, took) = (requests(&bench).await - before, began.elapsed());
    // A sign of life in a fifth of the session.
    assert!(made <= 15.0, "{made} requests for {count} locks in {took:?}");
    let lost = held.iter().filter(|one| one.is_lost()).count();
    assert_eq!(lost, 0, "so many of {count} were lost");
    tell(&format!("{count} locks: none lost while three members died; then {made} requests in {took:?}"));
    let all = join_all(held.into_iter().map(|one| one.release())).await;
    all.into_iter().for_each(|told| told.expect("the lock is held"));
    wait_until("a key is left", async || locks.list(&name).await.is_ok_and(|left| left.is_empty())).await;
}

#[expect(clippy::print_stderr, reason = "a figure that somebody asked for")]
fn tell(figure: &str) {
    eprintln!("{figure}");
}
