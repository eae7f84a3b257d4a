//! Tests of errors that only this store can have: in its file, its clock and its doorbells.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod check_in;
#[cfg(target_os = "linux")]
mod descriptors;
#[cfg(target_os = "linux")]
mod detached;
#[cfg(target_os = "linux")]
mod doorbells;
mod file;
#[cfg(target_os = "linux")]
mod gate;
mod marks;
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

/// Time limit of a step. Every step takes less, and the default ttl of 30 s is far longer.
const SOON: Duration = Duration::from_secs(10);

/// A folder with the file of one store.
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

    /// Opens the file without dlock.
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

/// Returns the text of the error and of its sources, as a program would display them.
async fn refusal(path: &Path) -> String {
    let error = connect(&format!("sqlite:{}", path.display())).await.expect_err("must be refused");
    assert!(!error.is_transient(), "a retry would not help: {error}");
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

fn request(wait: Wait) -> Request {
    let name = LockName::new("x").unwrap();
    Request::new(name, Kind::Mutex, Duration::from_secs(30)).wait(wait)
}
