//! The pump of a client. It maintains the session and turns events of watched keys into hints.
//!
//! All watches share one stream, which is opened again after each break. `wake/stream.rs` sends the
//! requests of that stream and interprets its messages. `wake/held_keys.rs` has the keys that the
//! client's claims hold, and `wake/observed.rs` the queues that its observers follow.

mod held_keys;
mod observed;
mod stream;

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Error,
    driver::{Backoff, EventSource, Listener, Wake},
};
use tokio::time::{Instant, sleep_until};

use crate::{
    connection::{Connection, ReopenedAt},
    error::STORE,
    session::Session,
};
pub(crate) use held_keys::{HeldKey, HeldKeys};
pub(crate) use observed::ObservedQueue;
use stream::{Stream, Target};

/// Minimum age of a hold whose key is watched. Most holds end earlier.
const WATCH_DELAY: Duration = Duration::from_millis(20);

/// The task of a client.
pub(crate) struct Pump {
    connection: Arc<Connection>,
    session: Arc<Session>,
    held_keys: Arc<HeldKeys>,
    reopened_at: ReopenedAt,
    /// Watches that the server has refused once. The login may have expired, so the client logs in
    /// and requests the watch again. After a second refusal the user lacks rights.
    refused_once: HashSet<Target>,
}

/// Reason why the use of a stream has ended.
enum End {
    /// The client was dropped.
    Client,
    /// The stream could not be opened, broke, or must be replaced.
    Stream(Option<Error>),
}

impl Pump {
    pub(crate) fn new(connection: Arc<Connection>, session: Arc<Session>, held_keys: Arc<HeldKeys>) -> Self {
        let reopened_at = connection.reopened_at();
        Self { connection, session, held_keys, reopened_at, refused_once: HashSet::new() }
    }

    /// Watches keys until the client is dropped.
    async fn watch_keys(&mut self, seats: &Listener) {
        let mut backoff = Backoff::background();
        loop {
            while !seats.has_changes() && !self.held_keys.has_changes() {
                tokio::select! {
                    is_open = seats.wait_for_changes() => if !is_open { return },
                    () = self.held_keys.changed() => {}
                }
            }
            sleep_until(backoff.next_attempt()).await;
            backoff.note_attempt();
            let End::Stream(error) = self.use_stream(seats, &mut backoff).await else { return };
            seats.mark_disconnected();
            self.held_keys.mark_all_unwatched();
            // The waiters get the refusal after `mark_disconnected`. Otherwise a waiter that waits
            // for its watch would miss it.
            if let Some(error) = error.filter(|error| !error.is_transient()) {
                seats.refuse(STORE.share(&error));
            }
        }
    }

    /// Opens a stream, and uses it until it breaks or requests use a newer connection.
    async fn use_stream(&mut self, seats: &Listener, backoff: &mut Backoff) -> End {
        let mut stream = match Stream::new(&self.connection).await {
            Ok(stream) => stream,
            Err(error) => return End::Stream(Some(error)),
        };
        // The time is taken after `Stream::new`, which may have opened the connection itself.
        let started_at = Instant::now();
        // Time at which the keys of new holds are watched.
        let mut watch_holds_at: Option<Instant> = None;
        loop {
            stream.update_waiters(seats);
            if let Err(error) = stream.open().await {
                return End::Stream(Some(error));
            }
            let message = tokio::select! {
                is_open = seats.wait_for_changes() => {
                    if !is_open {
                        return End::Client;
                    }
                    continue;
                }
                () = self.held_keys.changed(), if watch_holds_at.is_none() => {
                    watch_holds_at = Some(Instant::now() + WATCH_DELAY);
                    continue;
                }
                () = sleep_until(watch_holds_at.unwrap_or(started_at)), if watch_holds_at.is_some() => {
                    watch_holds_at = None;
                    stream.update_held_keys(self.held_keys.take_changes(WATCH_DELAY));
                    continue;
                }
                is_open = reopened_after(&mut self.reopened_at, started_at) => {
                    return if is_open { End::Stream(None) } else { End::Client };
                }
                message = stream.next() => message,
            };
            match message {
                Ok(message) => {
                    backoff.note_reply();
                    self.connection.note_reply();
                    let Err(refused) = stream.handle(&message, seats, &self.held_keys) else { continue };
                    let Some(target) = refused.target.filter(|_| !refused.error.is_transient()) else {
                        stream.log_in().await;
                        return End::Stream(Some(refused.error));
                    };
                    if self.refused_once.insert(target.clone()) {
                        stream.log_in().await;
                        return End::Stream(None);
                    }
                    self.refused_once.remove(&target);
                    // Missing rights on one lock do not concern the others. A waiter for this lock
                    // sends another request and gets the refusal. A holder sends a request with
                    // each renewal.
                    if let Target::Awaited(key) = target {
                        seats.wake(&key, Wake::All);
                    }
                }
                Err(error) => return End::Stream(Some(error)),
            }
        }
    }
}

/// Marks all held keys as unwatched when it is dropped, because the pump ends, possibly with its
/// runtime. This is before the kit wakes the holders, so each of them sends a request.
struct UnwatchOnDrop(Arc<HeldKeys>);

impl Drop for UnwatchOnDrop {
    fn drop(&mut self) {
        self.0.mark_all_unwatched();
    }
}

#[async_trait]
impl EventSource for Pump {
    async fn listen(&mut self, seats: &Listener) {
        let session = Arc::clone(&self.session);
        let _unwatch = UnwatchOnDrop(Arc::clone(&self.held_keys));
        tokio::select! {
            () = self.watch_keys(seats) => {}
            () = session.maintain() => {}
        }
    }
}

/// Waits until requests use a connection that was started after `started_at`. Returns `false` if
/// the client was dropped.
async fn reopened_after(reopened_at: &mut ReopenedAt, started_at: Instant) -> bool {
    reopened_at.wait_for(|at| at.is_some_and(|at| at > started_at)).await.is_ok()
}
