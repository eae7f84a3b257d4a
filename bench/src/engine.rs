//! What the engine itself costs: lock and unlock on the memory store, beside tokio's own mutex.

use std::{error::Error, sync::Arc};

use dlock_core::Locks;
use tokio::time::Instant;

use crate::{Effort, figures::Figures};

pub(crate) async fn bench(effort: Effort) -> Result<(), Box<dyn Error>> {
    let locks = Locks::memory();
    let (mutex, local) = (locks.mutex("x"), Arc::new(tokio::sync::Mutex::new(())));
    let (mut ours, mut theirs) = (Figures::default(), Figures::default());
    for _ in 0..effort.rounds {
        let begun = Instant::now();
        for _ in 0..effort.pairs {
            mutex.lock().await?.release().await?;
        }
        ours.add_micros(begun.elapsed() / effort.pairs);
        let begun = Instant::now();
        for _ in 0..effort.pairs {
            drop(Arc::clone(&local).lock_owned().await);
        }
        theirs.add_micros(begun.elapsed() / effort.pairs);
    }
    println!("lock + release, free, on the memory store, µs");
    println!("  dlock                {ours}   aim: under 5");
    println!("  tokio::sync::Mutex   {theirs}\n");
    Ok(())
}
