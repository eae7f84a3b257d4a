//! Listens to the store: which messages a client's claims wait for, and which claims a message wakes. `server.rs` listens to one
//! server, `cluster.rs` to a cluster.

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

use crate::connection::Dial;

/// The most channels in one command, or in commands that are under way at once, so that they do not hold up the server.
const MOST: usize = 1000;

/// The seats of one client's waiters, and the source of the messages that wake them.
pub(crate) struct Hub {
    seats: Seats,
    /// When the connection for commands was begun, if it has replaced another.
    moved: watch::Sender<Option<Instant>>,
    limit: Duration,
}

impl Hub {
    pub(crate) fn of_server(dial: Arc<Dial>, events: bool) -> Arc<Self> {
        let (limit, moved) = (dial.limit(), watch::Sender::new(None));
        let source = server::Messages { dial, events, moved: moved.subscribe() };
        Self::new(source, moved, limit)
    }

    pub(crate) fn of_cluster(
        cluster: ClusterConnection,
        messages: mpsc::UnboundedReceiver<PushInfo>,
        sharded: bool,
        limit: Duration,
    ) -> Arc<Self> {
        // Nothing is ever sent to `moved`: the client crate listens on the connections that it sends commands on.
        Self::new(cluster::Messages { cluster, messages, sharded }, watch::Sender::new(None), limit)
    }

    fn new(source: impl EventSource, moved: watch::Sender<Option<Instant>>, limit: Duration) -> Arc<Self> {
        Arc::new(Self { seats: Seats::new(source), moved, limit })
    }

    /// Takes a seat among the waiters of a channel; see [`Seats::join`].
    ///
    /// # Errors
    /// When the server does not let this user subscribe.
    pub(crate) async fn join(&self, channel: String, arrival: Option<u64>, kind: Kind) -> Result<Seat> {
        self.seats.join(channel, arrival, kind, self.limit).await
    }

    /// A seat for a holder, which is rung when the lock's key is gone.
    pub(crate) fn watch(&self, key: &str, kind: Kind) -> Seat {
        self.seats.join_without_subscription(held(key), None, kind)
    }

    /// A seat for a waiter, which is rung when the lock's key is gone, whoever deletes it. It is behind seats of earlier arrival.
    pub(crate) fn await_deletion(&self, key: &str, arrival: Option<u64>, kind: Kind) -> Seat {
        self.seats.join_without_subscription(wanted(key), arrival, kind)
    }

    /// Tells that commands now go through a connection that was begun at `since`. A connection for messages that is older is
    /// replaced: it may lead to a server that is no longer written to.
    pub(crate) fn commands_moved(&self, since: Instant) {
        self.moved.send_replace(Some(since));
    }
}

/// The event that wakes the holders of a lock when its key is gone. No channel's name begins with a zero byte.
fn held(key: &str) -> String {
    format!("\0{key}")
}

/// The event that wakes a waiter of a lock when its key is gone.
fn wanted(key: &str) -> String {
    format!("\0\0{key}")
}

/// Wakes waiters for a message of a channel. `0` wakes one, `1` all that can hold together. Redisson publishes nothing else, and
/// ignores anything else.
fn deliver(seats: &Listener, channel: &str, payload: &[u8]) {
    match payload {
        b"0" => seats.wake(channel, Wake::First),
        b"1" => seats.wake(channel, Wake::Sharers),
        _ => {}
    }
}

/// Wakes holders and a waiter when a key has been deleted, has expired or was evicted.
fn deliver_deletion(seats: &Listener, key: &str) {
    seats.wake(&held(key), Wake::All);
    seats.wake(&wanted(key), Wake::First);
}
