//! A store whose clock runs fast.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, LockName, Result,
    driver::{
        Attempt, AttemptAll, Backend, Claim, Grant, Info, Release, Renewal, Request, Resumption, Store, Watch,
    },
};

/// Wraps a store so that it deletes claims earlier than promised. Its clock is fast by this many
/// thousandths.
pub fn fast_clock(store: Store, thousandths: u32) -> Store {
    Store { backend: Arc::new(Fast(store.backend, thousandths)), inspect: store.inspect }
}

struct Fast(Arc<dyn Backend>, u32);

impl Fast {
    fn kept(&self, promised: Duration) -> Duration {
        promised * 1000 / (1000 + self.1)
    }
}

impl fmt::Debug for Fast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fast").field(&self.0).field(&self.1).finish()
    }
}

#[async_trait]
impl Backend for Fast {
    fn info(&self) -> &Info {
        self.0.info()
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        let (promised, kept) = (request.ttl, self.kept(request.ttl));
        Box::new(FastClaim { claim: self.0.claim(request.ttl(kept)), promised, thousandths: self.1 })
    }

    async fn attempt_all(&self, requests: Vec<Request>) -> Result<AttemptAll> {
        let promised: Vec<_> = requests.iter().map(|request| request.ttl).collect();
        let kept = requests.into_iter().map(|request| {
            let kept = self.kept(request.ttl);
            request.ttl(kept)
        });
        Ok(match self.0.attempt_all(kept.collect()).await? {
            AttemptAll::Granted(claims) => {
                let wrapped = claims.into_iter().zip(promised).map(|((claim, grant), promised)| {
                    let claim = FastClaim { claim, promised, thousandths: self.1 };
                    (Box::new(claim) as Box<dyn Claim>, Grant { valid_for: promised, ..grant })
                });
                AttemptAll::Granted(wrapped.collect())
            }
            busy @ AttemptAll::Busy(_) => busy,
        })
    }

    async fn clock(&self) -> Result<Duration> {
        self.0.clock().await
    }

    fn watch(&self, name: &LockName) -> Option<Box<dyn Watch>> {
        self.0.watch(name)
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

struct FastClaim {
    claim: Box<dyn Claim>,
    promised: Duration,
    thousandths: u32,
}

#[async_trait]
impl Claim for FastClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        Ok(match self.claim.attempt().await? {
            Attempt::Granted(grant) => Attempt::Granted(Grant { valid_for: self.promised, ..grant }),
            busy @ Attempt::Busy { .. } => busy,
        })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        Ok(match self.claim.renew().await? {
            Renewal::Renewed { .. } => Renewal::Renewed { valid_for: self.promised },
            Renewal::Lost => Renewal::Lost,
        })
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        let kept = lasting * 1000 / (1000 + self.thousandths);
        Ok(match self.claim.detach(kept, ticket).await? {
            Renewal::Renewed { .. } => Renewal::Renewed { valid_for: lasting },
            Renewal::Lost => Renewal::Lost,
        })
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        Ok(match self.claim.resume(ticket).await? {
            Resumption::Resumed { grant, remaining } => {
                Resumption::Resumed { grant: Grant { valid_for: self.promised, ..grant }, remaining }
            }
            Resumption::Gone => Resumption::Gone,
        })
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
