//! Acquire and release of a free lock: alone, and 64 tasks on names of their own.

use futures_util::future::try_join_all;
use tokio::time::Instant;

use crate::{
    Effort,
    contest::{Contestant, Table},
    figures::Figures,
};

pub(super) async fn alone(contestants: &[Contestant], effort: Effort) {
    // So many runs that a virtual machine has compiled the code.
    Table::measure(
        contestants,
        "warm",
        |_| 1,
        async |_, measured, name| measured.pairs(name, effort.pairs as usize / 4).await,
    )
    .await;
    let table = Table::measure(
        contestants,
        "alone",
        |_| effort.rounds,
        async |_, measured, name| {
            Ok(Figures::micros(&measured.pairs(name, effort.pairs as usize / 50).await?))
        },
    )
    .await;
    let title = "Redis: acquire + release of a free lock, alone (aims: 1.10 × the limit, plain 1.05)";
    table.print(title, "  a second    p50 µs    p99 µs    × limit", |row| {
        format!("{:10.0} {}", 1e6 / row.all().mean(), table.times(row, 1))
    });
}

pub(super) async fn together(contestants: &[Contestant], effort: Effort) {
    const TASKS: usize = 64;
    let each = effort.pairs as usize / 400;
    let table = Table::measure(
        contestants,
        "together",
        |_| effort.rounds,
        async |_, measured, name| {
            let names: Vec<_> = (0..TASKS).map(|task| format!("{name}-{task}")).collect();
            let begun = Instant::now();
            try_join_all(names.iter().map(|name| measured.pairs(name, each))).await?;
            Ok((TASKS * each) as f64 / begun.elapsed().as_secs_f64())
        },
    )
    .await;
    let title = format!("Redis: {TASKS} tasks of one client on names of their own (aim: 0.9 × the limit)");
    table.print(&title, "  a second    × limit", |row| {
        let rates: Figures = row.rounds.iter().copied().collect();
        format!("{:10.0}  {}", rates.quantile(0.5), table.beside_limit(row, |rate| *rate))
    });
}
