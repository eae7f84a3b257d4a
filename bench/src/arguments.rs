//! Arguments of the program.

use std::{fmt, path::PathBuf};

use clap::{Parser, ValueEnum};

use crate::processes::ClientLock;

/// Measures dlock beside other lock implementations, and compares the results with targets.
///
/// Contestants are measured alternately, one round each, and a ratio compares values of the same
/// round. Noise of the machine therefore affects all contestants alike.
#[derive(Clone, Debug, Parser)]
#[command(name = "dlock-bench", max_term_width = 110)]
pub(crate) struct Arguments {
    /// Parts to measure. Without any, all parts except those of growth and of ten processes.
    #[arg(value_name = "PART")]
    pub(crate) parts: Vec<Part>,

    /// Measure briefly, as a check that the parts work. The figures have no meaning.
    #[arg(long)]
    pub(crate) quick: bool,

    /// Exit with status 1 if a measured target is missed.
    #[arg(long)]
    pub(crate) check: bool,

    /// With --check, also exit with status 1 if a target was not measured.
    #[arg(long, requires = "check")]
    pub(crate) require_all: bool,

    /// Append the results to this file, one JSON object per line.
    #[arg(long, value_name = "FILE")]
    pub(crate) results: Option<PathBuf>,

    /// Print the verdicts on the results of this file, and measure nothing.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "results"])]
    pub(crate) judge: Option<PathBuf>,

    /// Draw charts of the parts of growth into this folder, as SVG files.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) charts: Option<PathBuf>,

    /// Measure one part in this process, and write its results to this file.
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) in_process: Option<PathBuf>,

    /// Be one of ten client processes, which measures this lock when its input requests it.
    #[arg(long, value_name = "LOCK", hide = true, requires = "url")]
    pub(crate) client: Option<ClientLock>,

    /// URL of the client's store.
    #[arg(long, value_name = "URL", hide = true, requires = "client")]
    pub(crate) url: Option<String>,
}

/// A part of the benchmark. Each part runs in its own process, so that memory and timers of one
/// part do not affect another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Lock and release on the memory store.
    Engine,
    /// Memory of held locks on the memory store.
    Held,
    /// Locks in an SQLite file.
    Sqlite,
    /// Locks in Redis, beside the least that the protocols allow and other implementations.
    Redis,
    /// Lock and release in Redis, on a runtime with two worker threads.
    RedisWorkers,
    /// Lock and release in Redis on the server `DLOCK_BENCH_REDIS_DISTANT_URL`, behind a slow link.
    RedisDistant,
    /// Many waiters of one client for one name in Redis.
    RedisCrowd,
    /// Permits beside the mutex in Redis.
    RedisPermits,
    /// Several Redis servers, and several names, as one lock.
    RedisSeveral,
    /// Renewals of many locks that one client holds in Redis.
    RedisHeld,
    /// Locks in etcd.
    Etcd,
    /// Locks in MariaDB, in both modes.
    Mysql,
    /// Locks in PostgreSQL, in both modes.
    Postgres,
    /// Locks in ZooKeeper.
    Zookeeper,
    /// Round trips to the ZooKeeper server `DLOCK_BENCH_ZOOKEEPER_DISTANT_URL`, behind a slow link.
    ZookeeperDistant,
    /// `dlock run` as a whole process.
    Command,
    /// Many waiters and many held locks of one client, on the memory store.
    GrowthMemory,
    /// The same in an SQLite file.
    GrowthSqlite,
    /// The same in Redis.
    GrowthRedis,
    /// The same in etcd.
    GrowthEtcd,
    /// The same in MariaDB, through a proxy that counts requests.
    GrowthMysql,
    /// The same in PostgreSQL, through a proxy that counts requests.
    GrowthPostgres,
    /// The same in ZooKeeper.
    GrowthZookeeper,
    /// Ten client processes for one name in Redis: rate and fairness, beside other implementations.
    ProcessesRedis,
    /// The same in etcd.
    ProcessesEtcd,
    /// The same in MariaDB.
    ProcessesMysql,
    /// The same in PostgreSQL.
    ProcessesPostgres,
    /// The same in ZooKeeper.
    ProcessesZookeeper,
}

impl Part {
    /// Returns whether this part is measured only on request: those of growth because they have no
    /// targets, and those of ten processes because they need gigabytes of memory and many minutes.
    fn is_on_request(self) -> bool {
        matches!(
            self,
            Self::GrowthMemory
                | Self::GrowthSqlite
                | Self::GrowthRedis
                | Self::GrowthEtcd
                | Self::GrowthMysql
                | Self::GrowthPostgres
                | Self::GrowthZookeeper
                | Self::ProcessesRedis
                | Self::ProcessesEtcd
                | Self::ProcessesMysql
                | Self::ProcessesPostgres
                | Self::ProcessesZookeeper
        )
    }
}

impl Arguments {
    /// Returns the parts to measure or to judge.
    pub(crate) fn selected_parts(&self) -> Vec<Part> {
        if self.parts.is_empty() {
            let all = Part::value_variants().iter().copied();
            return all.filter(|part| !part.is_on_request()).collect();
        }
        self.parts.clone()
    }
}

impl fmt::Display for Part {
    /// Writes the name of the part on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.pad(value.as_ref().map_or("", |value| value.get_name()))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_options_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn large_parts_are_measured_on_request_only() {
        let all = Arguments::parse_from(["dlock-bench"]).selected_parts();
        assert!(all.contains(&Part::Engine) && all.contains(&Part::Command), "{all:?}");
        assert!(all.iter().all(|part| !part.is_on_request()), "{all:?}");
        let some = ["dlock-bench", "growth-redis", "processes-etcd"];
        let some = Arguments::parse_from(some).selected_parts();
        assert_eq!(some, [Part::GrowthRedis, Part::ProcessesEtcd]);
    }
}
