//! The ways in which a contender requests a lock.

use std::{future::poll_fn, pin::pin, sync::atomic::Ordering::Relaxed, task::Poll, time::Duration};

use dlock_core::{DistributedLock, Guard, Kind, LockOptions, Wait};
use tokio::time::timeout;

use super::{Contender, Round};
use crate::simulation::{NAMES, TTL, up_to};

impl Contender {
    /// Draws valid options. Returns them with the ttl or lease of the hold.
    pub(super) fn options(&mut self) -> (LockOptions, Duration) {
        let options = LockOptions::new().wait(up_to(&mut self.dice, TTL * 4));
        let lease = Duration::from_secs(1) + up_to(&mut self.dice, TTL);
        match self.dice.u8(..8) {
            0 => (options.lease(lease), lease),
            1 => (options.ttl(TTL * 2), TTL * 2),
            2 => (options.ttl(TTL / 3).renew_every(TTL / 9), TTL / 3),
            _ => (options.ttl(TTL), TTL),
        }
    }

    pub(super) fn lock(&self, round: &Round, kind: Kind) -> Box<dyn DistributedLock> {
        let locks = &self.run.clients[round.client].locks;
        let (name, owner) = (NAMES[round.name], Some(&self.owner).filter(|_| round.owned));
        macro_rules! owned {
            ($lock:expr) => {
                match owner {
                    Some(owner) => Box::new($lock.owned_by(owner)),
                    None => Box::new($lock),
                }
            };
        }
        match kind {
            Kind::Mutex => owned!(locks.mutex(name)),
            Kind::Fair => owned!(locks.fair(name)),
            Kind::Read => owned!(locks.rwlock(name).read()),
            Kind::Write => owned!(locks.rwlock(name).write()),
            Kind::Permit => Box::new(locks.semaphore(name, round.limit)),
            kind => panic!("the simulation does not draw {kind}"),
        }
    }

    /// Requests the lock in one of several ways, and sometimes drops the request.
    pub(super) async fn acquire(
        &mut self,
        lock: &dyn DistributedLock,
        options: &LockOptions,
    ) -> Option<Guard> {
        let outcome = match self.dice.u8(..8) {
            0 => lock.try_lock(options).await,
            1 => {
                let times = self.dice.usize(1..8);
                self.unless_dropped(polled(lock.lock(options), times).await)?.map(Some)
            }
            2 => {
                let drop_after = up_to(&mut self.dice, TTL);
                self.unless_dropped(timeout(drop_after, lock.lock(options)).await.ok())?.map(Some)
            }
            3 => lock.lock(&options.clone().wait(Wait::Forever)).await.map(Some),
            _ => lock.lock(options).await.map(Some),
        };
        outcome.ok()?
    }

    fn unless_dropped<T>(&self, outcome: Option<T>) -> Option<T> {
        if outcome.is_none() {
            self.run.tally.cancelled.fetch_add(1, Relaxed);
        }
        outcome
    }
}

/// Polls a future at most `times` times, then drops it.
async fn polled<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let (mut future, mut left) = (pin!(future), times);
    poll_fn(|context| {
        left = left.saturating_sub(1);
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
