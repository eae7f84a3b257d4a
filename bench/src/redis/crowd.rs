//! Many waiters for one name: how many commands they send while they wait, and what a hand-off costs.

use std::{sync::Arc, time::Duration};

use dlock::{DistributedLock, Kind, LockOptions};
use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::sleep;

use super::{Outcome, Server, locks};
use crate::Effort;

const PERMITS: u32 = 10;

pub(super) async fn waiting(server: &Server, effort: Effort) -> Outcome {
    println!(
        "\nRedis: waiters of one client on one name: commands while waiting, and per hand-off (aim: 0, flat)\n\
         A permit is one of {PERMITS}. Beside it: what the scripts call"
    );
    let options = LockOptions::new().ttl(Duration::from_secs(300));
    for kind in [Kind::Mutex, Kind::Fair, Kind::Permit] {
        for waiters in if kind == Kind::Permit { [10, 100, 1_000] } else { [1, 100, 10_000] } {
            let waiters = waiters.min(effort.held);
            let client = locks(server, "timeout=30s").await?;
            let name = format!("crowd-{kind}-{waiters}");
            let (lock, holders): (Arc<dyn DistributedLock>, _) = match kind {
                Kind::Permit => (Arc::new(client.semaphore(&name, PERMITS)), PERMITS),
                kind => (client.of(kind, &name), 1),
            };
            let mut held = Vec::new();
            for _ in 0..holders {
                held.push(lock.lock(&options).await?);
            }
            let mut crowd: FuturesUnordered<_> = (0..waiters)
                .map(|_| {
                    let (lock, options) = (Arc::clone(&lock), options.clone());
                    async move { lock.lock(&options).await }
                })
                .collect();
            // Waits until all have asked and subscribed: for a while the server gets no commands any more.
            let settle = async {
                let mut before = 0;
                loop {
                    sleep(effort.watch / 4).await;
                    let now = server.commands().await?;
                    if now == before {
                        return Outcome::Ok(now);
                    }
                    before = now;
                }
            };
            let before = tokio::select! {
                before = settle => before?,
                _ = crowd.next() => return Err("granted while it was held".into()),
            };
            let while_waiting = tokio::select! {
                () = sleep(effort.watch) => server.commands().await? - before,
                _ = crowd.next() => return Err("granted while it was held".into()),
            };
            let turns = waiters.min(200);
            let (before, called) = (server.commands().await?, server.calls().await?);
            held.remove(0).release().await?;
            for _ in 0..turns {
                let guard = crowd.next().await.ok_or("everybody was served")??;
                guard.release().await?;
            }
            let each = |all: u64| all as f64 / turns as f64;
            let commands = server.commands().await? - before;
            println!(
                "  {kind:6} {waiters:6} waiters: {while_waiting} commands in {:?}, {:6.2} commands per hand-off, {:6.1} calls",
                effort.watch,
                each(commands),
                each(server.calls().await? - called - commands),
            );
            drop((crowd, held));
            client.close().await;
        }
    }
    Ok(())
}
