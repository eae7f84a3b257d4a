//! The thread of a client. A transaction has several steps, and all other processes wait while it
//! runs. On the user's runtime each step would have to wait for the other tasks of that runtime,
//! and so would all processes.

use std::{path::Path, time::Duration};

use dlock_core::Result;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::{
    error::{self, STORE},
    host::descriptors,
};

/// Maximum duration of a call. It is longer than a transaction waits for the file, so that the
/// error of the transaction, which says more, is returned first.
const CALL_TIMEOUT: Duration = Duration::from_secs(8);

/// A runtime of one thread, which ends when this value is dropped.
pub(crate) struct Thread(Option<Runtime>);

impl Thread {
    /// Starts the thread of the client of the file at `path`.
    ///
    /// # Errors
    /// [`Unwritable`](dlock_core::Error::Unwritable) without a free file descriptor, and
    /// [`Unavailable`](dlock_core::Error::Unavailable) if the system refuses the thread.
    pub(crate) fn start(path: &Path) -> Result<Self> {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("dlock-sqlite").enable_all().build();
        runtime.map(|runtime| Self(Some(runtime))).map_err(|source| {
            if descriptors::are_missing(&source) {
                error::without_descriptors(path, source)
            } else {
                STORE.unavailable(source)
            }
        })
    }

    /// Runs a call and waits for its end. The call continues if this future is dropped.
    ///
    /// # Errors
    /// The errors of the call, and [`Unavailable`](dlock_core::Error::Unavailable) if the call
    /// takes too long. Its transaction is then rolled back.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.run_within(CALL_TIMEOUT, call).await
    }

    /// Does the same as [`run`](Self::run), with another timeout.
    #[expect(
        clippy::disallowed_methods,
        reason = "a call is bounded, and continues if its caller stops waiting"
    )]
    pub(crate) async fn run_within<T: Send + 'static>(
        &self,
        timeout: Duration,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let call = self.handle().spawn(STORE.with_timeout(timeout, call));
        call.await.unwrap_or_else(|error| Err(STORE.unavailable(error)))
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.0.as_ref().expect("taken only when dropped").handle()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // This does not wait for the thread's end, so that the value can be dropped anywhere, also
        // on that thread.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
