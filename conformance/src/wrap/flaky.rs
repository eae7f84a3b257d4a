//! Answers are lost after the store acted.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Error, Result, Wait,
    driver::{Attempt, Claim, Release, Renewal, Request, Resumption},
};

/// Loses every other answer, beginning with the first.
///
/// Keeps the answers of single tries: a case could otherwise not tell a busy lock from a lost answer.
/// `cancel::a_try_whose_answer_is_lost_leaves_nothing` is about those.
pub(super) struct Flaky {
    claim: Box<dyn Claim>,
    waits: bool,
    calls: u32,
}

impl Flaky {
    pub(super) fn new(claim: Box<dyn Claim>, request: &Request) -> Self {
        Self { claim, waits: request.wait != Wait::Never, calls: 0 }
    }

    fn lose<T>(&mut self, answer: Result<T>) -> Result<T> {
        self.calls += 1;
        if self.calls % 2 == 1 { Err(lost()) } else { answer }
    }
}

/// What a driver says when no answer came.
pub(super) fn lost() -> Error {
    Error::Unavailable { store: "flaky", source: "the answer was lost".into() }
}

#[async_trait]
impl Claim for Flaky {
    async fn attempt(&mut self) -> Result<Attempt> {
        let answer = self.claim.attempt().await;
        if self.waits { self.lose(answer) } else { answer }
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let answer = self.claim.renew().await;
        self.lose(answer)
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        let answer = self.claim.detach(lasting, ticket).await;
        self.lose(answer)
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        let answer = self.claim.resume(ticket).await;
        self.lose(answer)
    }

    fn locator(&self) -> Option<Arc<str>> {
        self.claim.locator()
    }

    async fn release(&mut self) -> Result<Release> {
        let answer = self.claim.release().await;
        self.lose(answer)
    }

    async fn changed(&mut self) {
        self.claim.changed().await;
    }
}
