//! Listening to the server: which messages a client's claims wait for, and whom they wake. A server and a cluster are listened to
//! in two ways.

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

/// The most channels in one command, or in as many at once, so that none holds up the server.
const MOST: usize = 1000;

/// One client's waiters.
pub(crate) struct Hub {
    seats: Seats,
    /// Since when commands go elsewhere.
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
        // The client crate listens wherever it sends.
        Self::new(cluster::Messages { cluster, messages, sharded }, watch::Sender::new(None), limit)
    }

    fn new(source: impl EventSource, moved: watch::Sender<Option<Instant>>, limit: Duration) -> Arc<Self> {
        Arc::new(Self { seats: Seats::new(source), moved, limit })
    }

    /// Takes a seat among the waiters of a channel; see [`Seats::join`].
    ///
    /// # Errors
    /// When the server lets this user not subscribe.
    pub(crate) async fn join(&self, channel: String, arrival: Option<u64>, kind: Kind) -> Result<Seat> {
        self.seats.join(channel, arrival, kind, self.limit).await
    }

    /// A seat of somebody who holds a lock and wants to know when its key is gone.
    pub(crate) fn watch(&self, key: &str, kind: Kind) -> Seat {
        self.seats.sit(held(key), None, kind)
    }

    /// A seat of somebody who waits for a lock's key to be gone, whoever deletes it, behind those whose arrival is earlier.
    pub(crate) fn await_deletion(&self, key: &str, arrival: Option<u64>, kind: Kind) -> Seat {
        self.seats.sit(wanted(key), arrival, kind)
    }

    /// Commands go through a connection that was begun at `since`: a connection for messages that is older may lead to a server
    /// that nobody writes to any more.
    pub(crate) fn commands_moved(&self, since: Instant) {
        self.moved.send_replace(Some(since));
    }
}

/// The event of those who hold the lock of a key: the key is gone. No channel's name begins with a zero byte.
fn held(key: &str) -> String {
    format!("\0{key}")
}

/// The event of those who wait for the lock of a key: the key is gone.
fn wanted(key: &str) -> String {
    format!("\0\0{key}")
}

/// A message has come. `0` may wake one, `1` all; Redisson publishes nothing else, and ignores anything else.
fn deliver(seats: &Listener, channel: &str, payload: &[u8]) {
    match payload {
        b"0" => seats.wake(channel, Wake::One),
        b"1" => seats.wake(channel, Wake::Sharers),
        _ => {}
    }
}

/// A key has been deleted, or has expired or been evicted.
fn deliver_deletion(seats: &Listener, key: &str) {
    seats.wake(&held(key), Wake::All);
    seats.wake(&wanted(key), Wake::One);
}
