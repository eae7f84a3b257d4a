//! Acquire and release of a free lock: alone, and 64 tasks on names of their own.

use std::time::Duration;

use futures_util::future::{BoxFuture, try_join_all};
use tokio::time::Instant;

use super::{Outcome, Server, by_hand, limit::ByHand, locks, rslock};
use crate::{Effort, figures::Figures};

const TTL: Duration = Duration::from_secs(30);

/// A way to take a lock of this name and let it go.
type Pair<'a> = Box<dyn Fn(String) -> BoxFuture<'a, Outcome> + 'a>;

/// All of them, the limits first.
fn contestants<'a>(
    hand: &'a ByHand,
    redisson: &'a dlock::Locks,
    plain: &'a dlock::Locks,
    rival: &'a rslock::LockManager,
) -> [(&'static str, Pair<'a>); 5] {
    let ours = |locks: &'a dlock::Locks| -> Pair<'a> {
        Box::new(move |name| {
            Box::pin(async move { Ok(locks.mutex(name).lock().ttl(TTL).await?.release().await?) })
        })
    };
    [
        (
            "limit, Redisson's",
            Box::new(move |name| Box::pin(async move { hand.redisson_pair(&name, "o:1").await })),
        ),
        ("dlock", ours(redisson)),
        ("limit, plain", Box::new(move |name| Box::pin(async move { hand.plain_pair(&name, "o").await }))),
        ("dlock, plain", ours(plain)),
        (
            "rslock, plain",
            Box::new(move |name| {
                Box::pin(async move {
                    let lock = rival.lock(name.as_bytes(), TTL).await.map_err(|error| error.to_string())?;
                    rival.unlock(&lock).await;
                    Ok(())
                })
            }),
        ),
    ]
}

pub(super) async fn alone(server: &Server, effort: Effort) -> Outcome {
    let (hand, rival) = (ByHand::new(by_hand(server).await?), rslock(server));
    let (redisson, plain) = (locks(server, "").await?, locks(server, "dialect=plain").await?);
    let contestants = contestants(&hand, &redisson, &plain, &rival);
    let mut times: [Figures; 5] = Default::default();
    let mut ratios: [Figures; 5] = Default::default();
    for round in 0..effort.rounds {
        let mut medians = Vec::new();
        for (i, (_, pair)) in contestants.iter().enumerate() {
            let mut round_times = Figures::default();
            for turn in 0..effort.pairs / 50 {
                let begun = Instant::now();
                pair(format!("alone-{i}-{round}-{}", turn % 16)).await?;
                round_times.add_micros(begun.elapsed());
            }
            times[i].join(&round_times);
            medians.push(round_times.quantile(0.5));
        }
        for (i, median) in medians.iter().enumerate() {
            ratios[i].add(median / medians[if i < 2 { 0 } else { 2 }]);
        }
    }
    println!("Redis: acquire + release of a free lock, alone, µs, × its limit (aims: 1.10, plain 1.05)");
    for (i, (name, _)) in contestants.iter().enumerate() {
        let [p50, p99] = [0.5, 0.99].map(|share| times[i].quantile(share));
        println!("  {name:20} p50 {p50:7.1}  p99 {p99:7.1}   × {}", ratios[i]);
    }
    Ok(())
}

pub(super) async fn together(server: &Server, effort: Effort) -> Outcome {
    const TASKS: u32 = 64;
    let (hand, rival) = (ByHand::new(by_hand(server).await?), rslock(server));
    let (redisson, plain) = (locks(server, "").await?, locks(server, "dialect=plain").await?);
    let contestants = contestants(&hand, &redisson, &plain, &rival);
    let each = effort.pairs / 50 / 8;
    let mut rates: [Figures; 5] = Default::default();
    let mut ratios: [Figures; 5] = Default::default();
    for _ in 0..effort.rounds {
        let mut round = Vec::new();
        for (i, (_, pair)) in contestants.iter().enumerate() {
            let begun = Instant::now();
            let tasks = (0..TASKS).map(|task| async move {
                for _ in 0..each {
                    pair(format!("together-{i}-{task}")).await?;
                }
                Outcome::Ok(())
            });
            try_join_all(tasks).await?;
            round.push(f64::from(TASKS * each) / begun.elapsed().as_secs_f64());
        }
        for (i, rate) in round.iter().enumerate() {
            rates[i].add(*rate);
            ratios[i].add(rate / round[if i < 2 { 0 } else { 2 }]);
        }
    }
    println!("\nRedis: {TASKS} tasks on names of their own, pairs per second, × its limit (aim: 0.9)");
    for (i, (name, _)) in contestants.iter().enumerate() {
        println!("  {name:20} {:9.0}   × {}", rates[i].quantile(0.5), ratios[i]);
    }
    Ok(())
}
