//! The seats of a client's waiters, and the sources of the messages that wake them.
//! `server.rs` receives the messages of one server, `cluster.rs` those of a cluster.

mod cluster;
mod server;

use std::{sync::Arc, time::Duration};

use dlock_core::{
    Kind, Result,
    driver::{EventSource, Listener, Seat, Seats, Wake},
};
use redis::{PushInfo, cluster_async::ClusterConnection};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use crate::connection::Dialer;

/// Maximum number of channels in one command, or in concurrent commands. More channels at once
/// would block the server for too long.
const MAX_CHANNELS: usize = 1000;

/// The seats of one client's waiters, and the connection that receives their messages.
pub(crate) struct Notifications {
    seats: Seats,
    /// Time at which the connection for commands was reopened, once it has replaced another one.
    reopened_at: watch::Sender<Option<Instant>>,
    limit: Duration,
}

impl Notifications {
    pub(crate) fn of_server(dialer: Arc<Dialer>, events: bool) -> Arc<Self> {
        let (limit, reopened_at) = (dialer.limit(), watch::Sender::new(None));
        let source = server::Messages { dialer, events, reopened_at: reopened_at.subscribe() };
        Self::new(source, reopened_at, limit)
    }

    pub(crate) fn of_cluster(
        cluster: ClusterConnection,
        messages: mpsc::UnboundedReceiver<PushInfo>,
        sharded: bool,
        limit: Duration,
    ) -> Arc<Self> {
        // `reopened_at` is never set, because the client crate receives messages on the connections
        // that it sends commands on.
        Self::new(cluster::Messages { cluster, messages, sharded }, watch::Sender::new(None), limit)
    }

    fn new(
        source: impl EventSource,
        reopened_at: watch::Sender<Option<Instant>>,
        limit: Duration,
    ) -> Arc<Self> {
        Arc::new(Self { seats: Seats::new(source), reopened_at, limit })
    }

    /// Registers a waiter for the messages of a channel, see [`Seats::join`].
    ///
    /// # Errors
    /// If the server does not allow this user to subscribe.
    pub(crate) async fn join(&self, channel: String, arrival: Option<u64>, kind: Kind) -> Result<Seat> {
        self.seats.join(channel, arrival, kind, self.limit).await
    }

    /// Registers a holder for the deletion of its lock's key.
    pub(crate) fn join_as_holder(&self, key: &str, kind: Kind) -> Seat {
        self.seats.join_without_subscription(holder_event(key), None, kind)
    }

    /// Registers a waiter for the deletion of the lock's key by any program. Waiters with an
    /// earlier `arrival` are ahead of it.
    pub(crate) fn join_for_deletion(&self, key: &str, arrival: Option<u64>, kind: Kind) -> Seat {
        self.seats.join_without_subscription(waiter_event(key), arrival, kind)
    }

    /// Records that commands now use a connection that was opened at `opened_at`. An older
    /// connection for messages is replaced, because it may lead to a server that no longer receives
    /// the commands.
    pub(crate) fn note_reopened(&self, opened_at: Instant) {
        self.reopened_at.send_replace(Some(opened_at));
    }
}

/// Returns the event that wakes the holders of a lock when its key is deleted. No channel's name
/// begins with a zero byte.
fn holder_event(key: &str) -> String {
    format!("\0{key}")
}

/// Returns the event that wakes a waiter of a lock when its key is deleted.
fn waiter_event(key: &str) -> String {
    format!("\0\0{key}")
}

/// Wakes waiters for a message of a channel. `0` wakes one waiter, `1` wakes all waiters that can
/// hold the lock together. Redisson publishes only these two messages, and ignores all others.
fn deliver(seats: &Listener, channel: &str, payload: &[u8]) {
    match payload {
        b"0" => seats.wake(channel, Wake::First),
        b"1" => seats.wake(channel, Wake::Sharers),
        _ => {}
    }
}

/// Wakes all holders and one waiter after a key was deleted, has expired or was evicted.
fn deliver_deletion(seats: &Listener, key: &str) {
    seats.wake(&holder_event(key), Wake::All);
    seats.wake(&waiter_event(key), Wake::First);
}
