//! Lock and release of a free lock, by one task, and by 64 tasks with a name each.

use futures_util::future::try_join_all;
use tokio::time::Instant;

use super::contestants;
use crate::{
    Effort,
    contest::{Contestant, Outcome, Table},
    figures::Figures,
    results::Results,
    targets,
};

/// Measures one task on a runtime with one thread.
pub(super) async fn alone(contestants: &[Contestant], effort: Effort, results: &Results) -> Outcome {
    let table = one_task(contestants, "alone", effort).await;
    let title = "Redis: lock + release of a free lock by one task";
    print_rates(&table, title);
    let plain = [contestants::PLAIN_LIMIT];
    table.record_ratio(results, &targets::REDIS_PAIR, "dlock", &[contestants::REDISSON_LIMIT], p50)?;
    table.record_ratio(results, &targets::REDIS_PLAIN_PAIR, "dlock, plain", &plain, p50)
}

/// Measures one task on a runtime with two worker threads, which run the tasks of the clients.
pub(super) async fn two_workers(contestants: &[Contestant], effort: Effort, results: &Results) -> Outcome {
    let table = one_task(contestants, "workers", effort).await;
    print_rates(&table, "Redis: lock + release of a free lock by one task, two worker threads");
    table.record_ratio(results, &targets::REDIS_WORKERS, "dlock", &[contestants::REDISSON_LIMIT], p50)
}

fn p50(round: &Figures) -> f64 {
    round.quantile(0.5)
}

async fn one_task<'a>(
    contestants: &'a [Contestant],
    measurement: &str,
    effort: Effort,
) -> Table<'a, Figures> {
    // Enough runs for a virtual machine to compile the code.
    Table::measure(
        contestants,
        "warm",
        |_| 1,
        async |_, contestant, name| contestant.pairs(name, effort.pairs as usize / 4).await,
    )
    .await;
    Table::measure(
        contestants,
        measurement,
        |_| effort.rounds,
        async |_, contestant, name| {
            Ok(Figures::micros(&contestant.pairs(name, effort.pairs as usize / 50).await?))
        },
    )
    .await
}

fn print_rates(table: &Table<'_, Figures>, title: &str) {
    table.print(title, "  a second    p50 µs    p99 µs    × limit", |row| {
        format!("{:10.0} {}", 1e6 / row.all().mean(), table.times(row, 1))
    });
}

/// Measures 64 tasks of one client.
pub(super) async fn together(contestants: &[Contestant], effort: Effort, results: &Results) -> Outcome {
    const TASKS: usize = 64;
    let pairs_per_task = effort.pairs as usize / 400;
    let table = Table::measure(
        contestants,
        "together",
        |_| effort.rounds,
        async |_, contestant, name| {
            let names: Vec<_> = (0..TASKS).map(|task| format!("{name}-{task}")).collect();
            let started_at = Instant::now();
            try_join_all(names.iter().map(|name| contestant.pairs(name, pairs_per_task))).await?;
            Ok((TASKS * pairs_per_task) as f64 / started_at.elapsed().as_secs_f64())
        },
    )
    .await;
    let title = format!("Redis: lock + release by {TASKS} tasks of one client, a name each");
    table.print(&title, "  a second    × limit", |row| {
        let rates: Figures = row.rounds.iter().copied().collect();
        format!("{:10.0}  {}", rates.quantile(0.5), table.relative_to_limit(row, |rate| *rate))
    });
    let [fenced, plain] = [contestants::REDISSON_LIMIT, contestants::PLAIN_LIMIT];
    table.record_ratio(results, &targets::REDIS_TASKS, "dlock", &[fenced], |rate| *rate)?;
    table.record_ratio(results, &targets::REDIS_PLAIN_TASKS, "dlock, plain", &[plain], |rate| *rate)
}
