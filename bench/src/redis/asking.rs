//! How many commands a waiter sends to the server while it waits.

use std::time::Duration;

use dlock_testbed::peer::Contest;
use tokio::time::sleep;

use super::{
    Server,
    contestants::REDISSON,
    limit::{PlainByHand, RedissonByHand},
};
use crate::{
    Effort,
    contest::{Client, Contestant, Measured, Outcome, Table, Waits},
};

pub(super) async fn asking(server: &Server, contestants: &[Contestant], effort: Effort) -> Outcome {
    let (redisson, plain) = (RedissonByHand::connect(server).await?, PlainByHand::connect(server).await?);
    // The lock that is held by hand is released as a mutex, which does not wake waiters in order of arrival.
    let rounds = |who: &Contestant| usize::from(matches!(who.waits, Waits::Woken | Waits::Polls));
    let table = Table::measure(contestants, "asking", rounds, async |who, measured, name| match who.group {
        REDISSON => asked(server, &redisson, measured, name, effort.watch).await,
        _ => asked(server, &plain, measured, name, effort.watch).await,
    })
    .await;
    let title = "Redis: what one waiter asks of the server while another holds the lock (aim: 0)";
    table.print(title, "commands a second", |row| format!("{:17.1}", row.rounds.iter().sum::<f64>()));
    Ok(())
}

/// How many commands a waiter sends per second while the lock is held by hand.
async fn asked<C: Client>(
    server: &Server,
    holder: &C,
    measured: &dyn Measured,
    name: &str,
    span: Duration,
) -> Outcome<f64> {
    let held = holder.lock(name).await?;
    let waiter = measured.contend(name, &Contest { clients: 1, tasks: 1, turns: 1, hold: Duration::ZERO });
    let (waits, asked) = tokio::try_join!(waiter, async {
        // By then the waiter has tried once, and has subscribed.
        sleep(span / 4).await;
        let asked = server.asked(name, span).await?;
        holder.unlock(held).await?;
        Ok(asked)
    })?;
    if waits.iter().any(|wait| *wait < span) {
        return Err("granted while it was held".into());
    }
    Ok(asked as f64 / span.as_secs_f64())
}
