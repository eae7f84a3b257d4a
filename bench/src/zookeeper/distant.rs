//! Number of round trips of an acquisition, on a distant server.
//!
//! An acquisition sends two requests together. The client crate does not disable Nagle's algorithm,
//! so on some connections the second request waits for the reply to the first. This does not change
//! during the life of a connection, so several connections are measured.
//!
//! `DLOCK_BENCH_ZOOKEEPER_DISTANT_URL` names the server. It should be behind a link with a delay,
//! such as one made by `tc qdisc add dev … root netem delay 500us` at either end.

use std::{env, time::Duration};

use dlock_testbed::peer::PeerKind;
use tokio::time::Instant;
use zookeeper_client::Client;

use super::{curator, dlock_url, hosts, keep_directory};
use crate::{Effort, arguments::Part, contest::Outcome, figures::Figures, results::Results};

/// Number of measured connections.
const CONNECTIONS: usize = 12;

pub(crate) async fn bench(effort: Effort, results: &Results) -> Outcome {
    let Ok(url) = env::var("DLOCK_BENCH_ZOOKEEPER_DISTANT_URL") else {
        return results.part_missing(Part::ZookeeperDistant, "DLOCK_BENCH_ZOOKEEPER_DISTANT_URL is not set");
    };
    let raw = Client::connect(hosts(&url)).await?;
    let mut round_trips = Figures::default();
    for _ in 0..200 {
        let started_at = Instant::now();
        raw.check_stat("/").await?;
        round_trips.add(millis(started_at.elapsed()));
    }
    let round_trip = round_trips.quantile(0.5);
    let (turns, mut connections) = (effort.turns * 4, Vec::new());
    for number in 0..CONNECTIONS {
        let (locks, name) = (dlock::connect(&dlock_url(&url)).await?, format!("distant-{number}"));
        keep_directory(&raw, &name).await?;
        let (mut acquire, mut release) = (Figures::default(), Figures::default());
        for _ in 0..turns {
            let started_at = Instant::now();
            let guard = locks.mutex(&name).lock().await?;
            acquire.add(millis(started_at.elapsed()));
            let started_at = Instant::now();
            guard.release().await?;
            release.add(millis(started_at.elapsed()));
        }
        connections.push([acquire, release].map(|times| times.quantile(0.5) / round_trip));
        locks.close().await;
    }
    connections.sort_by(|a, b| a[0].total_cmp(&b[0]));
    println!(
        "ZooKeeper, {round_trip:.2} ms away, medians of {turns} in round trips, on each of {CONNECTIONS} connections"
    );
    for (operation, column) in [("acquire", 0), ("release", 1)] {
        let each: Vec<_> = connections.iter().map(|row| format!("{:.2}", row[column])).collect();
        println!("  dlock, {operation}   {}", each.join(" "));
    }
    if let Ok(peer) = curator(&url) {
        keep_directory(&raw, "distant-curator").await?;
        let times = peer.contender().time(PeerKind::Mutex, "distant-curator", turns).await?;
        println!("  {}, both  {:.2}", peer.name(), Figures::millis(&times).quantile(0.5) / round_trip);
    }
    println!();
    Ok(())
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}
