//! The SQLite store passes the suite. Each client has its own connection, like a client in another
//! process.

use std::{alloc::System, process::ExitCode, time::Duration};

use async_trait::async_trait;
use cap::Cap;
use dlock_conformance::{Fixture, Unreachable};
use dlock_core::{Result, driver::Store};
use dlock_sqlite::{SqliteBackend, SqliteConfig};
use tempfile::TempDir;

/// Counts the allocated bytes, for the case that detects memory growth.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

struct Sqlite(TempDir);

#[async_trait]
impl Fixture for Sqlite {
    fn name(&self) -> &str {
        "sqlite"
    }

    async fn connect(&self) -> Result<Store> {
        let config = SqliteConfig::new(self.0.path().join("locks.db"));
        SqliteBackend::connect(config).await.map(SqliteBackend::into_store)
    }

    // All cases share one file, which has one writer at a time.
    fn at_once(&self) -> usize {
        12
    }

    // Twice the default, because a busy disk may delay a write for seconds.
    fn ttl(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn allocated(&self) -> Option<usize> {
        Some(HEAP.allocated())
    }
}

fn main() -> ExitCode {
    let dir = tempfile::tempdir();
    dlock_conformance::run(dir.map(Sqlite).map_err(|error| Unreachable {
        name: "sqlite".to_owned(),
        reason: format!("no directory for temporary files: {error}"),
    }))
}
