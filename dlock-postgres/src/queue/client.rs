//! State that the claims of one client share.

mod blocked;
mod renewals;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{
    ClaimId, Kind, Result,
    driver::{Batcher, Info, Seat, Seats, Wake},
};
use tokio::time::Instant;
use uuid::Uuid;

use super::wake::{LISTENING, ListeningState, Notifications};
use crate::{
    config::PostgresConfig,
    connection::{Connection, Dial},
    error::{self, STORE},
    keys,
};
use blocked::Blocked;
pub(crate) use renewals::{RenewalRequest, Renewals};

/// Channel of a claim that needs no notification. Not empty, because the functions of an earlier
/// build send one to each channel, and the server refuses an empty name.
pub(crate) const NO_CHANNEL: &str = "-";

/// One release in this many also deletes expired claims of other locks.
const SWEEP_EVERY: u32 = 8;

/// The sessions, batches and seats of one client.
pub(crate) struct Client {
    pub(crate) connection: Arc<Connection>,
    pub(crate) renewals: Batcher<Renewals>,
    blocked: Batcher<Blocked>,
    pub(crate) info: Info,
    /// Channel on which the client listens while it has waiters.
    channel: String,
    has_notifications: bool,
    listening_state: Arc<ListeningState>,
    /// Waiters. Each has a seat for the id of its claim, and one for the subscription that all share.
    seats: Seats,
    releases: AtomicU32,
    created_at: Instant,
}

/// The seats of a waiting claim.
pub(crate) struct WaiterSeats {
    /// Notified when the claim's turn may have come.
    pub(crate) turn: Seat,
    /// Notified when a notification may have been missed.
    pub(crate) listening: Seat,
}

impl Client {
    pub(crate) fn new(connection: Arc<Connection>, config: &PostgresConfig, info: Info) -> Result<Self> {
        let channel = format!("dlock_{}", Uuid::from_bytes(*ClaimId::random().as_bytes()).simple());
        let listening_state = Arc::<ListeningState>::default();
        let source = Notifications::new(
            Dial::new(config.clone())?,
            Arc::clone(&connection),
            channel.clone(),
            Arc::clone(&listening_state),
        );
        Ok(Self {
            renewals: Batcher::new(STORE, Renewals::new(Arc::clone(&connection))),
            blocked: Batcher::new(STORE, Blocked::new(Arc::clone(&connection))),
            connection,
            info,
            channel,
            has_notifications: config.has_notifications,
            listening_state,
            seats: Seats::new(source),
            releases: AtomicU32::new(0),
            created_at: Instant::now(),
        })
    }

    /// Returns whether waiters of this client can be woken by notifications, unless the server or a
    /// connection pooler prevents it.
    pub(crate) fn has_notifications(&self) -> bool {
        self.has_notifications
    }

    /// Returns the channel on which the client listens while it has waiters. A call with this
    /// channel returns the client's claims that it would otherwise notify.
    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    /// Returns whether the client listens now, so that a waiter gets its seats without a request.
    pub(crate) fn is_listening(&self) -> bool {
        self.listening_state.is_listening()
    }

    /// Gives a waiting claim its seats. Starts to listen if the client does not.
    ///
    /// # Errors
    /// If notifications do not arrive. The claim must poll.
    pub(crate) async fn take_seats(&self, id: ClaimId, kind: Kind, limit: Duration) -> Result<WaiterSeats> {
        if self.listening_state.lacks_notifications() {
            return Err(STORE.refused(error::NO_NOTIFICATIONS));
        }
        let turn = self.seats.join_without_subscription(id.to_string(), None, kind);
        let listening = self.seats.join(LISTENING.to_owned(), None, kind, limit).await?;
        Ok(WaiterSeats { turn, listening })
    }

    /// Returns whether a claim is in the queue and does not hold. The request is sent together with
    /// those of other waiters.
    pub(crate) async fn is_blocked(&self, id: ClaimId, ttl: Duration) -> Result<bool> {
        self.blocked.submit(Arc::new(id), ttl).await
    }

    /// Returns the time until the next multiple of `interval` since the client was created. All
    /// claims of the client have these moments in common, so that they share their polls.
    pub(crate) fn until_next(&self, interval: Duration) -> Duration {
        let past = self.created_at.elapsed().as_micros() % interval.as_micros().max(1);
        interval.saturating_sub(Duration::from_micros(u64::try_from(past).unwrap_or_default()))
    }

    /// Counts a release, and returns whether it also deletes expired claims of other locks.
    pub(crate) fn count_release(&self) -> bool {
        self.releases.fetch_add(1, Relaxed).is_multiple_of(SWEEP_EVERY)
    }

    /// Wakes claims of this client. The server sends no notification for them, but returns their
    /// ids to the client that freed the lock.
    pub(crate) fn wake(&self, claims: &[Uuid]) {
        for claim in claims {
            self.seats.wake(&keys::claim_id(*claim).to_string(), Wake::All);
        }
    }
}
