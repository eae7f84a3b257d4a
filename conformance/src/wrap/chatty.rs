//! Hints come without end and without cause.

use async_trait::async_trait;
use dlock_core::{
    Result,
    driver::{Attempt, Claim, Release, Renewal},
};

pub(super) struct Chatty(pub(super) Box<dyn Claim>);

#[async_trait]
impl Claim for Chatty {
    async fn attempt(&mut self) -> Result<Attempt> {
        self.0.attempt().await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.0.renew().await
    }

    async fn release(&mut self) -> Result<Release> {
        self.0.release().await
    }

    async fn changed(&mut self) {}
}
