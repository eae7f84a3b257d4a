//! Runs the suite that every store passes.

use std::{process::ExitCode, time::Duration};

use async_trait::async_trait;
use dlock::{Result, driver::Store};
use dlock_conformance::Fixture;
use folder_store::{FolderBackend, FolderConfig};
use tempfile::TempDir;

struct FolderFixture(TempDir);

#[async_trait]
impl Fixture for FolderFixture {
    fn name(&self) -> &str {
        "folder"
    }

    async fn connect(&self) -> Result<Store> {
        let config = FolderConfig { folder: self.0.path().join("locks"), timeout: Duration::from_secs(6) };
        Ok(FolderBackend::connect(&config)?.into_store())
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(10)
    }

    // A step may take a third of the ttl. On a busy machine it needs the two thirds of a second.
    fn short_ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn polls(&self) -> Option<&'static str> {
        Some("a folder wakes no waiters, so they poll")
    }

    // Waiters poll every 50 ms, so a case needs more CPU time than in a store that wakes waiters.
    fn at_once(&self) -> usize {
        24
    }
}

fn main() -> ExitCode {
    let folder = tempfile::tempdir();
    dlock_conformance::run(Ok(FolderFixture(folder.expect("a folder for the test"))))
}
