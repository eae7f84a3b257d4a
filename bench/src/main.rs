//! What dlock costs, beside others, in one run: `cargo run --release -p dlock-bench [-- --quick]`.
//!
//! Rivals are measured in turn with dlock, round by round, and ratios are taken within a round: the machine may be
//! noisy, its noise then hits both. `--quick` only shows that everything runs.
#![expect(clippy::print_stdout, reason = "printing is what it is for")]

mod command;
mod engine;
mod figures;
mod handoff;
mod held;
mod redis;

use std::error::Error;

/// How much to do.
#[derive(Clone, Copy, Debug)]
struct Effort {
    rounds: usize,
    pairs: u32,
    held: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let effort = if quick {
        Effort { rounds: 2, pairs: 1_000, held: 1_000 }
    } else {
        Effort { rounds: 11, pairs: 50_000, held: 100_000 }
    };
    println!("{effort:?}; every figure is the median of the rounds, with the least and the most\n");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(engine::bench(effort))?;
    runtime.block_on(held::bench(effort))?;
    handoff::bench(effort)?;
    runtime.block_on(redis::bench(effort))?;
    command::bench(effort)?;
    Ok(())
}
