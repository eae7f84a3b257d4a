//! A client's own thread. All other processes wait while a transaction runs, and a transaction has several steps. On the
//! user's runtime each step would wait until the tasks there leave it some time, and all processes with it.

use std::time::Duration;

use dlock_core::Result;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::STORE;

/// The longest that a call may take. Longer than a transaction waits for the file, so that SQLite's own error comes
/// first: it says more.
const LIMIT: Duration = Duration::from_secs(8);

/// A runtime of one thread, which ends when this value is dropped.
pub(crate) struct Thread(Option<Runtime>);

impl Thread {
    pub(crate) fn start() -> Result<Self> {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("dlock-sqlite").enable_all().build();
        runtime.map(|runtime| Self(Some(runtime))).map_err(|error| STORE.unavailable(error))
    }

    /// Runs a call and waits for its end. If this future is dropped, the call goes on.
    ///
    /// # Errors
    /// Those of the call, and [`Unavailable`](dlock_core::Error::Unavailable) if it took too long: its transaction is
    /// rolled back then.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.run_within(LIMIT, call).await
    }

    /// As [`run`](Self::run), with another limit.
    #[expect(
        clippy::disallowed_methods,
        reason = "a call ends by itself, also if nobody waits for it any more"
    )]
    pub(crate) async fn run_within<T: Send + 'static>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let call = self.handle().spawn(STORE.with_timeout(limit, call));
        call.await.unwrap_or_else(|error| Err(STORE.unavailable(error)))
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.0.as_ref().expect("taken only when dropped").handle()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // Does not wait for the thread's end, so this may be dropped anywhere, on that thread too.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
