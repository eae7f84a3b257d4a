//! Times of a lock in an SQLite file: free, and handed over between two clients that share only the
//! file.

use std::{error::Error, sync::mpsc, thread, time::Duration};

use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep},
};

use crate::{Effort, contest::Outcome, figures::Figures, results::Results, targets};

/// Length of each hold. It is long enough for the waiting client to sleep when the lock is
/// released.
const HOLD: Duration = Duration::from_millis(10);

type SendError = Box<dyn Error + Send + Sync>;

pub(crate) fn bench(effort: Effort, results: &Results) -> Outcome {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let turns = effort.rounds * 20;

    let mut free = Figures::default();
    runtime()?.block_on(async {
        let locks = dlock::connect(&url).await?;
        for _ in 0..turns * 5 {
            let started_at = Instant::now();
            locks.mutex("free").lock().await?.release().await?;
            free.add_micros(started_at.elapsed());
        }
        locks.close().await;
        Ok::<(), dlock::Error>(())
    })?;

    // Each client has its own thread and runtime, and sends the times of its grants and releases.
    let (events, received) = mpsc::channel();
    let clients: Vec<_> = (0..2)
        .map(|_| {
            let (url, events) = (url.clone(), events.clone());
            thread::spawn(move || take_turns(&url, turns / 2, &events))
        })
        .collect();
    drop(events);
    let mut log: Vec<_> = received.iter().collect();
    for client in clients {
        client.join().map_err(|_| "a client panicked")?.map_err(|error| error.to_string())?;
    }
    log.sort_by_key(|(at, _)| *at);
    let mut handoff = Figures::default();
    for pair in log.windows(2) {
        if let [(released, Event::Released), (granted, Event::Granted)] = pair {
            handoff.add(granted.duration_since(*released).as_secs_f64() * 1e3);
        }
    }
    println!("SQLite file, {turns} acquisitions");
    println!(
        "  lock + release, free, µs             p50 {:8.1}  p99 {:8.1}",
        free.quantile(0.5),
        free.quantile(0.99)
    );
    println!(
        "  hand-off between two clients, ms     p50 {:8.3}  p99 {:8.3}\n",
        handoff.quantile(0.5),
        handoff.quantile(0.99)
    );
    results.measured_once(&targets::SQLITE_HANDOFF, handoff.quantile(0.5))
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Granted,
    Released,
}

fn take_turns(url: &str, turns: usize, events: &mpsc::Sender<(Instant, Event)>) -> Result<(), SendError> {
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
