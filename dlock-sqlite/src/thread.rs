//! A client's own thread. A transaction keeps all other processes waiting, and consists of several steps: on the user's
//! runtime each would wait for its turn behind whatever else runs there.

use std::time::Duration;

use dlock_core::Result;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    time::timeout,
};

use crate::error;

/// The longest a call may take. Above the patience of a transaction, so that SQLite's error, which says more, comes first.
const LIMIT: Duration = Duration::from_secs(8);

/// A runtime of one thread, which ends with this value.
pub(crate) struct Thread(Option<Runtime>);

impl Thread {
    pub(crate) fn start() -> Result<Self> {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("dlock-sqlite").enable_all().build();
        runtime.map(|runtime| Self(Some(runtime))).map_err(error::unavailable)
    }

    /// Runs a call and waits for its end. A call that has begun goes on also if nobody waits any more.
    ///
    /// # Errors
    /// Its own, and that it took too long: what it had begun is rolled back then.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.run_within(LIMIT, call).await
    }

    /// As [`run`](Self::run), with another limit.
    pub(crate) async fn run_within<T: Send + 'static>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let late = move |_| Err(error::unavailable(format!("no answer within {limit:?}")));
        let call = self.handle().spawn(async move { timeout(limit, call).await.unwrap_or_else(late) });
        call.await.unwrap_or_else(|error| Err(error::unavailable(error)))
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.0.as_ref().expect("taken only when dropped").handle()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // Waits for nothing, so it may be dropped anywhere, also on the thread itself.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
