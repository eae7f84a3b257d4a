//! Clients in this process: dlock, and the Rust crates that lock on Redis. Each waits with its default settings.

use std::time::Duration;

use dlock::{Guard, Kind, LockOptions, Locks};
use rlock::async_lock::{RLock, RLockGuard};
use rslock::{LockGuard, LockManager};

use super::{Outcome, here::Client};

pub(super) struct Dlock {
    locks: Locks,
    kind: Kind,
    /// The limit of a semaphore.
    limit: u32,
}

impl Dlock {
    pub(super) async fn connect(url: &str, kind: Kind) -> Outcome<Self> {
        Ok(Self::on(dlock::connect(url).await?, kind, 1))
    }

    /// The same on the connection of a client that is there. Only a permit has a limit.
    pub(super) fn on(locks: Locks, kind: Kind, limit: u32) -> Self {
        Self { locks, kind, limit }
    }
}

impl Client for Dlock {
    type Held = Guard;

    async fn lock(&self, name: &str) -> Outcome<Guard> {
        Ok(match self.kind {
            Kind::Permit => self.locks.semaphore(name, self.limit).acquire().await?,
            kind => self.locks.of(kind, name).lock(&LockOptions::new()).await?,
        })
    }

    async fn unlock(&self, held: Guard) -> Outcome {
        Ok(held.release().await?)
    }
}

pub(super) struct Rslock(LockManager);

impl Rslock {
    /// Locks on a majority of these servers.
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
