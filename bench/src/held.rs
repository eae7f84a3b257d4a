//! Cost of each held lock: tasks and memory.

use std::{error::Error, time::Duration};

use dlock_core::Locks;
use tokio::runtime::Handle;

use crate::{Effort, results::Results, targets};

pub(crate) async fn bench(effort: Effort, results: &Results) -> Result<(), Box<dyn Error>> {
    let locks = Locks::memory();
    let names: Vec<String> = (0..effort.held).map(|i| format!("lock-{i}")).collect();
    let mut guards = Vec::with_capacity(effort.held);
    let (tasks_before, bytes_before) = (Handle::current().metrics().num_alive_tasks(), resident_bytes()?);
    for name in &names {
        guards.push(locks.mutex(name).lock().await?);
    }
    let tasks = Handle::current().metrics().num_alive_tasks() - tasks_before;
    let bytes_per_lock = (resident_bytes()? - bytes_before) / effort.held;
    println!("{} locks held on the memory store, with the store's own records", effort.held);
    println!("  tasks per lock       {:9.2}", tasks as f64 / effort.held as f64);
    println!("  bytes per lock       {bytes_per_lock:9}\n");
    results.measured_once(&targets::MEMORY_BYTES, bytes_per_lock as f64)?;
    drop(guards);
    locks.close().await;
    Ok(())
}

/// Returns the processor time that this process has used.
pub(crate) fn cpu_time() -> Result<Duration, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/schedstat")?;
    Ok(Duration::from_nanos(stat.split_whitespace().next().ok_or("no schedstat")?.parse()?))
}

/// Returns the resident memory of this process, in bytes.
pub(crate) fn resident_bytes() -> Result<usize, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<usize>()? * 1024)
}
