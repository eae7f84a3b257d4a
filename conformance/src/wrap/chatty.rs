//! Hints arrive without end and without a cause.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Result,
    driver::{Attempt, Claim, Release, Renewal, Resumption},
};
use tokio::time::sleep;

/// Number of hints without a pause. Afterwards a hint arrives each [`INTERVAL`]. Without the
/// interval, waiters that wait for seconds would keep a store with a real clock busy with nothing
/// else.
const BURST: u32 = 100;
const INTERVAL: Duration = Duration::from_millis(20);

pub(super) struct Chatty {
    claim: Box<dyn Claim>,
    hints: u32,
}

impl Chatty {
    pub(super) fn new(claim: Box<dyn Claim>) -> Self {
        Self { claim, hints: 0 }
    }
}

#[async_trait]
impl Claim for Chatty {
    async fn attempt(&mut self) -> Result<Attempt> {
        self.claim.attempt().await
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
        if self.hints < BURST {
            self.hints += 1;
        } else {
            sleep(INTERVAL).await;
        }
    }
}
