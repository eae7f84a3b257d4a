//! A dedicated thread with a runtime for one client. The client's connections and keepers continue
//! to run there while the caller's runtime is blocked, or if the caller has none.

use std::{
    io,
    sync::{Arc, OnceLock, mpsc},
    thread::{self, ThreadId},
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use super::Client;
use crate::model::{Error, Result};

/// Maximum time that the drop of the client's last handle, or of its last guard, waits for the
/// release of its claims. A store that responds at all responds sooner. If it has not responded by
/// then, it deletes the claims after their ttl. The drop waits twice this time if the client's
/// thread is blocked.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The thread of one client. Ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Thread {
    runtime: Handle,
    id: ThreadId,
    /// The thread ends when this sender is dropped.
    stop: Option<oneshot::Sender<()>>,
    client: OnceLock<Arc<Client>>,
}

impl Thread {
    /// Starts a thread.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the system cannot start a thread.
    pub(crate) fn start() -> Result<Self> {
        let begin = || {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            let (stop, stopped) = oneshot::channel();
            let live = move || {
                runtime.block_on(stopped).ok();
                runtime.shutdown_background();
            };
            let id = thread::Builder::new().name("dlock".to_owned()).spawn(live)?.thread().id();
            Ok(Self { runtime: handle, id, stop: Some(stop), client: OnceLock::new() })
        };
        begin().map_err(|error: io::Error| Error::Unavailable {
            store: "a thread for the client",
            source: error.into(),
        })
    }

    /// Sets the client of the thread.
    pub(crate) fn serve(&self, client: &Arc<Client>) {
        self.client.set(Arc::clone(client)).ok();
    }

    /// Runs `work` on the thread. The returned future can be awaited on any executor.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        AbortOnDropHandle::new(self.spawn(work)).await.unwrap_or_else(|_| Err(self.ended()))
    }

    /// Runs `work` on the thread, to its end even if the future is dropped.
    pub(crate) async fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.spawn(work).await.unwrap_or_else(|_| Err(self.ended()))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the caller waits for the work, which runs where its keepers run"
    )]
    fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(work)
    }

    fn ended(&self) -> Error {
        let store = self.client.get().map_or("the store", |client| client.store.backend.info().store);
        Error::Unavailable { store, source: "its thread has ended, or its driver panicked".into() }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else { return };
        let (stop, (done, is_done)) = (self.stop.take(), mpsc::channel::<()>());
        self.spawn(async move {
            timeout(CLOSE_TIMEOUT, client.close()).await.ok();
            drop((done, stop));
        });
        // The thread must not wait for itself.
        if thread::current().id() != self.id {
            is_done.recv_timeout(CLOSE_TIMEOUT * 2).ok();
        }
    }
}
