//! A hundred thousand held locks: what renewing them costs.

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::{Instant, sleep};

use super::{Outcome, Server, locks};
use crate::{
    Effort,
    held::{cpu_time, resident},
};

pub(super) async fn many(server: &Server, effort: Effort) -> Outcome {
    // Half a minute, but less with `--quick`.
    let ttl = effort.watch * 15;
    let client = locks(server, "timeout=10s").await?;
    let before = resident()?;
    let guards: Vec<_> = stream::iter(0..effort.held)
        .map(|i| {
            let lock = client.mutex(format!("held-{i}"));
            async move { lock.lock().ttl(ttl).await }
        })
        .buffer_unordered(256)
        .try_collect()
        .await?;
    let bytes = (resident()? - before) / effort.held;
    // A third of the ttl is one pass of renewals. Two passes, so that each lock is renewed.
    let (begun, cpu, commands) = (Instant::now(), cpu_time()?, server.commands().await?);
    sleep(ttl / 3 * 2).await;
    let commands = (server.commands().await? - commands) as f64 / 2.0;
    let share = (cpu_time()? - cpu).as_secs_f64() / begun.elapsed().as_secs_f64();
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    println!("\nRedis: {} locks held", effort.held);
    println!("  commands per pass    {commands:9.0}   aim: at most 1000 for 100000");
    println!("  share of a core      {:8.1}%   aim: under 5%", share * 100.0);
    println!("  bytes per lock       {bytes:9}   aim: under 2048");
    println!("  lost                 {lost:9}\n");
    drop(guards);
    client.close().await;
    Ok(())
}
