//! No hint arrives.

use std::{future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Result,
    driver::{Attempt, Claim, Release, Renewal, Resumption},
};

/// Poll interval of waiters in a store without hints.
const POLL: Duration = Duration::from_millis(50);

pub(super) struct Deaf(pub(super) Box<dyn Claim>);

#[async_trait]
impl Claim for Deaf {
    async fn attempt(&mut self) -> Result<Attempt> {
        Ok(match self.0.attempt().await? {
            Attempt::Busy { retry_in } => Attempt::Busy { retry_in: retry_in.min(POLL) },
            granted @ Attempt::Granted(_) => granted,
        })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.0.renew().await
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        self.0.detach(lasting, ticket).await
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        self.0.resume(ticket).await
    }

    fn locator(&self) -> Option<Arc<str>> {
        self.0.locator()
    }

    fn leave(&mut self) {
        self.0.leave();
    }

    fn late_for(&self) -> Duration {
        self.0.late_for()
    }

    async fn release(&mut self) -> Result<Release> {
        self.0.release().await
    }

    async fn changed(&mut self) {
        pending().await
    }
}
