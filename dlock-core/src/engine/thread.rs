//! A thread of dlock's own, with a runtime for one client: its connections and keepers go on while the caller's runtime is
//! blocked, or where the caller has none.

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

/// How long whoever drops the client's last handle, or its last guard, waits for what was let go to leave the store. Longer
/// than a store that answers takes; what it has not heard of by then, it forgets by itself after a ttl.
const FAREWELL: Duration = Duration::from_secs(2);

/// The thread of one client. Ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Thread {
    runtime: Handle,
    id: ThreadId,
    /// The thread ends when this is dropped.
    stop: Option<oneshot::Sender<()>>,
    client: OnceLock<Arc<Client>>,
}

impl Thread {
    /// Starts a thread.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the system has no thread to give.
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

    /// Says whose thread it is.
    pub(crate) fn serve(&self, client: &Arc<Client>) {
        self.client.set(Arc::clone(client)).ok();
    }

    /// Does `work` on the thread. Awaits on any executor.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        AbortOnDropHandle::new(self.spawn(work)).await.unwrap_or_else(|_| Err(self.ended()))
    }

    /// Does `work` on the thread, to its end even if the future is dropped.
    pub(crate) async fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.spawn(work).await.unwrap_or_else(|_| Err(self.ended()))
    }

    #[expect(clippy::disallowed_methods, reason = "what a caller waits for, where its keepers run")]
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
            timeout(FAREWELL, client.close()).await.ok();
            drop((done, stop));
        });
        // The thread must not wait for itself.
        if thread::current().id() != self.id {
            is_done.recv_timeout(FAREWELL * 2).ok();
        }
    }
}
