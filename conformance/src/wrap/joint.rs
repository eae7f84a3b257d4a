//! Presents a request for several locks in one step as one claim, so that a wrapper applies its
//! changes of a claim's attempt to that request too.

use std::sync::Arc;

use async_trait::async_trait;
use dlock_core::{
    Error, Result, Wait,
    driver::{Attempt, AttemptAll, Backend, Claim, Grant, Release, Renewal, Request},
};
use parking_lot::Mutex;

/// The store's reply, if the request reached the store.
type SharedReply = Arc<Mutex<Option<AttemptAll>>>;

/// A claim that represents all claims of the request.
struct Joint {
    backend: Arc<dyn Backend>,
    requests: Vec<Request>,
    reply: SharedReply,
}

/// Sends the request through the wrapper. If the wrapper loses the reply, the claims that the store
/// granted are dropped, as for a client that receives no reply.
pub(super) async fn attempt_all(
    backend: &Arc<dyn Backend>,
    wrapper: impl Fn(Box<dyn Claim>, Request) -> Box<dyn Claim>,
    requests: Vec<Request>,
) -> Result<AttemptAll> {
    let Some(first) = requests.first() else { return backend.attempt_all(requests).await };
    // `Flaky` keeps the replies of single tries, because a case could not distinguish a busy lock
    // from a lost reply. The engine repeats this request for each lock, so its reply may be lost.
    let first = first.clone().wait(Wait::Forever);
    let shared = SharedReply::default();
    let joint =
        Joint { backend: Arc::clone(backend), requests: requests.clone(), reply: Arc::clone(&shared) };
    wrapper(Box::new(joint), first).attempt().await?;
    let reply = shared.lock().take();
    Ok(match reply.ok_or_else(not_sent)? {
        AttemptAll::Granted(claims) => {
            let wrapped = claims.into_iter().zip(requests);
            AttemptAll::Granted(
                wrapped.map(|((claim, grant), request)| (wrapper(claim, request), grant)).collect(),
            )
        }
        busy @ AttemptAll::Busy(_) => busy,
    })
}

fn not_sent() -> Error {
    Error::Unavailable {
        store: "wrapped",
        source: "the wrapper replied without a request to the store".into(),
    }
}

#[async_trait]
impl Claim for Joint {
    async fn attempt(&mut self) -> Result<Attempt> {
        let reply = self.backend.attempt_all(self.requests.clone()).await?;
        let ttl = self.requests[0].ttl;
        let attempt = match &reply {
            AttemptAll::Granted(_) => Attempt::Granted(Grant { token: None, valid_for: ttl }),
            AttemptAll::Busy(_) => Attempt::Busy { retry_in: ttl },
        };
        *self.reply.lock() = Some(reply);
        Ok(attempt)
    }

    async fn renew(&mut self) -> Result<Renewal> {
        Err(not_sent())
    }

    async fn release(&mut self) -> Result<Release> {
        Err(not_sent())
    }

    async fn changed(&mut self) {
        std::future::pending().await
    }
}
