//! Lock and release of a free lock, by one task, and by 64 tasks with a name each.

use futures_util::future::try_join_all;
use tokio::time::Instant;

use crate::{
    Effort,
    contest::{Contestant, Table},
    figures::Figures,
};

pub(super) async fn alone(contestants: &[Contestant], effort: Effort) {
    // Enough runs for a virtual machine to compile the code.
    Table::measure(
        contestants,
        "warm",
        |_| 1,
        async |_, contestant, name| contestant.pairs(name, effort.pairs as usize / 4).await,
    )
    .await;
    let table = Table::measure(
        contestants,
        "alone",
        |_| effort.rounds,
        async |_, contestant, name| {
            Ok(Figures::micros(&contestant.pairs(name, effort.pairs as usize / 50).await?))
        },
    )
    .await;
    let title = "Redis: lock + release of a free lock by one task (target: 1.10 × the limit, plain 1.05)";
    table.print(title, "  a second    p50 µs    p99 µs    × limit", |row| {
        format!("{:10.0} {}", 1e6 / row.all().mean(), table.times(row, 1))
    });
}

pub(super) async fn together(contestants: &[Contestant], effort: Effort) {
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
    let title = format!(
        "Redis: lock + release by {TASKS} tasks of one client, a name each (target: 0.9 × the limit)"
    );
    table.print(&title, "  a second    × limit", |row| {
        let rates: Figures = row.rounds.iter().copied().collect();
        format!("{:10.0}  {}", rates.quantile(0.5), table.relative_to_limit(row, |rate| *rate))
    });
}
