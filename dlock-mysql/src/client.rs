//! What the claims of one client share.

mod here;
mod presence;
mod renewals;
mod standing;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{
    ClaimId, Kind, Result,
    driver::{Gathering, Info, Seats, Wake},
};
use tokio::time::Instant;

use crate::{config::MysqlConfig, connection::Connection, error::STORE};
use here::Here;
use presence::Presence;
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
    pub(crate) here: Arc<Here>,
    presence: Gathering<Presence>,
    begun: Instant,
    released: AtomicU32,
}

impl Client {
    pub(crate) fn new(connection: Connection, config: &MysqlConfig, info: Info) -> Self {
        let connection = Arc::new(connection);
        let (standing, here) = (Arc::<Standing>::default(), Arc::<Here>::default());
        let renewals =
            Renewals::new(Arc::clone(&connection), Arc::clone(&standing), Arc::clone(&here), config);
        let renewals = Gathering::new(STORE, renewals);
        let (seats, released) = (Seats::without_source(), AtomicU32::new(0));
        let presence = Gathering::new(STORE, Presence::new(Arc::clone(&connection)));
        Self { connection, renewals, standing, info, seats, here, presence, begun: Instant::now(), released }
    }

    /// Whether another claim is in the queue with this kind. Sent together with the look-ups of other waiters.
    pub(crate) async fn is_present(&self, id: ClaimId, kind: Kind, ttl: Duration) -> Result<bool> {
        Ok(self.presence.ask(Arc::new(id), ttl).await? == Some(kind))
    }

    /// Time until the next of the moments that lie `interval` apart, and that all claims of this client share.
    pub(crate) fn until_next(&self, interval: Duration) -> Duration {
        let past = self.begun.elapsed().as_micros() % interval.as_micros().max(1);
        interval.saturating_sub(Duration::from_micros(u64::try_from(past).unwrap_or_default()))
    }

    /// Counts a release, and tells whether it also deletes expired claims of other locks.
    pub(crate) fn sweeps(&self) -> bool {
        self.released.fetch_add(1, Relaxed).is_multiple_of(SWEEP_EVERY)
    }

    /// Notes that an object stands for a claim, until the mark is dropped.
    pub(crate) fn mark(self: &Arc<Self>, id: ClaimId) -> Mark {
        self.here.enter(id);
        Mark { client: Arc::clone(self), id }
    }

    /// Wakes the claims of this client that wait for this claim.
    pub(crate) fn ring(&self, id: ClaimId) {
        self.seats.wake(&id.to_string(), Wake::All);
    }
}

/// Says that a claim is this client's. Dropping it wakes those who wait for the claim: they must look where it is now.
pub(crate) struct Mark {
    client: Arc<Client>,
    id: ClaimId,
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.client.here.leave(self.id);
        self.client.standing.forget(self.id);
        self.client.ring(self.id);
    }
}
