//! Number of commands that a waiter sends while it waits.

use std::time::Duration;

use dlock_testbed::peer::Contest;
use tokio::time::sleep;

use super::{
    Server,
    contestants::REDISSON,
    limit::{PlainLimit, RedissonLimit},
};
use crate::{
    Effort,
    contest::{Client, Contestant, Measure, Outcome, Table, Waiting},
    results::Results,
    targets,
};

pub(super) async fn commands(
    server: &Server,
    contestants: &[Contestant],
    effort: Effort,
    results: &Results,
) -> Outcome {
    let (redisson, plain) = (RedissonLimit::connect(server).await?, PlainLimit::connect(server).await?);
    // The holder releases as a mutex, which does not wake waiters that wait in order of arrival.
    let rounds = |contestant: &Contestant| {
        usize::from(matches!(contestant.waiting, Waiting::Notified | Waiting::Polls))
    };
    let table =
        Table::measure(
            contestants,
            "waiter",
            rounds,
            async |contestant, measurements, name| match contestant.group {
                REDISSON => command_rate(server, &redisson, measurements, name, effort.idle_time).await,
                _ => command_rate(server, &plain, measurements, name, effort.idle_time).await,
            },
        )
        .await;
    let title = "Redis: commands of one waiter while another client holds the lock";
    table.print(title, "commands a second", |row| format!("{:17.1}", row.rounds.iter().sum::<f64>()));
    table.record(results, &targets::REDIS_WAITER, "dlock", |row| row.rounds.iter().copied().collect())
}

/// Returns the number of commands per second that a waiter sends while `holder` holds the lock.
async fn command_rate<C: Client>(
    server: &Server,
    holder: &C,
    measurements: &dyn Measure,
    name: &str,
    span: Duration,
) -> Outcome<f64> {
    let held = holder.lock(name).await?;
    let waiter =
        measurements.contend(name, &Contest { clients: 1, tasks: 1, turns: 1, hold: Duration::ZERO });
    let (waits, commands) = tokio::try_join!(waiter, async {
        // After this time the waiter has made its first attempt, and has subscribed.
        sleep(span / 4).await;
        let commands = server.commands_about(name, span).await?;
        holder.unlock(held).await?;
        Ok(commands)
    })?;
    if waits.iter().any(|wait| *wait < span) {
        return Err("granted while it was held".into());
    }
    Ok(commands as f64 / span.as_secs_f64())
}
