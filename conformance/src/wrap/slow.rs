//! Every answer takes its time, half on the way there and half on the way back.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Result,
    driver::{Attempt, Claim, Release, Renewal, Resumption},
};
use tokio::time::sleep;

const HALF: Duration = Duration::from_millis(10);

pub(super) struct Slow(pub(super) Box<dyn Claim>);

#[async_trait]
impl Claim for Slow {
    async fn attempt(&mut self) -> Result<Attempt> {
        there_and_back(self.0.attempt()).await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        there_and_back(self.0.renew()).await
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        there_and_back(self.0.detach(lasting, ticket)).await
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        there_and_back(self.0.resume(ticket)).await
    }

    fn locator(&self) -> Option<Arc<str>> {
        self.0.locator()
    }

    async fn release(&mut self) -> Result<Release> {
        there_and_back(self.0.release()).await
    }

    async fn changed(&mut self) {
        self.0.changed().await;
        sleep(HALF).await;
    }
}

async fn there_and_back<T>(answer: impl Future<Output = T>) -> T {
    sleep(HALF).await;
    let answer = answer.await;
    sleep(HALF).await;
    answer
}
