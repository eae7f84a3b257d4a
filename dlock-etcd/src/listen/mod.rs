//! The client's one task: keeps the session, and watches keys on one stream, which is opened again when it breaks.

mod alive;
mod stream;

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Error,
    driver::{Backoff, EventSource, Listener, Wake},
};
use tokio::time::{Instant, sleep_until};

use crate::{
    client::{Held, Session},
    connection::{Connection, Moved},
    error::STORE,
};
use stream::{Stream, Target};

/// How long a key must have been held before it is watched: most holds are over by then.
const SETTLE: Duration = Duration::from_millis(20);

pub(crate) struct Listening {
    connection: Arc<Connection>,
    session: Arc<Session>,
    held: Arc<Held>,
    moved: Moved,
    /// Watches that the server has refused once. An expired login is one reason, so the client logs in and asks again. A
    /// second refusal means that the user lacks rights.
    suspects: HashSet<Target>,
}

/// Why listening has ended.
enum End {
    /// The client is gone.
    Client,
    /// The stream could not be opened, broke, or is to be replaced.
    Stream(Option<Error>),
}

impl Listening {
    pub(crate) fn new(connection: Arc<Connection>, session: Arc<Session>, held: Arc<Held>) -> Self {
        let moved = connection.moved();
        Self { connection, session, held, moved, suspects: HashSet::new() }
    }

    async fn hear_of_keys(&mut self, seats: &Listener) {
        let mut backoff = Backoff::background();
        loop {
            while !seats.has_changes() && !self.held.is_stirred() {
                tokio::select! {
                    is_open = seats.has_work() => if !is_open { return },
                    () = self.held.stirred() => {}
                }
            }
            sleep_until(backoff.next_attempt()).await;
            backoff.note_attempt();
            let End::Stream(error) = self.hear_on_one_stream(seats, &mut backoff).await else { return };
            seats.mark_disconnected();
            self.held.mark_all_missed();
            // After `mark_disconnected`, or a waiter that waits for its watch would not see the refusal.
            if let Some(error) = error.filter(|error| !error.is_transient()) {
                seats.refuse(STORE.share(&error));
            }
        }
    }

    /// Opens a stream, and listens until it breaks or requests go through a newer connection.
    async fn hear_on_one_stream(&mut self, seats: &Listener, backoff: &mut Backoff) -> End {
        let mut stream = match Stream::new(&self.connection).await {
            Ok(stream) => stream,
            Err(error) => return End::Stream(Some(error)),
        };
        // After that: the task itself may have opened the connection just now.
        let began = Instant::now();
        // When the keys are watched that claims hold since a moment.
        let mut settled: Option<Instant> = None;
        loop {
            stream.order_events(seats);
            if let Err(error) = stream.open().await {
                return End::Stream(Some(error));
            }
            let told = tokio::select! {
                is_open = seats.has_work() => {
                    if !is_open {
                        return End::Client;
                    }
                    continue;
                }
                () = self.held.stirred(), if settled.is_none() => {
                    settled = Some(Instant::now() + SETTLE);
                    continue;
                }
                () = sleep_until(settled.unwrap_or(began)), if settled.is_some() => {
                    settled = None;
                    stream.order_held(self.held.take(SETTLE));
                    continue;
                }
                is_open = moved_after(&mut self.moved, began) => {
                    return if is_open { End::Stream(None) } else { End::Client };
                }
                told = stream.next() => told,
            };
            match told {
                Ok(told) => {
                    backoff.note_answer();
                    self.connection.note_answer();
                    let Err(refused) = stream.hear(&told, seats, &self.held) else { continue };
                    let Some(target) = refused.target.filter(|_| !refused.error.is_transient()) else {
                        stream.log_in().await;
                        return End::Stream(Some(refused.error));
                    };
                    if self.suspects.insert(target.clone()) {
                        stream.log_in().await;
                        return End::Stream(None);
                    }
                    self.suspects.remove(&target);
                    // A right that the user lacks on one lock does not concern the others. Whoever waits for this one asks the
                    // server, and gets its refusal. A holder asks with each renewal.
                    if let Target::Event(key) = target {
                        seats.wake(&key, Wake::All);
                    }
                }
                Err(error) => return End::Stream(Some(error)),
            }
        }
    }
}

/// The end of the task, maybe with its runtime: nobody watches then, and holders must ask. Before the kit wakes them.
struct EndOf(Arc<Held>);

impl Drop for EndOf {
    fn drop(&mut self) {
        self.0.mark_all_missed();
    }
}

#[async_trait]
impl EventSource for Listening {
    async fn listen(&mut self, seats: &Listener) {
        let session = Arc::clone(&self.session);
        let _end = EndOf(Arc::clone(&self.held));
        tokio::select! {
            () = self.hear_of_keys(seats) => {}
            () = alive::stay_alive(&session) => {}
        }
    }
}

/// Waits until requests go through a connection that was begun after `began`. `false` if the client is gone.
async fn moved_after(moved: &mut Moved, began: Instant) -> bool {
    moved.wait_for(|since| since.is_some_and(|since| since > began)).await.is_ok()
}
