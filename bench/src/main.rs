//! Measures dlock beside other lock implementations: `cargo run --release -p dlock-bench`.
//!
//! Contestants are measured alternately, one round each, and a ratio compares values of the same
//! round. Noise of the machine therefore affects all contestants alike.
//!
//! `-- --help` lists the parts and options. [`targets`] declares what each measurement should be.
#![expect(clippy::print_stdout, reason = "the output of a benchmark is printed")]
#![expect(clippy::print_stderr, reason = "errors of a command are printed")]
#![expect(clippy::future_not_send, reason = "each part runs on one thread")]

mod arguments;
mod command;
mod contest;
mod engine;
mod etcd;
mod figures;
mod growth;
mod held;
mod mysql;
mod postgres;
mod processes;
mod redis;
mod results;
mod round_trips;
mod sqlite;
mod targets;
mod verdict;
mod zookeeper;

use std::{
    env,
    fs::File,
    io,
    path::Path,
    process::{Command, ExitCode},
    time::Duration,
};

use clap::Parser;
use tokio::runtime::Builder;

use arguments::{Arguments, Part};
use contest::Outcome;
use results::{Results, ResultsById};
use verdict::{Verdict, Verdicts};

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

impl Effort {
    const QUICK: Self =
        Self { rounds: 2, pairs: 1_000, held: 1_000, turns: 5, idle_time: Duration::from_millis(400) };
    const FULL: Self =
        Self { rounds: 11, pairs: 50_000, held: 100_000, turns: 25, idle_time: Duration::from_secs(2) };
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("dlock-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Outcome<ExitCode> {
    if let (Some(lock), Some(url)) = (arguments.client, &arguments.url) {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        return runtime.block_on(processes::serve(lock, url)).map(|()| ExitCode::SUCCESS);
    }
    let effort = if arguments.quick { Effort::QUICK } else { Effort::FULL };
    let parts = arguments.selected_parts();
    if let Some(file) = &arguments.in_process {
        let results = Results::append_to(file)?;
        for part in parts {
            measure(part, effort, &results, arguments.charts.as_deref())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (results, failed_parts) = match &arguments.judge {
        Some(file) => (results::read(file)?, Vec::new()),
        None => measure_all(&parts, effort, arguments)?,
    };
    let verdicts = Verdicts::of(&parts, results);
    if !verdicts.is_empty() {
        println!("\nTargets\n{verdicts}");
    }
    if !failed_parts.is_empty() {
        return Err(format!("failed: {}", failed_parts.join(", ")).into());
    }
    let is_refused = arguments.check && verdicts.count(Verdict::Missed) > 0
        || arguments.require_all && verdicts.count(Verdict::NotMeasured) > 0;
    Ok(if is_refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Measures each part in a process of its own. Returns the results, and the names of the parts whose
/// process failed.
fn measure_all(parts: &[Part], effort: Effort, arguments: &Arguments) -> Outcome<(ResultsById, Vec<String>)> {
    println!(
        "{effort:?}\nA value with a range is the median of the rounds, with the least and the greatest\n"
    );
    let file = tempfile::NamedTempFile::new()?;
    let mut failed_parts = Vec::new();
    for part in parts {
        let mut command = Command::new(env::current_exe()?);
        command.arg(part.to_string()).arg("--in-process").arg(file.path());
        command.args(arguments.quick.then_some("--quick"));
        if let Some(folder) = &arguments.charts {
            command.arg("--charts").arg(folder);
        }
        let status = command.status()?;
        if !status.success() {
            failed_parts.push(format!("{part} ({status})"));
        }
    }
    if let Some(path) = &arguments.results {
        let mut kept = File::options().append(true).create(true).open(path)?;
        io::copy(&mut File::open(file.path())?, &mut kept)?;
    }
    Ok((results::read(file.path())?, failed_parts))
}

fn measure(part: Part, effort: Effort, results: &Results, charts: Option<&Path>) -> Outcome {
    let mut builder = match part {
        Part::RedisWorkers => Builder::new_multi_thread(),
        _ => Builder::new_current_thread(),
    };
    let runtime = builder.worker_threads(2).enable_all().build()?;
    match part {
        Part::Engine => runtime.block_on(engine::bench(effort, results)),
        Part::Held => runtime.block_on(held::bench(effort, results)),
        Part::Sqlite => sqlite::bench(effort, results),
        Part::Etcd => runtime.block_on(etcd::bench(effort, results)),
        Part::Mysql => runtime.block_on(mysql::bench(effort, results)),
        Part::Postgres => runtime.block_on(postgres::bench(effort, results)),
        Part::Command => command::bench(effort, results),
        Part::Zookeeper => runtime.block_on(zookeeper::bench(effort, results)),
        Part::ZookeeperDistant => runtime.block_on(zookeeper::distant::bench(effort, results)),
        Part::Redis
        | Part::RedisWorkers
        | Part::RedisDistant
        | Part::RedisCrowd
        | Part::RedisPermits
        | Part::RedisSeveral
        | Part::RedisHeld => runtime.block_on(redis::bench(part, effort, results)),
        Part::GrowthMemory
        | Part::GrowthSqlite
        | Part::GrowthRedis
        | Part::GrowthEtcd
        | Part::GrowthMysql
        | Part::GrowthPostgres
        | Part::GrowthZookeeper => runtime.block_on(growth::bench(part, effort, charts)),
        Part::ProcessesRedis => runtime.block_on(redis::processes(effort, results)),
        Part::ProcessesEtcd => runtime.block_on(etcd::processes(effort, results)),
        Part::ProcessesMysql => runtime.block_on(mysql::processes(effort, results)),
        Part::ProcessesPostgres => runtime.block_on(postgres::processes(effort, results)),
        Part::ProcessesZookeeper => runtime.block_on(zookeeper::processes(effort, results)),
    }
}
