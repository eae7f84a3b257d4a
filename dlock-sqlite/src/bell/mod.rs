//! Doorbells wake the waiters of other clients, and show which clients are dead.
//!
//! Each client has a FIFO beside the file. The client is the only process that has its FIFO open
//! for reading, from before its first claim until the client ends, however it ends. A client that
//! changes a queue writes the ids of the claims that the change concerns into the FIFOs of their
//! clients. A FIFO that no process has open for reading belongs to a dead client. Both ends of a
//! FIFO are in one kernel, so this is certain, and known at once.

use std::{collections::HashMap, sync::Arc};

use dlock_core::ClaimId;
use parking_lot::{Mutex, MutexGuard};
use tokio::{runtime::Handle, sync::Notify};

use crate::client::NO_CLIENT;

#[cfg_attr(any(target_os = "linux", target_os = "android"), path = "dir.rs")]
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), path = "no_dir.rs")]
mod dir;
#[cfg_attr(any(target_os = "linux", target_os = "android"), path = "fifo.rs")]
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), path = "none.rs")]
mod fifo;

pub(crate) use dir::BellDir;
pub(crate) use fifo::ClientWatch;

/// Maximum number of doorbells that a client checks when it connects, to remove what dead clients
/// have left. Without a limit, each of many clients that start at once would check the doorbells of
/// all the others.
const MAX_CHECKED_AT_CONNECT: usize = 32;

/// The doorbells of one store, as one client uses them.
pub(crate) struct Bells {
    /// The folder of the FIFOs. `None` if this user cannot create or open it.
    dir: Option<Arc<BellDir>>,
    me: ClaimId,
    /// This client's FIFO. `None` if it cannot be created. The client's waiters then poll the file.
    own: Option<fifo::Fifo>,
    claims: Arc<ClaimBells>,
    watches: fifo::ClientWatches,
}

/// The state of a client, according to its FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// A process has the FIFO open for reading.
    Alive,
    /// No process has the FIFO open for reading.
    Dead,
    /// The client has no FIFO, or none that this user may open.
    Unknown,
}

/// The bells of this client's claims that are in the file or may be, by claim.
#[derive(Default)]
pub(crate) struct ClaimBells(Mutex<HashMap<ClaimId, Arc<Notify>>>);

impl Bells {
    /// Creates the doorbell of client `me`.
    pub(crate) fn new(dir: Option<Arc<BellDir>>, me: ClaimId, runtime: &Handle) -> Self {
        let claims = Arc::default();
        let own = dir.as_ref().and_then(|dir| fifo::Fifo::make(dir, me, runtime, &claims));
        Self { dir, me, own, claims, watches: fifo::ClientWatches::new(runtime) }
    }

    /// Returns the bell of a claim that is in the file or about to enter it.
    pub(crate) fn register(&self, claim: ClaimId) -> Arc<Notify> {
        Arc::clone(self.claims.lock().entry(claim).or_default())
    }

    /// Removes the bell of a claim that is no longer in the file.
    pub(crate) fn unregister(&self, claim: ClaimId) {
        self.claims.lock().remove(&claim);
    }

    /// Returns whether other clients can ring this client's doorbell.
    pub(crate) fn can_be_rung(&self) -> bool {
        self.own.as_ref().is_some_and(fifo::Fifo::is_in_place)
    }

    /// Returns whether a client is known to be dead. A dead client renews no claim.
    pub(crate) fn is_dead(&self, client: ClaimId) -> bool {
        let is_another = client != self.me && client != NO_CLIENT;
        is_another && self.dir.as_ref().is_some_and(|dir| fifo::liveness(dir, client) == Liveness::Dead)
    }

    /// Returns dead clients that have left their FIFOs behind. The list may be incomplete, because
    /// at most [`MAX_CHECKED_AT_CONNECT`] FIFOs are checked. Also removes FIFOs that were never
    /// finished.
    pub(crate) fn find_dead_clients(&self) -> Vec<ClaimId> {
        let Some(dir) = &self.dir else { return Vec::new() };
        let (mut clients, unfinished) = fifo::clients(dir);
        unfinished.iter().for_each(|name| fifo::remove_unfinished(dir, name));
        // The order differs for each client, so that over time all FIFOs are checked.
        let number = |client: &ClaimId| u128::from_be_bytes(*client.as_bytes());
        clients.sort_unstable_by_key(|client| number(client) ^ number(&self.me));
        clients.into_iter().take(MAX_CHECKED_AT_CONNECT).filter(|client| self.is_dead(*client)).collect()
    }

    /// Returns a watch of another client. `None` if the death of that client cannot be detected.
    pub(crate) fn watch(&self, client: ClaimId) -> Option<Arc<ClientWatch>> {
        let dir = self.dir.as_ref().filter(|_| client != self.me && client != NO_CLIENT)?;
        self.watches.watch(dir, client)
    }

    /// Removes the FIFO of a dead client. None of the client's claims may be left in the file.
    pub(crate) fn remove_fifo(&self, client: ClaimId) {
        if let Some(dir) = &self.dir {
            fifo::remove(dir, client);
        }
    }

    /// Rings the bells of claims, given as pairs of client and claim. A ring may be lost.
    pub(crate) fn ring(&self, rings: impl IntoIterator<Item = (ClaimId, ClaimId)>) {
        let mut by_client: HashMap<ClaimId, Vec<u8>> = HashMap::new();
        for (client, claim) in rings {
            if client == self.me {
                self.claims.ring(claim);
            } else {
                by_client.entry(client).or_default().extend(claim.as_bytes());
            }
        }
        if let Some(dir) = &self.dir {
            by_client.iter().for_each(|(client, claims)| fifo::ring(dir, *client, claims));
        }
    }
}

/// Returns whether a client other than `me` is alive and uses this store.
pub(crate) fn has_live_client(dir: &BellDir, me: ClaimId) -> bool {
    let (clients, _) = fifo::clients(dir);
    clients.into_iter().any(|client| client != me && fifo::liveness(dir, client) == Liveness::Alive)
}

/// Returns the state of a client.
pub(crate) fn liveness(dir: &BellDir, client: ClaimId) -> Liveness {
    fifo::liveness(dir, client)
}

impl Drop for Bells {
    fn drop(&mut self) {
        // If claims may be left in the file, the FIFO stays. It then has no reader, which shows
        // other clients that this client is dead.
        if self.own.is_some() && self.claims.lock().is_empty() {
            self.remove_fifo(self.me);
        }
    }
}

impl ClaimBells {
    fn ring(&self, claim: ClaimId) {
        if let Some(bell) = self.lock().get(&claim) {
            bell.notify_one();
        }
    }

    /// Rings the bells of all claims, if it is unknown which one was meant.
    fn ring_all(&self) {
        self.lock().values().for_each(|bell| bell.notify_one());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<Notify>>> {
        self.0.lock()
    }
}
