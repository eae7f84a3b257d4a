//! Records when the claim of an acquisition was sent to its store, and was known to be in the queue.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Result,
    driver::{Attempt, Claim, Release, Renewal, Resumption, Store},
};
use parking_lot::{Mutex, MutexGuard};

use super::super::{
    clock::{self, Nanos},
    event::Queued,
};
use crate::wrap::wrap;

tokio::task_local! {
    /// Place of the claim that the current task requests. The engine creates the claim in that task.
    static PLACE: Place;
}

/// The place of one claim. Clones are the same record.
#[derive(Clone, Debug, Default)]
pub(super) struct Place(Arc<Mutex<Times>>);

#[derive(Debug, Default)]
struct Times {
    queued: Option<Queued>,
    /// Time before the last request that was answered.
    answered: Option<Nanos>,
}

impl Place {
    /// Records the place of the claim that is created by `request`.
    pub(super) async fn record<T>(&self, request: impl Future<Output = T> + Send) -> T {
        PLACE.scope(self.clone(), request).await
    }

    /// Returns the times so far. `None` if no request was sent.
    pub(super) fn queued(&self) -> Option<Queued> {
        self.times().queued
    }

    /// Records that a request is about to be sent. The store may execute it although no reply
    /// arrives.
    fn sends(&self, at: Nanos) {
        self.times().queued.get_or_insert(Queued { sent: at, waits: None, gap: 0 });
    }

    /// Records the reply to the request that was sent at `sent`.
    fn answered(&self, sent: Nanos, waits: bool) {
        let received = clock::now();
        let mut times = self.times();
        let since = times.answered.replace(sent).unwrap_or(sent);
        if let Some(queued) = &mut times.queued {
            queued.gap = queued.gap.max(received.saturating_sub(since));
            if waits {
                queued.waits.get_or_insert(received);
            }
        }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.0.lock()
    }
}

/// Makes the claims of a store record their [places](Place).
pub(super) fn watch(store: Store) -> Store {
    wrap(store, |claim, _| match PLACE.try_with(Clone::clone) {
        Ok(place) => Box::new(Watched { claim, place }),
        Err(_) => claim,
    })
}

struct Watched {
    claim: Box<dyn Claim>,
    place: Place,
}

#[async_trait]
impl Claim for Watched {
    async fn attempt(&mut self) -> Result<Attempt> {
        let sent = clock::now();
        self.place.sends(sent);
        let result = self.claim.attempt().await;
        if let Ok(attempt) = &result {
            self.place.answered(sent, matches!(attempt, Attempt::Busy { .. }));
        }
        result
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.claim.renew().await
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        self.claim.detach(lasting, ticket).await
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        self.claim.resume(ticket).await
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
        self.claim.release().await
    }

    async fn changed(&mut self) {
        self.claim.changed().await;
    }
}
