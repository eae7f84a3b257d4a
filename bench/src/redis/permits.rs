//! Permits beside the mutex, on the same connections.

use std::{cell::Cell, time::Duration};

use dlock::Kind;
use futures_util::future::try_join_all;

use super::{
    Server,
    contestants::{CLIENTS, REDISSON},
    locks,
};
use crate::{
    Effort,
    contest::{Contestant, Dlock, Here, Outcome, Table, Waits},
    figures::Figures,
};

const LIMIT: u32 = 10;

/// How long each holder keeps the lock in a hand-off, so that the other one waits.
const HOLD: Duration = Duration::from_millis(1);

/// The name of the row of a permit that is taken while all others but one are held.
const LAST: &str = "permit, 9 of 10 held";

pub(super) async fn beside_the_mutex(server: &Server, effort: Effort) -> Outcome {
    let clients = try_join_all((0..8).map(|_| locks(server, ""))).await?;
    let of = async |name: &str, kind, limit| {
        let next = Cell::new(0);
        let client = async || Ok(Dlock::on(clients[next.replace(next.get() + 1)].clone(), kind, limit));
        let waits = if kind == Kind::Mutex { Waits::Woken } else { Waits::InOrder };
        Outcome::Ok(Contestant::new(name, REDISSON, waits, Ok(Here::connect(CLIENTS, client).await?)))
    };
    let mutex = of("mutex", Kind::Mutex, 1).await?.limit();
    let (fair, permit) = (of("fair", Kind::Fair, 1).await?, of("permit", Kind::Permit, LIMIT).await?);
    let kinds = [mutex, fair, permit, of(LAST, Kind::Permit, LIMIT).await?];
    let holder = locks(server, "").await?;
    let table = Table::measure(
        &kinds,
        "permits",
        |_| effort.rounds,
        async |who, measured, name| {
            let others = if who.name == LAST { LIMIT - 1 } else { 0 };
            let pool = holder.semaphore(name, LIMIT);
            let held = try_join_all((0..others).map(|_| async { pool.acquire().await })).await?;
            let took = measured.pairs(name, effort.pairs as usize / 50).await?;
            drop(held);
            Ok(Figures::micros(&took))
        },
    )
    .await;
    let title = "Redis: acquire + release on one connection (aim: a permit 1.10 × the mutex)";
    table.print(title, "   p50 µs    p99 µs    × mutex", |row| table.times(row, 1));

    let mutex = of("mutex", Kind::Mutex, 1).await?.limit();
    let one = [mutex, of("fair", Kind::Fair, 1).await?, of("permit", Kind::Permit, 1).await?];
    let table = Table::measure(
        &one,
        "permits-handoff",
        |_| effort.rounds,
        async |_, measured, name| Ok(Figures::millis(&measured.handoff(name, effort.turns, HOLD).await?)),
    )
    .await;
    let title = "Redis: hand-off of the only permit from one client to another who waits, held 1 ms";
    table.print(title, "   p50 ms    p99 ms    × mutex", |row| table.times(row, 3));
    Ok(())
}
