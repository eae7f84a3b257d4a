//! One name, several who want it: how fast it changes hands, and how long the unlucky wait.

use std::time::Duration;

use dlock_testbed::peer::Contest;
use tokio::time::Instant;

use crate::{
    Effort,
    contest::{Contestant, Table, Waits},
    figures::Figures,
};

/// How long each holder keeps the lock, so that the others wait.
const HOLD: Duration = Duration::from_millis(1);

/// One round for contestants that poll: it takes them a hundred times as long, and they have nothing to warm up.
fn rounds(effort: Effort) -> impl Fn(&Contestant) -> usize {
    move |who| match who.waits {
        Waits::Never => 0,
        Waits::Polls => 1,
        Waits::Woken | Waits::InOrder => effort.rounds,
    }
}

pub(super) async fn handoff(contestants: &[Contestant], effort: Effort) {
    let table = Table::measure(contestants, "handoff", rounds(effort), async |_, measured, name| {
        Ok(Figures::millis(&measured.handoff(name, effort.turns, HOLD).await?))
    })
    .await;
    let title = "Redis: hand-off from one client to another who waits, held 1 ms (aim: p50 1.5 × the limit)";
    table.print(title, "   p50 ms    p99 ms    × limit", |row| table.times(row, 3));
}

/// Eight tasks that take the lock 25 times each for a millisecond: the longest waits, compared with those in strict order.
pub(super) async fn waits(contestants: &[Contestant], effort: Effort) {
    const TASKS: usize = 8;
    let turns = effort.turns;
    for (clients, what) in [(1, "of one client (aim: 3 ×"), (TASKS, "with a client each (aim: fair 2 ×")] {
        let contest = Contest { clients, tasks: TASKS, turns, hold: HOLD };
        let name = format!("waits-{clients}");
        let table = Table::measure(contestants, &name, rounds(effort), async |_, measured, name| {
            let begun = Instant::now();
            let waits = measured.contend(name, &contest).await?;
            // In strict order everybody waits for the turns of the seven others, however long a turn takes.
            Ok((Figures::millis(&waits), begun.elapsed().as_secs_f64() * 1e3 / turns as f64))
        })
        .await;
        let title = format!("Redis: wait of {TASKS} tasks × {turns} × 1 ms, {what} strict order)");
        table.print(&title, "   p50 ms    p99 ms    p99 × strict order", |row| {
            let (mut all, mut ratio) = (Figures::default(), Figures::default());
            for (waits, strict) in &row.rounds {
                all.join(waits);
                ratio.add(waits.quantile(0.99) / strict);
            }
            format!("{:9.1} {:9.1}  {ratio}", all.quantile(0.5), all.quantile(0.99))
        });
    }
}
