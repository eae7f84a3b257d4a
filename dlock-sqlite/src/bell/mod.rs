//! Doorbells: how a client hears that asking again may pay, and that another client is dead.
//!
//! Every client has a FIFO beside the file. Only that client has the FIFO open for reading: from before its first claim until
//! the client ends, however it ends. A client that changes a queue writes the ids of the claims that the change concerns into
//! the FIFOs of their clients. A FIFO that nobody has open for reading belongs to a dead client. One kernel has both ends of
//! the FIFO, so this is certain, and known at once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use dlock_core::ClaimId;
use tokio::{runtime::Handle, sync::Notify};

use crate::client::NOBODY;

#[cfg_attr(any(target_os = "linux", target_os = "android"), path = "dir.rs")]
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), path = "no_dir.rs")]
mod dir;
#[cfg_attr(any(target_os = "linux", target_os = "android"), path = "fifo.rs")]
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), path = "none.rs")]
mod fifo;

pub(crate) use dir::Dir;
pub(crate) use fifo::Watch;

/// How many doorbells a client checks when it connects, to remove what dead clients have left. Bounded, because of many
/// clients that start at once each would check the doorbells of all the others.
const GLANCE: usize = 32;

/// The doorbells of one store, as one client sees them.
pub(crate) struct Bells {
    /// The folder of the FIFOs. `None` where this user cannot make or open it.
    dir: Option<Arc<Dir>>,
    me: ClaimId,
    /// This client's FIFO. `None` where none can be made: then its waiters look into the file at short intervals.
    own: Option<fifo::Fifo>,
    claims: Arc<Claims>,
    watches: fifo::Watches,
}

/// What is known of a client by its FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// A process has it open for reading: the client lives.
    There,
    /// No process has it open for reading: the client is dead.
    Gone,
    /// The client has no FIFO, or none that this user may open.
    Unknown,
}

/// The claims of this client that may be in the file, and the bell of each.
#[derive(Default)]
pub(crate) struct Claims(Mutex<HashMap<ClaimId, Arc<Notify>>>);

impl Bells {
    /// Makes the doorbell of client `me`.
    pub(crate) fn new(dir: Option<Arc<Dir>>, me: ClaimId, runtime: &Handle) -> Self {
        let claims = Arc::default();
        let own = dir.as_ref().and_then(|dir| fifo::Fifo::make(dir, me, runtime, &claims));
        Self { dir, me, own, claims, watches: fifo::Watches::new(runtime) }
    }

    /// The bell of a claim that is about to enter the file, or is in it.
    pub(crate) fn enter(&self, claim: ClaimId) -> Arc<Notify> {
        Arc::clone(self.claims.bells().entry(claim).or_default())
    }

    /// Forgets the bell of a claim that is no longer in the file.
    pub(crate) fn leave(&self, claim: ClaimId) {
        self.claims.bells().remove(&claim);
    }

    /// Whether other clients can ring this one.
    pub(crate) fn work(&self) -> bool {
        self.own.as_ref().is_some_and(fifo::Fifo::is_in_place)
    }

    /// Whether a client is known to be dead. Then nobody renews its claims.
    pub(crate) fn is_dead(&self, client: ClaimId) -> bool {
        let is_another = client != self.me && client != NOBODY;
        is_another && self.dir.as_ref().is_some_and(|dir| fifo::reader(dir, client) == Reader::Gone)
    }

    /// Dead clients that left their FIFOs behind. At most [`GLANCE`] FIFOs are checked, so this may not be all of them.
    /// Also removes FIFOs that were never finished.
    pub(crate) fn some_dead(&self) -> Vec<ClaimId> {
        let Some(dir) = &self.dir else { return Vec::new() };
        let (mut clients, unfinished) = fifo::clients(dir);
        unfinished.iter().for_each(|name| fifo::sweep(dir, name));
        // Each client has another order, so that over time all FIFOs are checked.
        let number = |client: &ClaimId| u128::from_be_bytes(*client.as_bytes());
        clients.sort_unstable_by_key(|client| number(client) ^ number(&self.me));
        clients.into_iter().take(GLANCE).filter(|client| self.is_dead(*client)).collect()
    }

    /// Watches another client until it dies. `None` where that cannot be seen.
    pub(crate) fn watch(&self, client: ClaimId) -> Option<Arc<Watch>> {
        let dir = self.dir.as_ref().filter(|_| client != self.me && client != NOBODY)?;
        self.watches.watch(dir, client)
    }

    /// Removes the FIFO of a dead client. Only when none of its claims is in the file.
    pub(crate) fn take_down(&self, client: ClaimId) {
        if let Some(dir) = &self.dir {
            fifo::remove(dir, client);
        }
    }

    /// Rings these claims of these clients. A ring may be lost.
    pub(crate) fn ring(&self, rings: impl IntoIterator<Item = (ClaimId, ClaimId)>) {
        let mut abroad: HashMap<ClaimId, Vec<u8>> = HashMap::new();
        for (client, claim) in rings {
            if client == self.me {
                self.claims.ring(claim);
            } else {
                abroad.entry(client).or_default().extend(claim.as_bytes());
            }
        }
        if let Some(dir) = &self.dir {
            abroad.iter().for_each(|(client, claims)| fifo::ring(dir, *client, claims));
        }
    }
}

/// Whether a client other than `me` lives and uses this store.
pub(crate) fn anybody_lives(dir: &Dir, me: ClaimId) -> bool {
    let (clients, _) = fifo::clients(dir);
    clients.into_iter().any(|client| client != me && fifo::reader(dir, client) == Reader::There)
}

/// Whether a client lives.
pub(crate) fn reader(dir: &Dir, client: ClaimId) -> Reader {
    fifo::reader(dir, client)
}

impl Drop for Bells {
    fn drop(&mut self) {
        // If claims may be left in the file, the FIFO stays: because nobody reads it, other clients see that this one is
        // dead.
        if self.own.is_some() && self.claims.bells().is_empty() {
            self.take_down(self.me);
        }
    }
}

impl Claims {
    fn ring(&self, claim: ClaimId) {
        if let Some(bell) = self.bells().get(&claim) {
            bell.notify_one();
        }
    }

    /// Rings all claims, where it is not known which one is meant.
    fn ring_all(&self) {
        self.bells().values().for_each(|bell| bell.notify_one());
    }

    fn bells(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
