//! The SQLite store passes the suite. Every client is one of its own, as from another process.

use std::process::ExitCode;

use async_trait::async_trait;
use dlock_conformance::{Fixture, Unreachable};
use dlock_core::{Result, Store};
use dlock_sqlite::{SqliteBackend, SqliteConfig};
use tempfile::TempDir;

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
}

fn main() -> ExitCode {
    let dir = tempfile::tempdir();
    dlock_conformance::run(dir.map(Sqlite).map_err(|error| Unreachable {
        name: "sqlite".to_owned(),
        reason: format!("no directory for temporary files: {error}"),
    }))
}
