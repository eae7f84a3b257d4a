//! Number of commands that many waiters of one client for one name cause, while they wait and for
//! each hand-off.

use std::{sync::Arc, time::Duration};

use dlock::{DistributedLock, Kind, LockOptions};
use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::sleep;

use super::{Outcome, Server, connect};
use crate::{Effort, results::Results, targets};

const PERMITS: u32 = 10;

pub(super) async fn waiters(server: &Server, effort: Effort, results: &Results) -> Outcome {
    println!(
        "\nRedis: waiters of one client for one name, commands while they wait and per hand-off\n\
         A permit is one of {PERMITS}. The last column includes the commands that scripts call"
    );
    let mut most_commands = 0;
    let options = LockOptions::new().ttl(Duration::from_secs(300));
    for kind in [Kind::Mutex, Kind::Fair, Kind::Permit] {
        for waiters in if kind == Kind::Permit { [10, 100, 1_000] } else { [1, 100, 10_000] } {
            let waiters = waiters.min(effort.held);
            let client = connect(server, "timeout=30s").await?;
            let name = format!("crowd-{kind}-{waiters}");
            let (lock, holders): (Arc<dyn DistributedLock>, _) = match kind {
                Kind::Permit => (Arc::new(client.semaphore(&name, PERMITS)), PERMITS),
                kind => (client.of(kind, &name), 1),
            };
            let mut held = Vec::new();
            for _ in 0..holders {
                held.push(lock.lock(&options).await?);
            }
            let mut waiting: FuturesUnordered<_> = (0..waiters)
                .map(|_| {
                    let (lock, options) = (Arc::clone(&lock), options.clone());
                    async move { lock.lock(&options).await }
                })
                .collect();
            // Waits until all waiters have requested the lock and subscribed. The server then
            // receives no command for one interval.
            let settle = async {
                let mut before = 0;
                loop {
                    sleep(effort.idle_time / 4).await;
                    let now = server.commands().await?;
                    if now == before {
                        return Outcome::Ok(now);
                    }
                    before = now;
                }
            };
            let before = tokio::select! {
                before = settle => before?,
                _ = waiting.next() => return Err("granted while it was held".into()),
            };
            let while_waiting = tokio::select! {
                () = sleep(effort.idle_time) => server.commands().await? - before,
                _ = waiting.next() => return Err("granted while it was held".into()),
            };
            most_commands = most_commands.max(while_waiting);
            let turns = waiters.min(200);
            let (commands_before, calls_before) = (server.commands().await?, server.calls().await?);
            held.remove(0).release().await?;
            for _ in 0..turns {
                let guard = waiting.next().await.ok_or("there are no more waiters")??;
                guard.release().await?;
            }
            let per_turn = |count: u64| count as f64 / turns as f64;
            let commands = server.commands().await? - commands_before;
            println!(
                "  {kind:6} {waiters:6} waiters: {while_waiting} commands in {:?}, {:6.2} commands per hand-off, {:6.1} calls",
                effort.idle_time,
                per_turn(commands),
                per_turn(server.calls().await? - calls_before - commands),
            );
            drop((waiting, held));
            client.close().await;
        }
    }
    results.measured_once(&targets::REDIS_CROWD, most_commands as f64)
}
