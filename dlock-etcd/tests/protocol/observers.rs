//! Tests of the observers of an election.

use std::time::Duration;

use dlock_core::{Locks, Observed, Observer};

use crate::common::{Bench, connect, soon, unique, wait_until};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! { an_observer_is_notified_of_each_change_and_polls_no_server }
}

/// Ttl of the observers, who inspect the lock every third of it without a notification.
const LONG: Duration = Duration::from_secs(240);

async fn until(observer: &mut Observer, is_expected: impl Fn(&Observed) -> bool + Sync) {
    while !is_expected(&observer.next().await) {}
}

async fn an_observer_is_notified_of_each_change_and_polls_no_server() {
    let Some(bench) = Bench::standalone().await else { return };
    let (a, name) = (bench.locks("").await, unique());
    let b = Locks::new(
        connect(&format!("{}?session=300s", bench.running.url())).await.expect("the server is running"),
    );
    let mut observers = Vec::new();
    for _ in 0..20 {
        observers.push(b.election(&name).ttl(LONG).observe().await.expect("the server is running"));
    }
    let reads_before = bench.requests("Range").await;
    for label in ["1", "2", "3"] {
        let term = a.election(&name).candidate().label(label).elect().await.expect("there is no rival");
        for observer in &mut observers {
            let is_led = |state: &Observed| matches!(state, Observed::Leader(leader) if leader.who == label);
            soon("an observer was not notified of a new leader", until(observer, is_led)).await;
        }
        wait_until("the observers read all the time", async || {
            let before = bench.requests("Range").await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            bench.requests("Range").await == before
        })
        .await;
        term.resign().await.expect("the term is current");
        for observer in &mut observers {
            let is_vacant = |state: &Observed| matches!(state, Observed::Vacant { .. });
            soon("an observer was not notified of a resignation", until(observer, is_vacant)).await;
        }
    }
    let reads = bench.requests("Range").await - reads_before;
    assert!(reads <= 24, "20 observers of six changes have read {reads} times");
}
