//! Many waiters for one name: how many commands they send while they wait, and what a hand-off costs.

use std::time::Duration;

use dlock::{Kind, LockOptions};
use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::sleep;

use super::{Outcome, Server, locks};
use crate::Effort;

pub(super) async fn waiting(server: &Server, effort: Effort) -> Outcome {
    println!(
        "\nRedis: waiters of one client on one name: commands while waiting, and per hand-off (aim: 0, flat)"
    );
    let options = LockOptions::new().ttl(Duration::from_secs(300));
    for kind in [Kind::Mutex, Kind::Fair] {
        for waiters in [1, 100, 10_000] {
            let waiters = waiters.min(effort.held);
            let client = locks(server, "timeout=30s").await?;
            let name = format!("crowd-{kind}-{waiters}");
            let held = client.of(kind, &name).lock(&options).await?;
            let mut crowd: FuturesUnordered<_> = (0..waiters)
                .map(|_| {
                    let lock = client.of(kind, &name);
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
            let before = server.commands().await?;
            held.release().await?;
            for _ in 0..turns {
                let guard = crowd.next().await.ok_or("everybody was served")??;
                guard.release().await?;
            }
            let each = (server.commands().await? - before) as f64 / turns as f64;
            println!(
                "  {kind:5} {waiters:6} waiters: {while_waiting} commands in {:?}, {each:6.2} commands per hand-off",
                effort.watch
            );
            drop(crowd);
            client.close().await;
        }
    }
    Ok(())
}
