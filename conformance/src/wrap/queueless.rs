//! A store that keeps no queue. A waiter must attempt again, as for a mutex on Redis.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    LockName, Result, Wait,
    driver::{AttemptAll, Backend, Claim, Info, Request, Store, Watch},
};

/// Wraps a store so that a refused attempt leaves no claim.
pub fn queueless(store: Store) -> Store {
    Store { backend: Arc::new(Queueless(store.backend)), inspect: store.inspect }
}

struct Queueless(Arc<dyn Backend>);

impl fmt::Debug for Queueless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queueless").field(&self.0).finish()
    }
}

#[async_trait]
impl Backend for Queueless {
    fn info(&self) -> &Info {
        self.0.info()
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        self.0.claim(request.wait(Wait::Never))
    }

    async fn attempt_all(&self, requests: Vec<Request>) -> Result<AttemptAll> {
        self.0.attempt_all(requests).await
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
