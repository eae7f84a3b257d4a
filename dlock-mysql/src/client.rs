//! What the claims of one client share.

mod renewals;
mod standing;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use dlock_core::{
    ClaimId,
    driver::{Gathering, Info, Seats, Wake},
};

use crate::{
    config::MysqlConfig,
    connection::{Connection, Line},
    error::STORE,
};
use renewals::Renewals;
pub(crate) use renewals::{Record, micros};
use standing::Standing;

/// One in so many of a client's releases also deletes expired claims of other locks.
const SWEEP_EVERY: u32 = 8;

/// One client: its sessions, its renewals, and its own claims, which wake each other without the server.
pub(crate) struct Client {
    pub(crate) connection: Arc<Connection>,
    pub(crate) renewals: Gathering<Renewals>,
    pub(crate) standing: Arc<Standing>,
    pub(crate) info: Info,
    /// The claims that wait for one of this client's. The event is the id of the claim that they wait for.
    pub(crate) seats: Seats,
    here: Mutex<HashMap<ClaimId, Here>>,
    released: AtomicU32,
}

/// A claim of this client that is in the queue, or may be.
#[derive(Default)]
struct Here {
    /// How many objects stand for the claim: two during a downgrade.
    objects: u32,
    /// The session that has its doorbell.
    home: Option<Arc<Line>>,
}

impl Client {
    pub(crate) fn new(connection: Connection, config: &MysqlConfig, info: Info) -> Self {
        let connection = Arc::new(connection);
        let standing = Arc::<Standing>::default();
        let renewals = Renewals::new(Arc::clone(&connection), Arc::clone(&standing), config);
        let renewals = Gathering::new(STORE, renewals);
        let (seats, here, released) = (Seats::without_source(), Mutex::default(), AtomicU32::new(0));
        Self { connection, renewals, standing, info, seats, here, released }
    }

    /// Counts a release, and tells whether it also deletes expired claims of other locks.
    pub(crate) fn sweeps(&self) -> bool {
        self.released.fetch_add(1, Relaxed).is_multiple_of(SWEEP_EVERY)
    }

    /// Notes that an object stands for a claim, until the mark is dropped.
    pub(crate) fn mark(self: &Arc<Self>, id: ClaimId) -> Mark {
        self.here().entry(id).or_default().objects += 1;
        Mark { client: Arc::clone(self), id }
    }

    /// Whether the claim is this client's, so that its end wakes this client's claims.
    pub(crate) fn has(&self, id: ClaimId) -> bool {
        self.here().contains_key(&id)
    }

    /// The session that has the doorbell of this client's claim, unless that session has ended.
    pub(crate) fn home(&self, id: ClaimId) -> Option<Arc<Line>> {
        self.here().get(&id).and_then(|here| here.home.clone()).filter(|home| !home.is_over())
    }

    pub(crate) fn set_home(&self, id: ClaimId, home: Option<Arc<Line>>) {
        if let Some(here) = self.here().get_mut(&id) {
            here.home = home;
        }
    }

    /// Wakes the claims of this client that wait for this claim.
    pub(crate) fn ring(&self, id: ClaimId) {
        self.seats.wake(&id.to_string(), Wake::All);
    }

    fn here(&self) -> MutexGuard<'_, HashMap<ClaimId, Here>> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that a claim is this client's. Dropping it wakes those who wait for the claim: they must look where it is now.
pub(crate) struct Mark {
    client: Arc<Client>,
    id: ClaimId,
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut here = self.client.here();
        if let Some(of_claim) = here.get_mut(&self.id) {
            of_claim.objects -= 1;
            if of_claim.objects == 0 {
                here.remove(&self.id);
            }
        }
        drop(here);
        self.client.standing.forget(self.id);
        self.client.ring(self.id);
    }
}
