//! A line that does everything wrong that a line may do, at random from a seed.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
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
use tokio::time::sleep;

use super::{flaky::lost, wrap};

/// A line that delays calls, fails them, loses answers, and hints at the wrong time, all at random from one seed. On a
/// paused clock the same seed does the same again. Clones are the same line.
///
/// A call may take longer than a ttl, but rarely does; delays are whole milliseconds, as tokio's timers are.
#[derive(Clone, Debug)]
pub struct Chaos {
    dice: Arc<Mutex<Rng>>,
    ttl: Duration,
    done: Arc<Done>,
}

/// What the line did wrong so far.
#[derive(Debug, Default)]
struct Done {
    failed: AtomicUsize,
    lost: AtomicUsize,
}

impl Chaos {
    /// A line to a store whose claims have about this ttl.
    pub fn new(seed: u64, ttl: Duration) -> Self {
        Self { dice: Arc::new(Mutex::new(Rng::with_seed(seed))), ttl, done: Arc::default() }
    }

    /// A store on this line.
    pub fn wrap(&self, store: Store) -> Store {
        let line = self.clone();
        wrap(store, move |claim, _| {
            // Each claim has random numbers of its own, so that they do not depend on how often other claims ask.
            let dice = line.dice.lock().unwrap_or_else(PoisonError::into_inner).fork();
            Box::new(Chaotic { claim, luck: Luck { dice, ttl: line.ttl }, done: Arc::clone(&line.done) })
        })
    }

    /// How many calls failed without reaching the store.
    pub fn failed_calls(&self) -> usize {
        self.done.failed.load(Relaxed)
    }

    /// How many answers were lost after the store acted.
    pub fn lost_answers(&self) -> usize {
        self.done.lost.load(Relaxed)
    }
}

struct Chaotic {
    claim: Box<dyn Claim>,
    luck: Luck,
    done: Arc<Done>,
}

struct Luck {
    dice: Rng,
    ttl: Duration,
}

impl Luck {
    /// Mostly short beside the ttl, seldom longer.
    fn delay(&mut self) -> Duration {
        let most = match self.dice.u8(..100) {
            0..40 => return Duration::ZERO,
            40..80 => self.ttl / 500,
            80..95 => self.ttl / 10,
            95..99 => self.ttl / 2,
            _ => self.ttl * 3 / 2,
        };
        let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.dice.u64(0..=most))
    }

    fn one_in(&mut self, many: u8) -> bool {
        self.dice.u8(..many) == 0
    }
}

async fn pass<T>(luck: &mut Luck, done: &Done, answer: impl Future<Output = Result<T>>) -> Result<T> {
    sleep(luck.delay()).await;
    if luck.one_in(16) {
        done.failed.fetch_add(1, Relaxed);
        return Err(Error::Unavailable { store: "chaos", source: "the store was not reached".into() });
    }
    let answer = answer.await;
    sleep(luck.delay()).await;
    if luck.one_in(12) {
        done.lost.fetch_add(1, Relaxed);
        return Err(lost());
    }
    answer
}

#[async_trait]
impl Claim for Chaotic {
    async fn attempt(&mut self) -> Result<Attempt> {
        pass(&mut self.luck, &self.done, self.claim.attempt()).await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        pass(&mut self.luck, &self.done, self.claim.renew()).await
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        pass(&mut self.luck, &self.done, self.claim.detach(lasting, ticket)).await
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        pass(&mut self.luck, &self.done, self.claim.resume(ticket)).await
    }

    fn locator(&self) -> Option<Arc<str>> {
        self.claim.locator()
    }

    async fn release(&mut self) -> Result<Release> {
        pass(&mut self.luck, &self.done, self.claim.release()).await
    }

    async fn changed(&mut self) {
        match self.luck.dice.u8(..10) {
            // No cause.
            0 => return sleep(self.luck.delay()).await,
            // The message is lost.
            1 | 2 => std::future::pending().await,
            _ => self.claim.changed().await,
        }
        sleep(self.luck.delay()).await;
    }
}
