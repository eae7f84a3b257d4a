//! What dlock costs, beside others, in one run: `cargo run --release -p dlock-bench [-- --quick]`.
//!
//! Rivals are measured in turn with dlock, round by round, and ratios are taken within a round. So the noise of the machine
//! hits both. `--quick` only shows that everything runs. The name of a part runs that part alone.
#![expect(clippy::print_stdout, reason = "printing is what it is for")]
#![expect(clippy::future_not_send, reason = "a benchmark keeps to one thread")]

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

/// How much to do.
#[derive(Clone, Copy, Debug)]
struct Effort {
    rounds: usize,
    pairs: u32,
    held: usize,
    /// How often each contender takes a lock that others want.
    turns: usize,
    /// How long to watch holders and waiters that do nothing.
    watch: Duration,
}

/// The parts. Each runs in a process of its own, so that the memory and timers of one do not count for another.
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
    let words: Vec<String> = std::env::args().skip(1).collect();
    let quick = words.iter().any(|word| word == "--quick");
    let effort = if quick {
        Effort { rounds: 2, pairs: 1_000, held: 1_000, turns: 5, watch: Duration::from_millis(400) }
    } else {
        Effort { rounds: 11, pairs: 50_000, held: 100_000, turns: 25, watch: Duration::from_secs(2) }
    };
    if let Some(part) = words.iter().find(|word| PARTS.contains(&word.as_str())) {
        return measure(part, effort);
    }
    println!("{effort:?}; what has a least and a most beside it is the median of the rounds\n");
    for part in PARTS {
        let status = Command::new(std::env::current_exe()?).arg(part).args(&words).status()?;
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
