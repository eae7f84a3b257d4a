//! Permits beside the mutex, on the same connections.

use std::{cell::Cell, time::Duration};

use dlock::Kind;
use futures_util::future::try_join_all;

use super::{
    Server, connect,
    contestants::{CLIENTS, REDISSON},
};
use crate::{
    Effort,
    contest::{Contestant, Dlock, InProcess, Outcome, Table, Waiting},
    figures::Figures,
    results::Results,
    targets,
};

/// Number of permits of the semaphore.
const LIMIT: u32 = 10;

/// Length of each hold in a hand-off.
const HOLD: Duration = Duration::from_millis(1);

/// Name of the contestant that takes the last free permit.
const LAST_PERMIT: &str = "permit, 9 of 10 held";

pub(super) async fn beside_the_mutex(server: &Server, effort: Effort, results: &Results) -> Outcome {
    let clients = try_join_all((0..CLIENTS).map(|_| connect(server, ""))).await?;
    let contestant = async |name: &str, kind, limit| {
        let next_client = Cell::new(0);
        let client =
            async || Ok(Dlock::on(clients[next_client.replace(next_client.get() + 1)].clone(), kind, limit));
        let waiting = if kind == Kind::Mutex { Waiting::Notified } else { Waiting::InOrder };
        Outcome::Ok(Contestant::new(name, REDISSON, waiting, Ok(InProcess::connect(CLIENTS, client).await?)))
    };
    let mutex = contestant("mutex", Kind::Mutex, 1).await?.into_limit();
    let (fair, permit) =
        (contestant("fair", Kind::Fair, 1).await?, contestant("permit", Kind::Permit, LIMIT).await?);
    let kinds = [mutex, fair, permit, contestant(LAST_PERMIT, Kind::Permit, LIMIT).await?];
    let holder = connect(server, "").await?;
    let table = Table::measure(
        &kinds,
        "permits",
        |_| effort.rounds,
        async |contestant, measurements, name| {
            let held_permits = if contestant.name == LAST_PERMIT { LIMIT - 1 } else { 0 };
            let pool = holder.semaphore(name, LIMIT);
            let held = try_join_all((0..held_permits).map(|_| async { pool.acquire().await })).await?;
            let times = measurements.pairs(name, effort.pairs as usize / 50).await?;
            drop(held);
            Ok(Figures::micros(&times))
        },
    )
    .await;
    let title = "Redis: lock + release on one connection";
    table.print(title, "   p50 µs    p99 µs    × mutex", |row| table.times(row, 1));
    table.record_ratio(results, &targets::REDIS_PERMIT, "permit", &["mutex"], |round| round.quantile(0.5))?;

    let mutex = contestant("mutex", Kind::Mutex, 1).await?.into_limit();
    let single =
        [mutex, contestant("fair", Kind::Fair, 1).await?, contestant("permit", Kind::Permit, 1).await?];
    let table = Table::measure(
        &single,
        "permits-handoff",
        |_| effort.rounds,
        async |_, contestant, name| Ok(Figures::millis(&contestant.handoff(name, effort.turns, HOLD).await?)),
    )
    .await;
    let title = "Redis: hand-off of the only permit to a waiting client, held 1 ms";
    table.print(title, "   p50 ms    p99 ms    × mutex", |row| table.times(row, 3));
    Ok(())
}
