//! A server at a distance: acquire and release of a free lock, which are two round trips and should cost no more.
//!
//! Loopback hides what a network shows, such as commands of several tasks that wait for each other on one connection. The server
//! is that of `DLOCK_BENCH_REDIS_DISTANT_URL`, over a link with a delay. `tc qdisc add dev … root netem delay 500us` on either side
//! makes one.

use futures_util::future::try_join_all;
use tokio::time::Instant;

use super::Server;
use crate::{
    Effort,
    contest::{Contestant, Outcome, Table},
    figures::Figures,
};

/// How many tasks of one client run at once. In a round each does the effort's number of pairs, divided by the second number.
const CROWDS: [(usize, usize); 3] = [(1, 100), (8, 200), (64, 500)];

pub(super) async fn away(server: &Server, contestants: &[Contestant], effort: Effort) -> Outcome {
    let mut trips = Figures::default();
    let mut connection = server.connection().await?;
    for _ in 0..200 {
        let begun = Instant::now();
        redis::cmd("PING").exec_async(&mut connection).await?;
        trips.add(begun.elapsed().as_secs_f64() * 1e3);
    }
    let trip = trips.quantile(0.5);
    for (tasks, share) in CROWDS {
        let each = (effort.pairs as usize / share).max(2);
        let table = Table::measure(
            contestants,
            "away",
            |_| effort.rounds,
            async |_, measured, name| {
                let names: Vec<_> = (0..tasks).map(|task| format!("{name}-{task}")).collect();
                let all = try_join_all(names.iter().map(|name| measured.pairs(name, each))).await?;
                Ok(Figures::millis(&all.concat()))
            },
        )
        .await;
        let title = format!(
            "Redis, {trip:.2} ms away: {tasks} tasks of one client on names of their own (aim: 1.10 × two round trips)"
        );
        table.print(&title, "   p50 ms    p99 ms   × two trips", |row| {
            let [p50, p99] = [0.5, 0.99].map(|share| row.all().quantile(share));
            format!("{p50:9.3} {p99:9.3}  {:12.2}", p50 / (2.0 * trip))
        });
    }
    Ok(())
}
