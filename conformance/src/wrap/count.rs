//! Counts the requests of a client.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Contender, LockName, LockState, Result,
    driver::{Attempt, Claim, Inspect, Release, Renewal, Resumption, Store},
};

/// Numbers of requests so far. Clones are the same counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    of_claims: AtomicUsize,
    inspections: AtomicUsize,
}

impl Requests {
    /// Counts the requests of a client of this store.
    pub(crate) fn count(&self, store: Store) -> Store {
        let requests = self.clone();
        let mut counted =
            super::wrap(store, move |claim, _| Box::new(Counted { claim, requests: requests.clone() }));
        counted.inspect = counted
            .inspect
            .map(|inspect| Arc::new(CountedInspect { inspect, requests: self.clone() }) as Arc<dyn Inspect>);
        counted
    }

    /// Returns the number of requests for claims.
    pub(crate) fn of_claims(&self) -> usize {
        self.0.of_claims.load(Relaxed)
    }

    /// Returns the number of inspections of a lock.
    pub(crate) fn inspections(&self) -> usize {
        self.0.inspections.load(Relaxed)
    }
}

struct Counted {
    claim: Box<dyn Claim>,
    requests: Requests,
}

impl Counted {
    fn next(&mut self) -> &mut dyn Claim {
        self.requests.0.of_claims.fetch_add(1, Relaxed);
        self.claim.as_mut()
    }
}

#[async_trait]
impl Claim for Counted {
    async fn attempt(&mut self) -> Result<Attempt> {
        self.next().attempt().await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.next().renew().await
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        self.next().detach(lasting, ticket).await
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        self.next().resume(ticket).await
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
        self.next().release().await
    }

    async fn changed(&mut self) {
        self.claim.changed().await;
    }
}

#[derive(Debug)]
struct CountedInspect {
    inspect: Arc<dyn Inspect>,
    requests: Requests,
}

#[async_trait]
impl Inspect for CountedInspect {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        self.requests.0.inspections.fetch_add(1, Relaxed);
        self.inspect.inspect(name).await
    }

    async fn holder(&self, name: &LockName) -> Result<Option<Contender>> {
        self.requests.0.inspections.fetch_add(1, Relaxed);
        self.inspect.holder(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        self.inspect.list(prefix).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        self.inspect.force_release(name).await
    }
}
