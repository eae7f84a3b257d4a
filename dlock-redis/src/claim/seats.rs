//! The seats of one claim: the events for which it waits, or which end its hold.

use std::future::pending;

use dlock_core::{Kind, Result, driver::Seat};
use futures_util::future::select_all;

use crate::client::{Client, Record};

/// The seats of one claim. Boxed, because most held locks have none.
#[derive(Default)]
pub(super) struct ClaimSeats {
    /// Seat of a waiter for messages of the lock's channel. With `keyspace_events`, seat of a
    /// holder for the deletion of the lock's key.
    main: Option<Box<Seat>>,
    /// Second seat of the first waiter of a fair lock, among the waiters of the mutex of that name.
    /// If Redisson holds the name as a mutex, its release wakes only those waiters.
    mutex: Option<Box<Seat>>,
    /// Further seat of a waiter with `keyspace_events`, for the deletion of the lock's key. A
    /// program that deletes the key may publish no message.
    deletion: Option<Box<Seat>>,
}

impl ClaimSeats {
    /// Registers the seats that a waiter lacks. Returns whether it has subscribed to a channel, on
    /// which a message may have been published before.
    ///
    /// # Errors
    /// For a kind of lock that the client does not support, and if the server does not allow this
    /// user to subscribe.
    pub(super) async fn join(
        &mut self,
        client: &Client,
        Record { keys, owner, kind, .. }: &Record,
        arrival: Option<u64>,
    ) -> Result<bool> {
        let (kind, notifications) = (*kind, &client.connection.notifications);
        let (channel, arrival, is_first) = match kind {
            Kind::Mutex => (keys.channel(), arrival, false),
            Kind::Fair => (keys.waiter_channel(owner), None, arrival.is_some()),
            Kind::Read | Kind::Write => (keys.rw_channel(), arrival, false),
            Kind::Permit => (keys.waiter_channel(owner), None, false),
            kind => return Err(client.info.unsupported(kind)),
        };
        let before = (self.main.is_some(), self.mutex.is_some());
        if client.config.events && self.deletion.is_none() {
            let seat = notifications.join_for_deletion(keys.lock(), arrival, kind);
            self.deletion = Some(Box::new(seat));
        }
        if self.main.is_none() {
            let seat = notifications.join(channel.to_string(), arrival, kind).await?;
            self.main = Some(Box::new(seat));
        }
        if is_first && self.mutex.is_none() {
            let seat = notifications.join(keys.channel().to_string(), None, kind).await?;
            self.mutex = Some(Box::new(seat));
        }
        Ok(before != (self.main.is_some(), self.mutex.is_some()))
    }

    /// Registers the seat of a holder. Does nothing without `keyspace_events`.
    pub(super) fn join_as_holder(&mut self, client: &Client, record: &Record) {
        if client.config.events && self.main.is_none() {
            let seat = client.connection.notifications.join_as_holder(record.keys.lock(), record.kind);
            self.main = Some(Box::new(seat));
        }
    }

    /// Clears earlier notifications, because the claim sends its request now and sees every change
    /// that caused them.
    pub(super) fn clear(&self) {
        self.iter().for_each(Seat::clear);
    }

    /// Removes the seats. If one of them was notified and not [cleared](Self::clear) since, the
    /// client's next waiter is notified instead.
    pub(super) fn leave(&mut self) {
        *self = Self::default();
    }

    /// Returns whether an earlier waiter of this client waits for the same messages, and no message
    /// may have been missed.
    pub(super) fn is_quiet_follower(&self) -> bool {
        self.main.as_ref().is_some_and(|seat| !seat.is_first_of_its_kind() && seat.is_quiet())
            && self.deletion.as_ref().is_none_or(|seat| !seat.is_notified())
    }

    /// Waits until one of the seats is notified. Never returns for a claim without seats.
    pub(super) async fn notified(&self) {
        if self.main.is_none() {
            return pending().await;
        }
        select_all(self.iter().map(|seat| Box::pin(seat.notified()))).await;
    }

    fn iter(&self) -> impl Iterator<Item = &Seat> {
        [&self.main, &self.mutex, &self.deletion].into_iter().flatten().map(Box::as_ref)
    }
}
