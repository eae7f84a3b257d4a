//! What only this store can do wrong: its file, its clock, its doorbells.

#![expect(clippy::unwrap_used, reason = "all of it is test")]

#[cfg(target_os = "linux")]
mod detached;
#[cfg(target_os = "linux")]
mod doorbells;
mod file;
#[cfg(target_os = "linux")]
mod gate;
mod names;
mod older;
mod transactions;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use dlock_core::{Kind, LockName, Locks, Registry, Wait, driver::Request};
use dlock_sqlite::{DRIVER, SqliteBackend, SqliteConfig};
use sqlx::{ConnectOptions, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

/// Longer than anything here takes, far shorter than the default ttl of 30 s.
const SOON: Duration = Duration::from_secs(10);

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("locks.db")
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    async fn client(&self) -> Locks {
        connect(&self.url()).await.unwrap()
    }

    async fn backend(&self) -> SqliteBackend {
        SqliteBackend::connect(SqliteConfig::new(self.path())).await.unwrap()
    }

    /// A connection to the file that goes past dlock.
    async fn raw(&self) -> SqliteConnection {
        SqliteConnectOptions::new().filename(self.path()).create_if_missing(true).connect().await.unwrap()
    }

    fn bells(&self) -> Vec<PathBuf> {
        let dir = std::fs::read_dir(self.0.path().join("locks.db-bells")).unwrap();
        dir.map(|entry| entry.unwrap().path()).collect()
    }
}

async fn connect(url: &str) -> dlock_core::Result<Locks> {
    Registry::new().with(DRIVER).connect(url).await
}

async fn run(conn: &mut SqliteConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(conn).await.unwrap();
}

/// The error and its sources, as a program would show them.
async fn refusal(path: &Path) -> String {
    let error = connect(&format!("sqlite:{}", path.display())).await.expect_err("must be refused");
    assert!(!error.is_transient(), "asking again would not help: {error}");
    let mut shown = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(error) = source {
        shown += &format!(": {error}");
        source = error.source();
    }
    shown
}

fn request(wait: Wait) -> Request {
    let name = LockName::new("x").unwrap();
    Request::new(name, Kind::Mutex, Duration::from_secs(30)).wait(wait)
}
