//! The watch of an observer, who has no claim.

use std::{future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Kind, LockName,
    driver::{Seat, Watch},
};

use crate::{client::Client, keys};

/// A watch on all keys of a lock's queue, on the stream that the client's waiters use.
pub(crate) struct ObservedQueue {
    client: Arc<Client>,
    event: String,
    seat: Option<Seat>,
}

impl ObservedQueue {
    /// Creates a watch that has not started. `None` for a name that the store cannot represent.
    pub(crate) fn new(client: &Arc<Client>, name: &LockName) -> Option<Self> {
        let event = keys::event_of_queue(&keys::queue_prefix(&client.config, name).ok()?);
        Some(Self { client: Arc::clone(client), event, seat: None })
    }
}

#[async_trait]
impl Watch for ObservedQueue {
    async fn changed(&mut self) {
        if self.seat.is_none() {
            // Without a time limit for the subscription, the seat is notified when it is active.
            let joining = self.client.seats.join(self.event.clone(), None, Kind::Mutex, Duration::ZERO);
            self.seat = joining.await.ok();
        }
        match &self.seat {
            Some(seat) => {
                seat.notified().await;
                seat.clear();
            }
            // The user may not watch the keys. The observer still inspects the lock at intervals.
            None => pending().await,
        }
    }
}
