//! Test of thousands of locks of one client while members are killed.

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

/// Returns the number of requests that all members have received.
async fn requests(bench: &Bench) -> f64 {
    let mut total = 0.0;
    for server in bench.running.servers() {
        let metrics = ask(server, "/metrics").await.expect("a reply");
        let received = metrics.lines().filter(|line| line.starts_with("grpc_server_msg_received_total{"));
        total += received.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>();
    }
    total
}

/// `DLOCK_MANY` is the number of locks. The default is 2000.
async fn thousands_of_locks_of_one_client_outlive_each_member_and_cost_no_request_each() {
    const AT_ONCE: usize = 100;
    /// Time in which each lock is renewed.
    const RENEWAL_PERIOD: Duration = Duration::from_secs(8);
    let count: usize = env::var("DLOCK_MANY").map_or(2000, |count| count.parse().expect("a number"));
    let Some(bench) = Bench::new(Flavour::Cluster).await else { return };
    let url = format!("{}?session=60s&timeout=9s", bench.running.url());
    let (locks, name) = (Locks::new(connect(&url).await.expect("the server is running")), unique());
    let mut held = Vec::new();
    while held.len() < count {
        let from = held.len();
        let batch = from..count.min(from + AT_ONCE);
        let taken = batch.map(|number| locks.mutex(format!("{name}-{number}")).lock().ttl(TTL).into_future());
        held.extend(try_join_all(taken).await.expect("the lock is free"));
    }
    // The client is connected to one of the members.
    for server in bench.running.servers() {
        server.kill().await.expect("the server is running");
        sleep(Duration::from_secs(2)).await;
        server.start(Data::Kept).await.expect("the server starts again");
        bench.running.ready().await.expect("the servers are ready again");
    }
    // After a watch has broken, the next renewal reads the key once.
    let (began, mut before) = (Instant::now(), requests(&bench).await);
    loop {
        sleep(RENEWAL_PERIOD).await;
        let now = requests(&bench).await;
        if now - before < 30.0 {
            before = now;
            break;
        }
        before = now;
        assert!(began.elapsed() < TTL * 8, "the requests of {count} locks do not end");
    }
    let began = Instant::now();
    sleep(RENEWAL_PERIOD).await;
    let (received, elapsed) = (requests(&bench).await - before, began.elapsed());
    // The client sends a keep-alive every fifth of the session.
    assert!(received <= 15.0, "{received} requests for {count} locks in {elapsed:?}");
    let lost = held.iter().filter(|guard| guard.is_lost()).count();
    assert_eq!(lost, 0, "{lost} of {count} locks were lost");
    print_figure(&format!(
        "{count} locks: none lost while three members died; then {received} requests in {elapsed:?}"
    ));
    let results = join_all(held.into_iter().map(|guard| guard.release())).await;
    results.into_iter().for_each(|result| result.expect("the lock is held"));
    wait_until("a key is left", async || locks.list(&name).await.is_ok_and(|left| left.is_empty())).await;
}

#[expect(clippy::print_stderr, reason = "the test reports a measurement")]
fn print_figure(figure: &str) {
    eprintln!("{figure}");
}
