//! Doorbells: how a client hears that asking again may pay, and that another client is dead.
//!
//! Every client has a FIFO beside the file and is the only one to have its read end, from before its first claim until
//! it ends, however it ends. Who changes a queue writes the ids of the claims that it concerns into their clients'
//! FIFOs. A FIFO that nobody reads is a dead client's: one kernel has both ends, so that is certain at once.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use dlock_core::ClaimId;
use tokio::{runtime::Handle, sync::Notify};

#[cfg_attr(any(target_os = "linux", target_os = "android"), path = "bell/fifo.rs")]
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), path = "bell/none.rs")]
mod fifo;

pub(crate) use fifo::Watch;

/// The doorbells of one store, as one client knows them.
pub(crate) struct Bells {
    dir: PathBuf,
    me: ClaimId,
    /// `None` where no FIFO can be made: then waiters ask at short intervals.
    own: Option<fifo::Fifo>,
    claims: Arc<Claims>,
    watches: fifo::Watches,
}

/// The claims of this client that may be in the file, and the bell of each.
#[derive(Default)]
pub(crate) struct Claims(Mutex<HashMap<ClaimId, Arc<Notify>>>);

impl Bells {
    /// Hangs up the bell of client `me` of the store in the file `path`.
    pub(crate) fn new(path: &Path, me: ClaimId, runtime: &Handle) -> Self {
        let mut dir = path.as_os_str().to_owned();
        dir.push("-bells");
        let dir = PathBuf::from(dir);
        let claims = Arc::default();
        let own = fifo::Fifo::make(&dir, path, me, runtime, &claims);
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
        client != self.me && fifo::is_unread(&self.dir, client)
    }

    /// The clients that are known to be dead and left something behind.
    pub(crate) fn dead(&self) -> Vec<ClaimId> {
        fifo::sweep(&self.dir);
        fifo::clients(&self.dir).filter(|client| self.is_dead(*client)).collect()
    }

    /// What tells when another client dies, if that can be learnt.
    pub(crate) fn watch(&self, client: ClaimId) -> Option<Arc<Watch>> {
        if client == self.me { None } else { self.watches.watch(&self.dir, client) }
    }

    /// Removes what a dead client left, once none of its claims is in the file.
    pub(crate) fn take_down(&self, client: ClaimId) {
        fifo::remove(&self.dir, client);
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
        for (client, claims) in abroad {
            fifo::ring(&self.dir, client, &claims);
        }
    }
}

impl Drop for Bells {
    fn drop(&mut self) {
        // Where claims may be left, the FIFO stays: that nobody reads it tells the others that they are over.
        if self.own.is_some() && self.claims.bells().is_empty() {
            fifo::remove(&self.dir, self.me);
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
