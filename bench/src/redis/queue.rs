//! One name, many who want it: how fast it changes hands, and how long the unlucky wait.

use std::{sync::Arc, time::Duration};

use dlock::{DistributedLock, Kind, LockOptions};
use futures_util::future::try_join_all;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use super::{Outcome, Server, locks, rslock};
use crate::{Effort, figures::Figures};

/// Two clients hand a lock to each other; each holds it for a millisecond, so that the other one waits.
pub(super) async fn handoff(server: &Server, effort: Effort) -> Outcome {
    const HOLD: Duration = Duration::from_millis(1);
    let turns = effort.rounds * 50;
    println!("\nRedis: hand-off from one client to another, held 1 ms, ms (aim: p50 0.3)");
    for kind in [Kind::Mutex, Kind::Fair] {
        let released = Released::default();
        let mut players = Vec::new();
        for me in 0..2 {
            let lock = locks(server, "").await?.lock(kind, "handed over");
            players.push(player(me, lock, turns, HOLD, &released));
        }
        let figures = try_join_all(players).await?.into_iter().fold(Figures::default(), |mut all, one| {
            all.join(&one);
            all
        });
        println!("  dlock, {kind:13} p50 {:7.3}  p99 {:7.3}", figures.quantile(0.5), figures.quantile(0.99));
    }
    let released = Released::default();
    let rival = |me| {
        let released = &released;
        async move {
            let (manager, mut figures) = (rslock(server), Figures::default());
            for _ in 0..turns / 10 {
                let lock = manager
                    .lock(b"rslock handed over", Duration::from_secs(30))
                    .await
                    .map_err(|e| e.to_string())?;
                note(me, released, &mut figures).await;
                sleep(HOLD).await;
                *released.lock().await = Some((me, Instant::now()));
                manager.unlock(&lock).await;
            }
            Outcome::Ok(figures)
        }
    };
    let (mut one, other) = tokio::try_join!(rival(0), rival(1))?;
    one.join(&other);
    println!("  rslock               p50 {:7.3}  p99 {:7.3}", one.quantile(0.5), one.quantile(0.99));
    Ok(())
}

/// Who let go last, and when.
type Released = Mutex<Option<(usize, Instant)>>;

async fn player(
    me: usize,
    lock: Arc<dyn DistributedLock>,
    turns: usize,
    hold: Duration,
    released: &Released,
) -> Outcome<Figures> {
    let mut figures = Figures::default();
    for _ in 0..turns {
        let guard = lock.lock(&LockOptions::new()).await?;
        note(me, released, &mut figures).await;
        sleep(hold).await;
        *released.lock().await = Some((me, Instant::now()));
        guard.release().await?;
    }
    Ok(figures)
}

/// The time since the other one let go; who takes again what it has just released hands nothing over.
async fn note(me: usize, released: &Released, figures: &mut Figures) {
    if let Some((_, at)) = released.lock().await.take().filter(|(who, _)| *who != me) {
        figures.add(at.elapsed().as_secs_f64() * 1e3);
    }
}

/// Eight tasks, 25 times each, a millisecond of work: the longest waits beside strict order.
pub(super) async fn waits(server: &Server, effort: Effort) -> Outcome {
    const TASKS: usize = 8;
    println!("\nRedis: p99 wait of 8 tasks × 25 × 1 ms, × strict order (aims: fair 2, one client 3)");
    let rounds = effort.rounds.min(5);
    for (what, kind, clients) in
        [("one client", Kind::Mutex, 1), ("8 clients", Kind::Mutex, 8), ("8 clients, fair", Kind::Fair, 8)]
    {
        let mut figures = Figures::default();
        for _ in 0..rounds {
            let mut all = Vec::new();
            for _ in 0..clients {
                all.push(locks(server, "").await?);
            }
            let begun = Instant::now();
            let tasks = (0..TASKS).map(|task| {
                let lock = all[task % clients].lock(kind, "in turn");
                async move {
                    let mut waits = Vec::new();
                    for _ in 0..25 {
                        let asked = Instant::now();
                        let guard = lock.lock(&LockOptions::new()).await?;
                        waits.push(asked.elapsed());
                        sleep(Duration::from_millis(1)).await;
                        guard.release().await?;
                    }
                    Outcome::Ok(waits)
                }
            });
            let waits = try_join_all(tasks).await?;
            // In strict order everybody waits for the seven others, whatever a turn takes.
            let strict = begun.elapsed().as_secs_f64() / 25.0;
            let mut all = Figures::default();
            waits.into_iter().flatten().for_each(|wait| all.add(wait.as_secs_f64()));
            figures.add(all.quantile(0.99) / strict);
        }
        println!("  dlock, {what:17} × {figures}");
    }
    Ok(())
}
