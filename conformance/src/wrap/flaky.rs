//! Replies are lost after the store has executed the request.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Error, Result, Wait,
    driver::{Attempt, Claim, Release, Renewal, Request, Resumption},
};

/// Loses every other reply, beginning with the first.
///
/// Keeps the replies of single tries, because a case could not distinguish a busy lock from a lost
/// reply. `cancel::a_try_whose_answer_is_lost_leaves_nothing` tests their loss.
pub(super) struct Flaky {
    claim: Box<dyn Claim>,
    waits: bool,
    calls: u32,
}

impl Flaky {
    pub(super) fn new(claim: Box<dyn Claim>, request: &Request) -> Self {
        Self { claim, waits: request.wait != Wait::Never, calls: 0 }
    }

    fn lose<T>(&mut self, reply: Result<T>) -> Result<T> {
        self.calls += 1;
        if self.calls % 2 == 1 { Err(lost()) } else { reply }
    }
}

/// Returns the error of a driver that received no reply.
pub(super) fn lost() -> Error {
    Error::Unavailable { store: "flaky", source: "the reply was lost".into() }
}

#[async_trait]
impl Claim for Flaky {
    async fn attempt(&mut self) -> Result<Attempt> {
        let reply = self.claim.attempt().await;
        if self.waits { self.lose(reply) } else { reply }
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let reply = self.claim.renew().await;
        self.lose(reply)
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        let reply = self.claim.detach(lasting, ticket).await;
        self.lose(reply)
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        let reply = self.claim.resume(ticket).await;
        self.lose(reply)
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
        let reply = self.claim.release().await;
        self.lose(reply)
    }

    async fn changed(&mut self) {
        self.claim.changed().await;
    }
}
