//! A connection that misbehaves in every way that a connection can, at random from a seed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Error, Result,
    driver::{Attempt, Claim, Release, Renewal, Resumption, Store},
};
use fastrand::Rng;
use parking_lot::Mutex;
use tokio::time::sleep;

use super::{flaky::lost, wrap};

/// A connection that delays calls, fails them, loses replies, and hints at the wrong time, at
/// random from one seed. On a paused clock the same seed leads to the same run. Clones are the same
/// connection.
///
/// A call can take longer than a ttl, but rarely does. Delays are whole milliseconds, because
/// tokio's timers are.
#[derive(Clone, Debug)]
pub struct Chaos {
    dice: Arc<Mutex<Rng>>,
    ttl: Duration,
    faults: Arc<FaultCounts>,
}

/// Numbers of faults so far.
#[derive(Debug, Default)]
struct FaultCounts {
    failed: AtomicUsize,
    lost: AtomicUsize,
}

impl Chaos {
    /// Creates a connection to a store whose claims have about this ttl.
    pub fn new(seed: u64, ttl: Duration) -> Self {
        Self { dice: Arc::new(Mutex::new(Rng::with_seed(seed))), ttl, faults: Arc::default() }
    }

    /// Puts a store behind this connection.
    pub fn wrap(&self, store: Store) -> Store {
        let connection = self.clone();
        wrap(store, move |claim, _| {
            // Each claim draws from its own random numbers, so that they do not depend on the
            // number of requests of other claims.
            let dice = connection.dice.lock().fork();
            Box::new(Chaotic {
                claim,
                luck: Luck { dice, ttl: connection.ttl },
                faults: Arc::clone(&connection.faults),
            })
        })
    }

    /// Returns the number of calls that failed without reaching the store.
    pub fn failed_calls(&self) -> usize {
        self.faults.failed.load(Relaxed)
    }

    /// Returns the number of replies that were lost after the store had executed the request.
    pub fn lost_answers(&self) -> usize {
        self.faults.lost.load(Relaxed)
    }
}

struct Chaotic {
    claim: Box<dyn Claim>,
    luck: Luck,
    faults: Arc<FaultCounts>,
}

struct Luck {
    dice: Rng,
    ttl: Duration,
}

impl Luck {
    /// Returns a delay that is mostly short compared with the ttl, and rarely longer than it.
    fn delay(&mut self) -> Duration {
        let longest = match self.dice.u8(..100) {
            0..40 => return Duration::ZERO,
            40..80 => self.ttl / 500,
            80..95 => self.ttl / 10,
            95..99 => self.ttl / 2,
            _ => self.ttl * 3 / 2,
        };
        let longest = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.dice.u64(0..=longest))
    }

    fn one_in(&mut self, count: u8) -> bool {
        self.dice.u8(..count) == 0
    }
}

async fn pass<T>(luck: &mut Luck, faults: &FaultCounts, reply: impl Future<Output = Result<T>>) -> Result<T> {
    sleep(luck.delay()).await;
    if luck.one_in(16) {
        faults.failed.fetch_add(1, Relaxed);
        return Err(Error::Unavailable { store: "chaos", source: "the store was not reached".into() });
    }
    let reply = reply.await;
    sleep(luck.delay()).await;
    if luck.one_in(12) {
        faults.lost.fetch_add(1, Relaxed);
        return Err(lost());
    }
    reply
}

#[async_trait]
impl Claim for Chaotic {
    async fn attempt(&mut self) -> Result<Attempt> {
        pass(&mut self.luck, &self.faults, self.claim.attempt()).await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        pass(&mut self.luck, &self.faults, self.claim.renew()).await
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        pass(&mut self.luck, &self.faults, self.claim.detach(lasting, ticket)).await
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        pass(&mut self.luck, &self.faults, self.claim.resume(ticket)).await
    }

    fn locator(&self) -> Option<Arc<str>> {
        self.claim.locator()
    }

    fn leave(&mut self) {
        self.claim.leave();
    }

    fn late_for(&self) -> Duration {
        self.claim.late_for()
    }

    async fn release(&mut self) -> Result<Release> {
        pass(&mut self.luck, &self.faults, self.claim.release()).await
    }

    async fn changed(&mut self) {
        match self.luck.dice.u8(..10) {
            // A hint without a cause.
            0 => return sleep(self.luck.delay()).await,
            // The hint is lost.
            1 | 2 => std::future::pending().await,
            _ => self.claim.changed().await,
        }
        sleep(self.luck.delay()).await;
    }
}
