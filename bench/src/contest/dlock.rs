//! dlock with its default settings, as a contestant.

use dlock::{Guard, Kind, LockOptions, Locks};

use super::{Client, Outcome};

pub(crate) struct Dlock {
    locks: Locks,
    kind: Kind,
    /// Number of permits of a semaphore. Other kinds do not use it.
    limit: u32,
}

impl Dlock {
    pub(crate) async fn connect(url: &str, kind: Kind) -> Outcome<Self> {
        Ok(Self::on(dlock::connect(url).await?, kind, 1))
    }

    /// Uses the connection of an existing client.
    pub(crate) fn on(locks: Locks, kind: Kind, limit: u32) -> Self {
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
