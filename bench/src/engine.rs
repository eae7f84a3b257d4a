//! Cost of the engine, measured by lock and release on the memory store. Contestants are tokio's
//! mutex, and a task that replies to one request.

use std::sync::Arc;

use dlock_core::Locks;
use tokio::{sync::oneshot, time::Instant};

use crate::{Effort, contest::Outcome, figures::Figures, results::Results, targets};

pub(crate) async fn bench(effort: Effort, results: &Results) -> Outcome {
    let locks = Locks::memory();
    let (dlock_mutex, tokio_mutex) = (locks.mutex("x"), Arc::new(tokio::sync::Mutex::new(())));
    let [mut dlock_times, mut tokio_times, mut task_times, mut ratios] = [const { Figures::new() }; 4];
    // The first round warms the caches. It does not count.
    for round in 0..=effort.rounds {
        let started_at = Instant::now();
        for _ in 0..effort.pairs {
            dlock_mutex.lock().await?.release().await?;
        }
        let dlock_time = started_at.elapsed();
        let started_at = Instant::now();
        for _ in 0..effort.pairs {
            drop(Arc::clone(&tokio_mutex).lock_owned().await);
        }
        let tokio_time = started_at.elapsed();
        let started_at = Instant::now();
        for _ in 0..effort.pairs {
            request_of_a_task().await?;
        }
        let task_time = started_at.elapsed();
        if round > 0 {
            dlock_times.add_micros(dlock_time / effort.pairs);
            tokio_times.add_micros(tokio_time / effort.pairs);
            task_times.add_micros(task_time / effort.pairs);
            ratios.add(dlock_time.as_secs_f64() / task_time.as_secs_f64());
        }
    }
    println!("lock + release of a free lock on the memory store, µs");
    println!("  dlock                {dlock_times}");
    println!("  tokio::sync::Mutex   {tokio_times}");
    println!("  spawn, reply         {task_times}");
    println!("  dlock × spawn, reply {ratios}\n");
    results.measured(&targets::ENGINE_PAIR, &ratios)
}

/// Starts a task, sends it one request, and waits for its reply.
async fn request_of_a_task() -> Outcome {
    let (requests, request) = oneshot::channel::<oneshot::Sender<()>>();
    #[expect(clippy::disallowed_methods, reason = "the start of a task is what is measured")]
    tokio::spawn(async move {
        if let Ok(reply) = request.await {
            reply.send(()).ok();
        }
    });
    let (reply, replies) = oneshot::channel();
    requests.send(reply).map_err(|_| "the task has ended")?;
    Ok(replies.await?)
}
