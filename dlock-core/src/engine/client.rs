//! The state that the keepers of one client share.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore, SemaphorePermit, watch},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Hold, lookout::Lookout, run_to_end};
use crate::{
    contract::{Info, Store},
    kit::WeakMap,
    model::{ClaimId, Error, LockName, Result},
};

/// Maximum time for which a close waits for the task that closes the backend. The task may belong
/// to a runtime that runs no tasks. The close then calls the backend itself.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// The state of a client, shared by its clones and all their keepers.
pub(crate) struct Client {
    /// Unique among the clients of this process.
    pub(crate) id: u64,
    pub(crate) store: Store,
    /// The keepers of this client.
    pub(crate) tasks: TaskTracker,
    pub(crate) closing: CancellationToken,
    /// Whether [`Backend::close`](crate::driver::Backend::close) has ended. `None` before its call.
    /// All callers of a client's close wait for the same call.
    is_shut_down: Mutex<Option<watch::Receiver<bool>>>,
    in_flight: InFlight,
    pub(crate) tickets: Tickets,
    /// Holds of the terms in which this client leads. A term that was dropped or resigned is
    /// removed.
    pub(crate) term_holds: watch::Sender<Vec<Arc<Hold>>>,
    /// Lookouts of the observed locks, each for one ttl.
    pub(crate) lookouts: WeakMap<(LockName, Duration), Lookout>,
}

/// The requests whose number in flight is limited. Each variant has a limit of its own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Admitted {
    /// Attempts of claims to which the store has not replied yet, also after failures, at most
    /// [`Info::attempts_in_flight`](crate::driver::Info::attempts_in_flight).
    FirstAttempt,
    /// Further attempts of waiters, to which the store has replied before, at most
    /// [`Info::repeats_in_flight`](crate::driver::Info::repeats_in_flight).
    RepeatedAttempt,
    /// Releases of holds, at most
    /// [`Info::releases_in_flight`](crate::driver::Info::releases_in_flight).
    Release,
    /// Releases of claims without a hold, with a limit of the same size as for holds. Many waiters
    /// may leave at the same time, after an outage for example, and must not delay the release of a
    /// hold.
    Departure,
}

/// The permits for requests in flight.
struct InFlight {
    attempts: Semaphore,
    repeats: Semaphore,
    releases: Semaphore,
    departures: Semaphore,
}

impl InFlight {
    fn new(info: &Info) -> Self {
        let permits = |most: usize| Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS));
        Self {
            attempts: permits(info.attempts_in_flight),
            repeats: permits(info.repeats_in_flight),
            releases: permits(info.releases_in_flight),
            departures: permits(info.releases_in_flight),
        }
    }

    fn permits(&self, requests: Admitted) -> &Semaphore {
        match requests {
            Admitted::FirstAttempt => &self.attempts,
            Admitted::RepeatedAttempt => &self.repeats,
            Admitted::Release => &self.releases,
            Admitted::Departure => &self.departures,
        }
    }
}

/// The tickets that one client is using. A use lasts from the first request until the caller has
/// received the hold, or the hold has returned to its ticket.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    in_use: Mutex<HashSet<ClaimId>>,
    freed: Notify,
}

impl Tickets {
    /// Waits until the client does not use this ticket, and begins to use it. After a caller gives
    /// up, its keeper may still have to return the hold to the ticket. The store does not know the
    /// ticket until then.
    ///
    /// # Cancel safety
    /// Safe. If the future is dropped, the use has not begun.
    pub(super) async fn take(&self, ticket: ClaimId) {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if self.in_use.lock().insert(ticket) {
                return;
            }
            freed.await;
        }
    }

    /// Ends the use of a ticket.
    pub(crate) fn free(&self, ticket: ClaimId) {
        self.in_use.lock().remove(&ticket);
        self.freed.notify_waiters();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.id).field("store", &self.store).finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(id: u64, store: Store) -> Self {
        let in_flight = InFlight::new(store.backend.info());
        Self {
            id,
            store,
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
            is_shut_down: Mutex::default(),
            in_flight,
            tickets: Tickets::default(),
            term_holds: watch::Sender::default(),
            lookouts: WeakMap::new(),
        }
    }

    /// Waits for permission to send a request, in order of arrival. Renewals and other requests on
    /// which a hold depends need no permission.
    pub(super) async fn admit(&self, requests: Admitted) -> SemaphorePermit<'_> {
        match self.try_admit(requests) {
            Some(permit) => permit,
            // Boxed, because every keeper would otherwise reserve the memory of this future. The
            // semaphore is never closed.
            None => {
                let permit = self.in_flight.permits(requests).acquire();
                Box::pin(permit).await.expect("the semaphore is open")
            }
        }
    }

    /// Returns permission to send a request, or `None` if the request would have to wait for it.
    pub(super) fn try_admit(&self, requests: Admitted) -> Option<SemaphorePermit<'_>> {
        self.in_flight.permits(requests).try_acquire().ok()
    }

    /// See [`Locks::close`](crate::Locks::close).
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        let is_done = match self.shut_down() {
            Some(mut is_done) => {
                let done = timeout(SHUTDOWN_TIMEOUT, is_done.wait_for(|is_done| *is_done)).await;
                done.is_ok_and(|done| done.is_ok())
            }
            None => false,
        };
        if !is_done {
            self.store.backend.close().await;
            *self.is_shut_down.lock() = Some(watch::channel(true).1);
        }
    }

    /// Starts the close of the backend as a task, unless it was started before. The value becomes
    /// true when it is done. It never does if the task panics or its runtime ends. Returns `None`
    /// if no task was started, because there is no runtime.
    fn shut_down(&self) -> Option<watch::Receiver<bool>> {
        let mut is_shut_down = self.is_shut_down.lock();
        if is_shut_down.is_none() && Handle::try_current().is_ok() {
            let (backend, (done, is_done)) = (Arc::clone(&self.store.backend), watch::channel(false));
            drop(run_to_end(async move {
                backend.close().await;
                done.send_replace(true);
            }));
            *is_shut_down = Some(is_done);
        }
        is_shut_down.clone()
    }

    /// Checks that a keeper can be started.
    ///
    /// # Errors
    /// [`Error::Closed`] if the client is closed, and [`Error::NoRuntime`] outside of a runtime.
    ///
    /// # Panics
    /// In a runtime without timers, with tokio's message, which says how to enable them.
    pub(crate) fn check(&self, name: &LockName) -> Result<()> {
        if self.closing.is_cancelled() {
            return Err(Error::Closed { name: name.clone() });
        }
        Handle::try_current().map_err(|_| Error::NoRuntime { name: name.clone() })?;
        // Panics in a runtime without timers. Otherwise the keeper would panic after the grant.
        drop(sleep(Duration::ZERO));
        Ok(())
    }

    /// Returns the error of a caller whose keeper has ended without a reply.
    pub(crate) fn keeper_ended(&self) -> Error {
        let source =
            "the task that sends the request ended: its runtime was shut down, or its driver panicked";
        Error::Unavailable { store: self.store.backend.info().store, source: source.into() }
    }
}
