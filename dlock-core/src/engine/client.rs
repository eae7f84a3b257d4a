//! What the keepers of one client share.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore, SemaphorePermit},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    contract::Store,
    model::{ClaimId, Error, LockName, Result},
};

/// The state of a client: its clones and all their keepers share one.
#[derive(Debug)]
pub(crate) struct Client {
    /// Unique among the clients of this process.
    pub(crate) id: u64,
    pub(crate) store: Store,
    /// Every keeper of this client.
    pub(crate) tasks: TaskTracker,
    pub(crate) closing: CancellationToken,
    /// Bounds the attempts in flight: see [`Info::attempts_in_flight`](crate::driver::Info::attempts_in_flight).
    attempts: Semaphore,
    pub(crate) tickets: Tickets,
}

/// The tickets that one client is using: from the first request until the caller has the hold, or the ticket has it back.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    used: Mutex<HashSet<ClaimId>>,
    freed: Notify,
}

impl Tickets {
    /// Waits until the client does not use this ticket, and begins to use it. A use that was given up may still have to hand
    /// the hold back, and until then the store does not know the ticket.
    ///
    /// # Cancel safety
    /// Safe: the use has not begun.
    pub(super) async fn take(&self, ticket: ClaimId) {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(ticket) {
                return;
            }
            freed.await;
        }
    }

    /// Ends the use of a ticket.
    pub(crate) fn free(&self, ticket: ClaimId) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).remove(&ticket);
        self.freed.notify_waiters();
    }
}

impl Client {
    pub(crate) fn new(id: u64, store: Store) -> Self {
        let most = store.backend.info().attempts_in_flight.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            id,
            store,
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
            attempts: Semaphore::new(most),
            tickets: Tickets::default(),
        }
    }

    /// Waits for permission to send an attempt, in order of arrival. Only attempts need it: a request for a hold must not
    /// queue behind those of waiters.
    pub(super) async fn admit(&self) -> SemaphorePermit<'_> {
        match self.attempts.try_acquire() {
            Ok(permit) => permit,
            // Boxed, because a keeper would otherwise reserve the memory of this future. The semaphore is never closed.
            Err(_) => Box::pin(self.attempts.acquire()).await.expect("the semaphore is open"),
        }
    }

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
