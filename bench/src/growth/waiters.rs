//! Hand-offs between many waiters of one client for one name.

use std::time::Duration;

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, sleep, timeout};

use super::{STEP_LIMIT, Step, Store, print, print_end, print_header, sizes};
use crate::{contest::Outcome, figures::Figures, held::resident_bytes};

/// Number of measured hand-offs of each size.
const HANDOFFS: usize = 100;

/// Number of waiters from which on their memory is greater than the noise of the allocator.
const LEAST_WITH_MEMORY: usize = 100;

/// Interval between two inspections of the queue, while waiters arrive.
const INSPECTION_INTERVAL: Duration = Duration::from_millis(2);

pub(super) async fn measure(store: &Store, greatest: usize) -> Outcome<Vec<Step>> {
    let mut steps = Vec::new();
    print_header("waiters");
    for size in sizes(greatest) {
        let (mut times, mut requests, mut bytes) = (Figures::new(), Figures::new(), f64::NAN);
        // Fewer waiters than hand-offs are replaced by new ones.
        let crowds = (HANDOFFS / size).max(1);
        let locks = dlock::connect(&store.url).await?;
        for crowd in 0..crowds {
            let lock = locks.fair(format!("growth-{}-{size}-{crowd}", std::process::id()));
            let name = lock.name().to_string();
            let mut guard = lock.lock().await?;
            let bytes_before = resident_bytes()?;
            let mut waiting: FuturesUnordered<_> = (0..size).map(|_| async { lock.lock().await }).collect();
            let mut queued = 0;
            let until_queued = async {
                let mut interval = INSPECTION_INTERVAL;
                while queued < size {
                    sleep(interval).await;
                    queued = locks.inspect(&name).await?.map_or(0, |state| state.queue.len());
                    // An inspection of a long queue is expensive, so these are rare.
                    interval = INSPECTION_INTERVAL * (1 + queued / 10) as u32;
                }
                Outcome::Ok(())
            };
            let is_complete = tokio::select! {
                result = timeout(STEP_LIMIT, until_queued) => match result {
                    Ok(result) => result.map(|()| true)?,
                    Err(_) => false,
                },
                _ = waiting.next() => return Err("granted while it was held".into()),
            };
            if !is_complete {
                print_end(queued, size);
                return Ok(steps);
            }
            if size >= LEAST_WITH_MEMORY {
                bytes = resident_bytes()?.saturating_sub(bytes_before) as f64 / size as f64;
            }
            let turns = size.min(HANDOFFS);
            let requests_before = store.count().await?;
            for _ in 0..turns {
                let released_at = Instant::now();
                guard.release().await?;
                guard = waiting.next().await.ok_or("there are no more waiters")??;
                times.add(released_at.elapsed().as_secs_f64() * 1e3);
            }
            requests.add((store.count().await? - requests_before) / turns as f64);
        }
        // The remaining waiters leave the queue. A slow store may need longer than is useful.
        timeout(STEP_LIMIT, locks.close()).await.ok();
        let [p50_ms, p99_ms] = [0.5, 0.99].map(|share| times.quantile(share));
        steps.push(Step { size, p50_ms, p99_ms, requests: requests.mean(), bytes });
        steps.last().into_iter().for_each(print);
    }
    Ok(steps)
}
