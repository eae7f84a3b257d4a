//! A request for several locks in one step, as one claim: so whatever a wrapper does to the attempt of a claim it does to that request.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use dlock_core::{
    Error, Result, Wait,
    driver::{Attempt, AttemptAll, Backend, Claim, Grant, Release, Renewal, Request},
};

/// What the store said, if it was asked.
type Told = Arc<Mutex<Option<AttemptAll>>>;

/// Stands for all claims of the request.
struct Joint {
    backend: Arc<dyn Backend>,
    requests: Vec<Request>,
    told: Told,
}

/// Sends the request through the wrapper. If that loses the answer, the claims that the store granted are dropped, as those of a
/// client are that gets no answer.
pub(super) async fn attempt_all(
    backend: &Arc<dyn Backend>,
    wrapper: impl Fn(Box<dyn Claim>, Request) -> Box<dyn Claim>,
    requests: Vec<Request>,
) -> Result<AttemptAll> {
    let Some(first) = requests.first() else { return backend.attempt_all(requests).await };
    // `Flaky` spares single tries, because a case could not tell a busy lock from a lost answer. This request is made again for
    // each lock, so its answer may be lost.
    let first = first.clone().wait(Wait::Forever);
    let told = Told::default();
    let joint = Joint { backend: Arc::clone(backend), requests: requests.clone(), told: Arc::clone(&told) };
    wrapper(Box::new(joint), first).attempt().await?;
    let told = told.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(match told.ok_or_else(unasked)? {
        AttemptAll::Granted(claims) => {
            let wrapped = claims.into_iter().zip(requests);
            AttemptAll::Granted(wrapped.map(|((claim, grant), of)| (wrapper(claim, of), grant)).collect())
        }
        busy @ AttemptAll::Busy(_) => busy,
    })
}

fn unasked() -> Error {
    Error::Unavailable { store: "wrapped", source: "the wrapper answered, and did not ask the store".into() }
}

#[async_trait]
impl Claim for Joint {
    async fn attempt(&mut self) -> Result<Attempt> {
        let told = self.backend.attempt_all(self.requests.clone()).await?;
        let ttl = self.requests[0].ttl;
        let answer = match &told {
            AttemptAll::Granted(_) => Attempt::Granted(Grant { token: None, valid_for: ttl }),
            AttemptAll::Busy(_) => Attempt::Busy { retry_in: ttl },
        };
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
        Ok(answer)
    }

    async fn renew(&mut self) -> Result<Renewal> {
        Err(unasked())
    }

    async fn release(&mut self) -> Result<Release> {
        Err(unasked())
    }

    async fn changed(&mut self) {
        std::future::pending().await
    }
}
