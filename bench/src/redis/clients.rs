//! The Rust crates that lock in Redis, with their default settings.

use std::time::Duration;

use rlock::async_lock::{RLock, RLockGuard};
use rslock::{LockGuard, LockManager};

use crate::contest::{Client, Outcome};

pub(super) struct Rslock(LockManager);

impl Rslock {
    /// Locks on a majority of the servers.
    pub(super) fn connect(urls: Vec<String>) -> Self {
        Self(LockManager::new(urls))
    }
}

impl Client for Rslock {
    type Held = LockGuard;

    async fn lock(&self, name: &str) -> Outcome<LockGuard> {
        Ok(self.0.acquire(name.as_bytes(), Duration::from_secs(30)).await?)
    }

    async fn unlock(&self, held: LockGuard) -> Outcome {
        held.release().await;
        Ok(())
    }
}

pub(super) struct Rlock(RLock);

impl Rlock {
    pub(super) async fn connect(url: &str) -> Outcome<Self> {
        Ok(Self(RLock::new(url).await?))
    }
}

impl Client for Rlock {
    type Held = RLockGuard;

    async fn lock(&self, name: &str) -> Outcome<RLockGuard> {
        Ok(self.0.acquire_mutex(name).await?)
    }

    async fn unlock(&self, mut held: RLockGuard) -> Outcome {
        Ok(held.release().await?)
    }
}
