//! Doorbells: how a client hears that asking again may pay, and that another client is dead.
//!
//! Every client has a FIFO beside the file and is the only one to have its read end, from before its first claim until
//! it ends, however it ends. Who changes a queue writes the ids of the claims that it concerns into their clients'
//! FIFOs. A FIFO that nobody reads is a dead client's: one kernel has both ends, so that is certain at once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use dlock_core::ClaimId;
use tokio::{runtime::Handle, sync::Notify};

#[cfg_attr(any(target_os = "linux", target_os = "android"), path = "bell/dir.rs")]
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), path = "bell/no_dir.rs")]
mod dir;
#[cfg_attr(any(target_os = "linux", target_os = "android"), path = "bell/fifo.rs")]
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), path = "bell/none.rs")]
mod fifo;

pub(crate) use dir::Dir;
pub(crate) use fifo::Watch;

/// How many doorbells a client looks at when it connects, to clear away what the dead have left. A bound, because each
/// of many clients that start at once would look at those of all the others.
const GLANCE: usize = 32;

/// The doorbells of one store, as one client knows them.
pub(crate) struct Bells {
    /// `None` where this user may have no doorbells.
    dir: Option<Arc<Dir>>,
    me: ClaimId,
    /// `None` where no FIFO can be made: then waiters ask at short intervals.
    own: Option<fifo::Fifo>,
    claims: Arc<Claims>,
    watches: fifo::Watches,
}

/// What is known of a client by its FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// Somebody reads it: the client lives.
    There,
    /// Nobody does: the client is dead.
    Gone,
    /// It has none, or none that this user may open.
    Unknown,
}

/// The claims of this client that may be in the file, and the bell of each.
#[derive(Default)]
pub(crate) struct Claims(Mutex<HashMap<ClaimId, Arc<Notify>>>);

impl Bells {
    /// Hangs up the bell of client `me`.
    pub(crate) fn new(dir: Option<Arc<Dir>>, me: ClaimId, runtime: &Handle) -> Self {
        let claims = Arc::default();
        let own = dir.as_ref().and_then(|dir| fifo::Fifo::make(dir, me, runtime, &claims));
        Self { dir, me, own, claims, watches: fifo::Watches::new(runtime) }
    }

    /// The bell of a claim that is about to enter the file, or is in it.
    pub(crate) fn enter(&self, claim: ClaimId) -> Arc<Notify> {
        Arc::clone(self.claims.bells().entry(claim).or_default())
    }

    /// A claim is known not to be in the file.
    pub(crate) fn leave(&self, claim: ClaimId) {
        self.claims.bells().remove(&claim);
    }

    /// Whether this client can be rung.
    pub(crate) fn work(&self) -> bool {
        self.own.as_ref().is_some_and(fifo::Fifo::is_in_place)
    }

    /// Whether a client is known to be dead: nobody will renew its claims.
    pub(crate) fn is_dead(&self, client: ClaimId) -> bool {
        client != self.me && self.dir.as_ref().is_some_and(|dir| fifo::reader(dir, client) == Reader::Gone)
    }

    /// Some of the clients that are known to be dead and left something behind: all, where not many have doorbells.
    pub(crate) fn some_dead(&self) -> Vec<ClaimId> {
        let Some(dir) = &self.dir else { return Vec::new() };
        let (mut clients, unfinished) = fifo::clients(dir);
        unfinished.iter().for_each(|name| fifo::sweep(dir, name));
        // From a place that is another for each client, so that all are looked at in the end.
        let number = |client: &ClaimId| u128::from_be_bytes(*client.as_bytes());
        clients.sort_unstable_by_key(|client| number(client) ^ number(&self.me));
        clients.into_iter().take(GLANCE).filter(|client| self.is_dead(*client)).collect()
    }

    /// What tells when another client dies, if that can be learnt.
    pub(crate) fn watch(&self, client: ClaimId) -> Option<Arc<Watch>> {
        let dir = self.dir.as_ref().filter(|_| client != self.me)?;
        self.watches.watch(dir, client)
    }

    /// Removes what a dead client left, once none of its claims is in the file.
    pub(crate) fn take_down(&self, client: ClaimId) {
        if let Some(dir) = &self.dir {
            fifo::remove(dir, client);
        }
    }

    /// Rings for these claims of these clients. Best effort.
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
        // Where claims may be left, the FIFO stays: that nobody reads it tells the others that they are over.
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

    /// For when it is not known whom to ring.
    fn ring_all(&self) {
        self.bells().values().for_each(|bell| bell.notify_one());
    }

    fn bells(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
