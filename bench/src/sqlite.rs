//! How long a lock in an SQLite file takes to change hands between two clients that share only the file.

use std::{error::Error, sync::mpsc, thread, time::Duration};

use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep},
};

use crate::{Effort, figures::Figures};

/// How long each holder keeps the lock, so that the other one is asleep when the lock is released.
const HOLD: Duration = Duration::from_millis(10);

type Failure = Box<dyn Error + Send + Sync>;

pub(crate) fn bench(effort: Effort) -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let turns = effort.rounds * 20;

    let mut alone = Figures::default();
    runtime()?.block_on(async {
        let locks = dlock::connect(&url).await?;
        for _ in 0..turns * 5 {
            let begun = Instant::now();
            locks.mutex("alone").lock().await?.release().await?;
            alone.add_micros(begun.elapsed());
        }
        locks.close().await;
        Ok::<(), dlock::Error>(())
    })?;

    // Each client has a thread and a runtime of its own. Both note when they released the lock and when it was granted.
    let (events, log) = mpsc::channel();
    let players: Vec<_> = (0..2)
        .map(|_| {
            let (url, events) = (url.clone(), events.clone());
            thread::spawn(move || play(&url, turns / 2, &events))
        })
        .collect();
    drop(events);
    let mut log: Vec<_> = log.iter().collect();
    for player in players {
        player.join().map_err(|_| "a player panicked")?.map_err(|error| error.to_string())?;
    }
    log.sort_by_key(|(at, _)| *at);
    let mut handoff = Figures::default();
    for pair in log.windows(2) {
        if let [(released, Event::Released), (granted, Event::Granted)] = pair {
            handoff.add(granted.duration_since(*released).as_secs_f64() * 1e3);
        }
    }
    println!("SQLite file, {turns} turns");
    println!(
        "  lock + release, free, µs             p50 {:8.1}  p99 {:8.1}",
        alone.quantile(0.5),
        alone.quantile(0.99)
    );
    println!(
        "  hand-off between two clients, ms     p50 {:8.3}  p99 {:8.3}   aim: p50 under 5\n",
        handoff.quantile(0.5),
        handoff.quantile(0.99)
    );
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Granted,
    Released,
}

fn play(url: &str, turns: usize, events: &mpsc::Sender<(Instant, Event)>) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let locks = dlock::connect(url).await?;
        for _ in 0..turns {
            let guard = locks.fair("handed over").lock().await?;
            events.send((Instant::now(), Event::Granted))?;
            sleep(HOLD).await;
            events.send((Instant::now(), Event::Released))?;
            guard.release().await?;
        }
        locks.close().await;
        Ok(())
    })
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}
