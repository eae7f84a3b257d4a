//! Long runs of the soak tool on the servers of the test bed: `scripts/soak`.
//!
//! `DLOCK_SOAK` is the duration of each run. Without it the runs are ignored. `DLOCK_SOAK_ARGS` has
//! further arguments of the tool, and `DLOCK_SOAK_REPORTS` is the folder of the reports.

use std::{
    env,
    process::{Command, ExitCode},
};

use dlock_conformance::{Unreachable, ignore, or_ignore, run_tests, tests};
use dlock_testbed::servers::{Running, etcd, mysql, postgres, redis, zookeeper};
use tempfile::TempDir;

/// Faults of a network store, unless `DLOCK_SOAK_ARGS` names others.
const NETWORK_FAULTS: &str = "pause,kill,cut,late";

fn main() -> ExitCode {
    run_tests([tests! {
        sqlite_passes on no runtime,
        redis_passes,
        valkey_passes,
        etcd_passes,
        zookeeper_passes,
        mariadb_passes,
        postgres_passes,
    }])
}

fn duration() -> Option<String> {
    let duration = env::var("DLOCK_SOAK").ok();
    if duration.is_none() {
        ignore("`scripts/soak` runs it");
    }
    duration
}

/// Runs the tool with the terminal of the test, and asserts that it finds no violation.
fn run(store: &str, duration: &str, url: &str, faults: &str) {
    let more = env::var("DLOCK_SOAK_ARGS").unwrap_or_default();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlock-soak"));
    command.env_remove("DLOCK_STORE").args(["--store", url, "--for", duration]);
    if !more.contains("--faults") && !more.contains("--no-faults") {
        command.args(["--faults", faults]);
    }
    if let Ok(folder) = env::var("DLOCK_SOAK_REPORTS") {
        command.arg("--report").arg(format!("{folder}/{store}"));
    }
    let status = command.args(more.split_whitespace()).status().expect("the program can be run");
    assert!(status.success(), "{store}: {status}");
}

async fn on_server(store: &str, start: impl Future<Output = Result<Running, Unreachable>> + Send) {
    let Some(duration) = duration() else { return };
    let Some(server) = or_ignore(start.await) else { return };
    run(store, &duration, server.url(), NETWORK_FAULTS);
}

fn sqlite_passes() {
    let Some(duration) = duration() else { return };
    let folder = TempDir::new().expect("a folder can be created");
    let url = format!("sqlite://{}", folder.path().join("locks.db").display());
    run("sqlite", &duration, &url, "pause,kill");
}

async fn redis_passes() {
    on_server("redis", redis::start(redis::Brand::Redis, redis::Flavour::Standalone)).await;
}

async fn valkey_passes() {
    on_server("valkey", redis::start(redis::Brand::Valkey, redis::Flavour::Standalone)).await;
}

async fn etcd_passes() {
    on_server("etcd", etcd::start(etcd::Flavour::Standalone)).await;
}

async fn zookeeper_passes() {
    on_server("zookeeper", zookeeper::start(zookeeper::Flavour::Standalone)).await;
}

async fn mariadb_passes() {
    on_server("mariadb", mysql::start(mysql::Brand::Mariadb, mysql::Flavour::Standalone)).await;
}

async fn postgres_passes() {
    on_server("postgres", postgres::start(postgres::Version::V17, postgres::Flavour::Standalone)).await;
}
