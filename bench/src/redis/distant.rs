//! Lock and release of a free lock on a distant server. They are two round trips, and should cost
//! no more.
//!
//! Loopback hides costs that a network shows, such as commands of several tasks that wait for each
//! other on one connection.
//!
//! `DLOCK_BENCH_REDIS_DISTANT_URL` names the server. It should be behind a link with a delay, such
//! as one made by `tc qdisc add dev … root netem delay 500us` at either end.

use futures_util::future::try_join_all;
use tokio::time::Instant;

use super::{Server, contestants};
use crate::{
    Effort,
    contest::{Contestant, Outcome, Table},
    figures::Figures,
    results::Results,
    targets::{self, Target},
};

/// Number of tasks of one client that run at once, with a divisor and a target. In a round, each
/// task runs `Effort::pairs` divided by the divisor.
const CROWDS: [(usize, usize, &Target); 3] = [
    (1, 100, &targets::REDIS_DISTANT_1),
    (8, 200, &targets::REDIS_DISTANT_8),
    (64, 500, &targets::REDIS_DISTANT_64),
];

pub(super) async fn pairs(
    server: &Server,
    contestants: &[Contestant],
    effort: Effort,
    results: &Results,
) -> Outcome {
    let mut round_trips = Figures::default();
    let mut connection = server.connection().await?;
    for _ in 0..200 {
        let started_at = Instant::now();
        redis::cmd("PING").exec_async(&mut connection).await?;
        round_trips.add(started_at.elapsed().as_secs_f64() * 1e3);
    }
    let round_trip = round_trips.quantile(0.5);
    for (tasks, divisor, target) in CROWDS {
        let pairs_per_task = (effort.pairs as usize / divisor).max(2);
        let table = Table::measure(
            contestants,
            "away",
            |_| effort.rounds,
            async |_, contestant, name| {
                let names: Vec<_> = (0..tasks).map(|task| format!("{name}-{task}")).collect();
                let all =
                    try_join_all(names.iter().map(|name| contestant.pairs(name, pairs_per_task))).await?;
                Ok(Figures::millis(&all.concat()))
            },
        )
        .await;
        let title = format!(
            "Redis, {round_trip:.2} ms away: lock + release by {tasks} tasks of one client, a name each"
        );
        table.print(&title, "   p50 ms    p99 ms    × limit                  × two trips", |row| {
            let trips = row.all().quantile(0.5) / (2.0 * round_trip);
            format!("{}  {trips:12.2}", table.times(row, 3))
        });
        let rivals = [contestants::REDISSON_LIMIT];
        table.record_ratio(results, target, "dlock", &rivals, |round| round.quantile(0.5))?;
    }
    Ok(())
}
