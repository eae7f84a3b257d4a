//! Times under contention for one name, of a hand-off and of the longest waits.

use std::time::Duration;

use dlock_testbed::peer::Contest;
use tokio::time::Instant;

use super::contestants;
use crate::{
    Effort,
    contest::{Contestant, Outcome, Row, Table, Waiting},
    figures::Figures,
    results::Results,
    targets,
};

/// Length of each hold.
const HOLD: Duration = Duration::from_millis(1);

/// Returns the number of rounds of a contestant. One that polls has one round, because it takes a
/// hundred times as long and needs no warm-up.
fn rounds(effort: Effort) -> impl Fn(&Contestant) -> usize {
    move |contestant| match contestant.waiting {
        Waiting::Unsupported => 0,
        Waiting::Polls => 1,
        Waiting::Notified | Waiting::InOrder => effort.rounds,
    }
}

pub(super) async fn handoff(contestants: &[Contestant], effort: Effort, results: &Results) -> Outcome {
    let table = Table::measure(contestants, "handoff", rounds(effort), async |_, contestant, name| {
        Ok(Figures::millis(&contestant.handoff(name, effort.turns, HOLD).await?))
    })
    .await;
    let title = "Redis: hand-off to a waiting client, held 1 ms";
    table.print(title, "   p50 ms    p99 ms    × limit", |row| table.times(row, 3));
    let rivals = [contestants::REDISSON_LIMIT];
    table.record_ratio(results, &targets::REDIS_HANDOFF, "dlock", &rivals, |round| round.quantile(0.5))
}

/// Returns the 99th percentile of the waits of each round, divided by the wait in strict order.
fn p99_ratios(row: &Row<'_, (Figures, f64)>) -> Figures {
    row.rounds.iter().map(|(waits, strict)| waits.quantile(0.99) / strict).collect()
}

/// Measures the longest waits of eight tasks that take the lock 25 times each for 1 ms, compared
/// with the wait in strict order of arrival.
pub(super) async fn waits(contestants: &[Contestant], effort: Effort, results: &Results) -> Outcome {
    const TASKS: usize = 8;
    let turns = effort.turns;
    for (clients, description, target, contestant) in [
        (1, "of one client", &targets::REDIS_WAITS, "dlock"),
        (TASKS, "with a client each", &targets::REDIS_FAIR_WAITS, "dlock, fair"),
    ] {
        let contest = Contest { clients, tasks: TASKS, turns, hold: HOLD };
        let name = format!("waits-{clients}");
        let table = Table::measure(contestants, &name, rounds(effort), async |_, contestant, name| {
            let started_at = Instant::now();
            let waits = contestant.contend(name, &contest).await?;
            // In strict order of arrival each task waits for one turn of each of the other seven
            // tasks. The sum is the length of the contest, divided by the number of turns.
            Ok((Figures::millis(&waits), started_at.elapsed().as_secs_f64() * 1e3 / turns as f64))
        })
        .await;
        let title = format!("Redis: wait of {TASKS} tasks × {turns} × 1 ms, {description}");
        table.print(&title, "   p50 ms    p99 ms    p99 × strict order", |row| {
            let mut all = Figures::default();
            row.rounds.iter().for_each(|(waits, _)| all.join(waits));
            format!("{:9.1} {:9.1}  {}", all.quantile(0.5), all.quantile(0.99), p99_ratios(row))
        });
        table.record(results, target, contestant, p99_ratios)?;
    }
    Ok(())
}
