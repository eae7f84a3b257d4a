//! A server at a distance: how many round trips an acquisition takes.
//!
//! An acquisition is two requests sent together. The client crate leaves Nagle's algorithm on, so on some connections the
//! second request leaves only when the first is answered. A connection stays as it is, so several are measured.
//!
//! The server is that of `DLOCK_BENCH_ZOOKEEPER_DISTANT_URL`, over a link with a delay. `tc qdisc add dev … root netem delay 500us`
//! on either side makes one.

use std::{env, time::Duration};

use dlock_testbed::peer::PeerKind;
use tokio::time::Instant;
use zookeeper_client::Client;

use super::{curator, hosts, keep, ours};
use crate::{Effort, contest::Outcome, figures::Figures};

/// How many connections are measured.
const CONNECTIONS: usize = 12;

pub(super) async fn bench(effort: Effort) -> Outcome {
    let Ok(url) = env::var("DLOCK_BENCH_ZOOKEEPER_DISTANT_URL") else {
        println!("ZooKeeper at a distance: not measured, DLOCK_BENCH_ZOOKEEPER_DISTANT_URL is not set\n");
        return Ok(());
    };
    let raw = Client::connect(hosts(&url)).await?;
    let mut trips = Figures::default();
    for _ in 0..200 {
        let begun = Instant::now();
        raw.check_stat("/").await?;
        trips.add(millis(begun.elapsed()));
    }
    let trip = trips.quantile(0.5);
    let (turns, mut connections) = (effort.turns * 4, Vec::new());
    for number in 0..CONNECTIONS {
        let (locks, name) = (dlock::connect(&ours(&url)).await?, format!("distant-{number}"));
        keep(&raw, &name).await?;
        let (mut acquire, mut release) = (Figures::default(), Figures::default());
        for _ in 0..turns {
            let begun = Instant::now();
            let guard = locks.mutex(&name).lock().await?;
            acquire.add(millis(begun.elapsed()));
            let begun = Instant::now();
            guard.release().await?;
            release.add(millis(begun.elapsed()));
        }
        connections.push([acquire, release].map(|took| took.quantile(0.5) / trip));
        locks.close().await;
    }
    connections.sort_by(|a, b| a[0].total_cmp(&b[0]));
    println!(
        "ZooKeeper, {trip:.2} ms away, in round trips, p50 of {turns} on each of {CONNECTIONS} connections"
    );
    for (what, at) in [("acquire", 0), ("release", 1)] {
        let each: Vec<_> = connections.iter().map(|row| format!("{:.2}", row[at])).collect();
        println!("  dlock, {what}   {}", each.join(" "));
    }
    if let Ok(peer) = curator(&url) {
        keep(&raw, "distant-curator").await?;
        let took = peer.contender().time(PeerKind::Mutex, "distant-curator", turns).await?;
        println!("  {}, both  {:.2}", peer.name(), Figures::millis(&took).quantile(0.5) / trip);
    }
    println!();
    Ok(())
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}
