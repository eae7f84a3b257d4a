//! Cost of the renewals of a hundred thousand held locks.

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::{Instant, sleep};

use super::{Outcome, Server, connect};
use crate::{
    Effort,
    held::{cpu_time, resident_bytes},
    results::Results,
    targets,
};

pub(super) async fn renewals(server: &Server, effort: Effort, results: &Results) -> Outcome {
    // 30 s, and less with `--quick`.
    let ttl = effort.idle_time * 15;
    let client = connect(server, "timeout=10s").await?;
    let bytes_before = resident_bytes()?;
    let guards: Vec<_> = stream::iter(0..effort.held)
        .map(|i| {
            let lock = client.mutex(format!("held-{i}"));
            async move { lock.lock().ttl(ttl).await }
        })
        .buffer_unordered(256)
        .try_collect()
        .await?;
    let bytes_per_lock = (resident_bytes()? - bytes_before) / effort.held;
    // All locks are renewed once in a third of the ttl. Measures two such passes.
    let (started_at, cpu_before, commands_before) = (Instant::now(), cpu_time()?, server.commands().await?);
    sleep(ttl / 3 * 2).await;
    let commands = (server.commands().await? - commands_before) as f64 / 2.0;
    let cpu_share = (cpu_time()? - cpu_before).as_secs_f64() / started_at.elapsed().as_secs_f64();
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    println!("\nRedis: {} locks held", effort.held);
    println!("  commands per pass    {commands:9.0}");
    println!("  share of a core      {:8.1}%", cpu_share * 100.0);
    println!("  bytes per lock       {bytes_per_lock:9}");
    println!("  lost                 {lost:9}\n");
    drop(guards);
    client.close().await;
    let measured = [
        (&targets::REDIS_RENEWALS, commands),
        (&targets::REDIS_HELD_CPU, cpu_share * 100.0),
        (&targets::REDIS_HELD_BYTES, bytes_per_lock as f64),
        (&targets::REDIS_HELD_LOST, lost as f64),
    ];
    measured.into_iter().try_for_each(|(target, value)| results.measured_once(target, value))
}
