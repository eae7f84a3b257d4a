//! What the keepers of one client share.

use tokio::runtime::Handle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::driver::{Error, LockName, Result, Store};

/// The state of a client: its clones and all their keepers share one.
#[derive(Debug)]
pub(crate) struct Client {
    /// Unique among the clients of this process.
    pub(crate) id: u64,
    pub(crate) store: Store,
    /// Every keeper of this client.
    pub(crate) tasks: TaskTracker,
    pub(crate) closing: CancellationToken,
}

impl Client {
    /// See [`Locks::close`](crate::Locks::close).
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.store.backend.close().await;
    }

    /// Whether a keeper can be started.
    ///
    /// # Errors
    /// [`Error::Closed`], and [`Error::NoRuntime`] outside of a runtime.
    pub(crate) fn check(&self, name: &LockName) -> Result<()> {
        if self.closing.is_cancelled() {
            return Err(Error::Closed { name: name.clone() });
        }
        // Timers and keepers need a runtime.
        Handle::try_current().map(drop).map_err(|_| Error::NoRuntime { name: name.clone() })
    }

    /// The error of a caller whose keeper has ended without an answer.
    pub(crate) fn keeper_ended(&self) -> Error {
        let source =
            "the task that was to ask the store ended: its runtime was shut down, or its driver panicked";
        Error::Unavailable { store: self.store.backend.info().store, source: source.into() }
    }
}
