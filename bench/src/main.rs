//! Measures dlock beside other lock implementations: `cargo run --release -p dlock-bench`.
//!
//! Contestants are measured alternately, one round each, and a ratio compares values of the same
//! round. Noise of the machine therefore affects all contestants alike.
//!
//! `-- --quick` runs every part briefly, as a check that it works. `-- PART` runs one part.
#![expect(clippy::print_stdout, reason = "the output of a benchmark is printed")]
#![expect(clippy::future_not_send, reason = "each part runs on one thread")]

mod command;
mod contest;
mod engine;
mod etcd;
mod figures;
mod held;
mod mysql;
mod redis;
mod sqlite;
mod zookeeper;

use std::{error::Error, process::Command, time::Duration};

/// Size of the measurements.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// Number of rounds of each contestant.
    rounds: usize,
    /// Number of pairs of lock and release on the memory store, in a round. Stores run a fraction
    /// of it.
    pairs: u32,
    /// Number of locks that are held at once.
    held: usize,
    /// Number of acquisitions by each contender of a contended lock.
    turns: usize,
    /// Time for which idle holders and waiters are observed.
    idle_time: Duration,
}

/// Parts of the benchmark. Each part runs in its own process, so that memory and timers of one part
/// do not affect another.
const PARTS: [&str; 14] = [
    "engine",
    "held",
    "sqlite",
    "redis",
    "redis-distant",
    "redis-crowd",
    "redis-permits",
    "redis-several",
    "redis-held",
    "etcd",
    "mysql",
    "zookeeper",
    "zookeeper-distant",
    "command",
];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_quick = arguments.iter().any(|argument| argument == "--quick");
    let effort = if is_quick {
        Effort { rounds: 2, pairs: 1_000, held: 1_000, turns: 5, idle_time: Duration::from_millis(400) }
    } else {
        Effort { rounds: 11, pairs: 50_000, held: 100_000, turns: 25, idle_time: Duration::from_secs(2) }
    };
    if let Some(part) = arguments.iter().find(|argument| PARTS.contains(&argument.as_str())) {
        return measure(part, effort);
    }
    println!(
        "{effort:?}\nA value with a range is the median of the rounds, with the least and the greatest\n"
    );
    for part in PARTS {
        let status = Command::new(std::env::current_exe()?).arg(part).args(&arguments).status()?;
        if !status.success() {
            return Err(format!("{part} failed").into());
        }
    }
    Ok(())
}

fn measure(part: &str, effort: Effort) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match part {
        "engine" => runtime.block_on(engine::bench(effort)),
        "held" => runtime.block_on(held::bench(effort)),
        "sqlite" => sqlite::bench(effort),
        "etcd" => runtime.block_on(etcd::bench(effort)),
        "mysql" => runtime.block_on(mysql::bench(effort)),
        "command" => command::bench(effort),
        "zookeeper" | "zookeeper-distant" => runtime.block_on(zookeeper::bench(part, effort)),
        redis => runtime.block_on(redis::bench(redis, effort)),
    }
}
