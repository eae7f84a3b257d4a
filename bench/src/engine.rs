//! Cost of the engine: lock and release on the memory store, beside tokio's mutex.

use std::{error::Error, sync::Arc};

use dlock_core::Locks;
use tokio::time::Instant;

use crate::{Effort, figures::Figures};

pub(crate) async fn bench(effort: Effort) -> Result<(), Box<dyn Error>> {
    let locks = Locks::memory();
    let (dlock_mutex, tokio_mutex) = (locks.mutex("x"), Arc::new(tokio::sync::Mutex::new(())));
    let (mut dlock_times, mut tokio_times) = (Figures::default(), Figures::default());
    for _ in 0..effort.rounds {
        let started_at = Instant::now();
        for _ in 0..effort.pairs {
            dlock_mutex.lock().await?.release().await?;
        }
        dlock_times.add_micros(started_at.elapsed() / effort.pairs);
        let started_at = Instant::now();
        for _ in 0..effort.pairs {
            drop(Arc::clone(&tokio_mutex).lock_owned().await);
        }
        tokio_times.add_micros(started_at.elapsed() / effort.pairs);
    }
    println!("lock + release of a free lock on the memory store, µs");
    println!("  dlock                {dlock_times}   target: under 5");
    println!("  tokio::sync::Mutex   {tokio_times}\n");
    Ok(())
}
