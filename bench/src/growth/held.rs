//! Lock and release of a free lock while the same client holds many locks.

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::{Instant, timeout};

use super::{STEP_LIMIT, Step, Store, print, print_end, print_header, sizes};
use crate::{contest::Outcome, figures::Figures, held::resident_bytes};

/// Number of measured pairs of lock and release at each size.
const PAIRS: usize = 200;

/// Number of locks that are requested at once, to reach the next size.
const AT_ONCE: usize = 64;

/// Measures up to `greatest` held locks. The memory is only reported for more than `used` of them,
/// because the process reuses the memory of the waiters that it had before.
pub(super) async fn measure(store: &Store, greatest: usize, used: usize) -> Outcome<Vec<Step>> {
    let locks = dlock::connect(&store.url).await?;
    let (bytes_before, prefix) = (resident_bytes()?, format!("growth-{}", std::process::id()));
    let (mut guards, mut steps) = (Vec::new(), Vec::new());
    print_header("held");
    for size in sizes(greatest) {
        let mut grants = stream::iter(guards.len()..size)
            .map(|number| locks.mutex(format!("{prefix}-{number}")))
            .map(|lock| async move { lock.lock().await })
            .buffer_unordered(AT_ONCE);
        let until_held = async {
            while let Some(guard) = grants.try_next().await? {
                guards.push(guard);
            }
            Outcome::Ok(())
        };
        match timeout(STEP_LIMIT, until_held).await {
            Ok(result) => result?,
            Err(_) => {
                print_end(guards.len(), size);
                break;
            }
        }
        let bytes = resident_bytes()?.saturating_sub(bytes_before) as f64 / size as f64;
        let (mut times, requests_before) = (Figures::new(), store.count().await?);
        let free = locks.mutex(format!("{prefix}-free"));
        for _ in 0..PAIRS {
            let started_at = Instant::now();
            free.lock().await?.release().await?;
            times.add(started_at.elapsed().as_secs_f64() * 1e3);
        }
        let requests = (store.count().await? - requests_before) / PAIRS as f64;
        let [p50_ms, p99_ms] = [0.5, 0.99].map(|share| times.quantile(share));
        let bytes = if size > used { bytes } else { f64::NAN };
        steps.push(Step { size, p50_ms, p99_ms, requests, bytes });
        steps.last().into_iter().for_each(print);
    }
    drop(guards);
    timeout(STEP_LIMIT, locks.close()).await.ok();
    Ok(steps)
}
