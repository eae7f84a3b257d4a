//! State that the claims of one client share.

use std::{sync::Arc, time::Duration};

use dlock_core::{
    ClaimId, Result,
    driver::{Batcher, Info, Seats, Wake},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    doorbells::Doorbells, inspect::Place, local_claims::LocalClaims, presence::Presence, renewals::Renewals,
};
use crate::{
    config::MysqlConfig,
    connection::{Connection, Dial},
    error::STORE,
};

/// Minimum time between two releases that also delete expired claims of other locks. While another
/// program has a long transaction, this takes longer with each claim that was released since.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The sessions, batches and claims of one client. Claims of one client wake each other without the
/// server.
pub(super) struct QueueClient {
    pub(super) connection: Arc<Connection>,
    pub(super) doorbells: Doorbells,
    pub(super) renewals: Batcher<Renewals>,
    pub(super) info: Info,
    /// Waiters for claims of this client. The event is the id of the claim that the waiter waits
    /// for.
    pub(super) seats: Seats,
    pub(super) local_claims: Arc<LocalClaims>,
    presence: Batcher<Presence>,
    created_at: Instant,
    swept_at: Mutex<Option<Instant>>,
}

impl QueueClient {
    pub(super) fn new(connection: Arc<Connection>, config: &MysqlConfig, info: Info) -> Result<Self> {
        let local_claims = Arc::<LocalClaims>::default();
        let renewals = Renewals::new(Arc::clone(&connection), Arc::clone(&local_claims));
        let presence = Presence::new(Arc::clone(&connection));
        Ok(Self {
            doorbells: Doorbells::new(Dial::new(config.clone())?, config.waits),
            connection,
            renewals: Batcher::new(STORE, renewals),
            info,
            seats: Seats::without_source(),
            local_claims,
            presence: Batcher::new(STORE, presence),
            created_at: Instant::now(),
            swept_at: Mutex::default(),
        })
    }

    /// Returns the time until the expiry of the claim in this place. `None` if it is no longer there.
    /// The request is sent together with those of other waiters.
    pub(super) async fn time_left(&self, place: Place, ttl: Duration) -> Result<Option<Duration>> {
        let found = self.presence.submit(Arc::new(place.id), ttl).await?;
        Ok(found.filter(|(found_place, _)| *found_place == place).map(|(_, time_left)| time_left))
    }

    /// Returns the time until the next multiple of `interval` since the client was created. All
    /// claims of the client have these moments in common.
    pub(super) fn until_next(&self, interval: Duration) -> Duration {
        let past = self.created_at.elapsed().as_micros() % interval.as_micros().max(1);
        interval.saturating_sub(Duration::from_micros(u64::try_from(past).unwrap_or_default()))
    }

    /// Returns whether a release that is sent now also deletes expired claims of other locks.
    pub(super) fn count_release(&self) -> bool {
        let (now, mut swept_at) = (Instant::now(), self.swept_at.lock());
        let is_due = swept_at.is_none_or(|at| now.saturating_duration_since(at) >= SWEEP_INTERVAL);
        if is_due {
            *swept_at = Some(now);
        }
        is_due
    }

    /// Registers a handle of a local claim, until the registration is dropped.
    pub(super) fn register(self: &Arc<Self>, id: ClaimId) -> Registration {
        self.local_claims.add_handle(id);
        Registration { client: Arc::clone(self), id }
    }

    /// Wakes the claims of this client that wait for this claim.
    pub(super) fn wake_local_waiters(&self, id: ClaimId) {
        self.seats.wake(&id.to_string(), Wake::All);
    }
}

/// The registration of a local claim. Dropping it wakes the waiters for the claim, which then look
/// for the claim in the store.
pub(super) struct Registration {
    client: Arc<QueueClient>,
    id: ClaimId,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.client.local_claims.remove_handle(self.id);
        self.client.wake_local_waiters(self.id);
    }
}
