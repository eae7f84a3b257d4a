//! Every reply is slow. Half of the delay precedes the call, and half follows it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Result,
    driver::{Attempt, Claim, Release, Renewal, Resumption},
};
use tokio::time::sleep;

/// Delay in each direction.
const ONE_WAY_DELAY: Duration = Duration::from_millis(10);

pub(super) struct Slow(pub(super) Box<dyn Claim>);

#[async_trait]
impl Claim for Slow {
    async fn attempt(&mut self) -> Result<Attempt> {
        delayed(self.0.attempt()).await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        delayed(self.0.renew()).await
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        delayed(self.0.detach(lasting, ticket)).await
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        delayed(self.0.resume(ticket)).await
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
        delayed(self.0.release()).await
    }

    async fn changed(&mut self) {
        self.0.changed().await;
        sleep(ONE_WAY_DELAY).await;
    }
}

async fn delayed<T>(reply: impl Future<Output = T>) -> T {
    sleep(ONE_WAY_DELAY).await;
    let reply = reply.await;
    sleep(ONE_WAY_DELAY).await;
    reply
}
