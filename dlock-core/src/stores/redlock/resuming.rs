//! The takeover of one member's part of a detached hold.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    contract::{Attempt, Claim, Release, Renewal, Resumption},
    model::{ClaimId, Result},
};

/// A claim that takes over a detached hold on one member. The majority does not wait for this
/// member. The outcome may therefore be unknown when the claim is released, and the member may
/// still know the hold by its ticket.
pub(super) struct ResumingClaim {
    claim: Box<dyn Claim>,
    /// Ticket of a resumption whose outcome is unknown.
    unconfirmed_ticket: Option<ClaimId>,
}

impl ResumingClaim {
    pub(super) fn new(claim: Box<dyn Claim>) -> Self {
        Self { claim, unconfirmed_ticket: None }
    }
}

#[async_trait]
impl Claim for ResumingClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        self.claim.attempt().await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.claim.renew().await
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        let detached = self.claim.detach(lasting, ticket).await;
        if detached.is_ok() {
            self.unconfirmed_ticket = None;
        }
        detached
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        self.unconfirmed_ticket = Some(ticket);
        let resumed = self.claim.resume(ticket).await?;
        self.unconfirmed_ticket = None;
        Ok(resumed)
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
        if let Some(ticket) = self.unconfirmed_ticket {
            self.resume(ticket).await?;
        }
        self.claim.release().await
    }

    async fn changed(&mut self) {
        self.claim.changed().await;
    }
}
