//! Listens for the notifications that wake the waiters of a client.
//!
//! The client has one channel. A notification on it has the id of a claim that holds the lock now,
//! or that has to poll. The server wakes every listening session for each notification in the
//! database, so a client listens only while it has waiters, on a connection of its own.
//!
//! After a failover, the old primary may keep this connection open. The client therefore connects
//! again when its calls have moved to another server, or when this server accepts no writes any
//! more.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use dlock_core::{
    Error, Result,
    driver::{Backoff, EventSource, Listener, Wake},
};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_postgres::AsyncMessage;

use crate::{
    connection::{Connection, Dial, Opened, drive, first_row, listen, text_column},
    error::{self, STORE},
    sql::DESCRIBE_SESSION,
};

/// Event of the subscription that all waiters of a client share.
pub(crate) const LISTENING: &str = "listening";

/// Time without waiters after which the client ceases to listen.
const LINGER: Duration = Duration::from_secs(5);

/// Interval between attempts to listen while notifications do not arrive. A connection pooler is
/// rarely replaced by a server.
const LISTEN_RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Interval between checks of the connection, whose end may go unnoticed, and of its server.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The connection of a client for notifications.
pub(crate) struct Notifications {
    dial: Dial,
    /// The connection for calls, on which the probe is sent.
    connection: Arc<Connection>,
    channel: String,
    listening_state: Arc<ListeningState>,
    /// Whether the client has listened since its waiters were last woken to poll.
    has_listened: bool,
}

/// Whether notifications arrive at a client.
#[derive(Default)]
pub(crate) struct ListeningState {
    is_listening: AtomicBool,
    /// Time of the next attempt to listen, if notifications do not arrive.
    retry_at: Mutex<Option<Instant>>,
}

impl ListeningState {
    /// Returns whether the client listens now.
    pub(crate) fn is_listening(&self) -> bool {
        self.is_listening.load(Relaxed)
    }

    /// Returns whether a waiter has to poll without an attempt to listen.
    pub(crate) fn lacks_notifications(&self) -> bool {
        self.retry_at.lock().is_some_and(|until| Instant::now() < until)
    }
}

/// Reason why the use of a connection has ended.
enum End {
    /// The client was dropped.
    Client,
    /// The client has had no waiters for some time.
    Unused,
}

impl Notifications {
    pub(crate) fn new(
        dial: Dial,
        connection: Arc<Connection>,
        channel: String,
        listening_state: Arc<ListeningState>,
    ) -> Self {
        Self { dial, connection, channel, listening_state, has_listened: false }
    }

    /// Opens a connection that listens, and checks that notifications arrive on it.
    async fn open(&self, seats: &Listener) -> Result<Opened> {
        let mut opened = self.dial.open().await?;
        let limit = self.dial.timeout();
        let on_message = |message: &AsyncMessage| handle(message, seats);
        if listen(&self.connection, &mut opened, &self.channel, limit, on_message).await? {
            return Ok(opened);
        }
        Err(STORE.refused(error::NO_NOTIFICATIONS))
    }

    /// Listens on one connection until it breaks.
    async fn listen_once(
        &mut self,
        seats: &Listener,
        added: &[String],
        backoff: &mut Backoff,
    ) -> Result<End> {
        let mut newest_server = self.connection.newest_server();
        let Opened { client, mut messages, endpoint, .. } = self.open(seats).await?;
        backoff.note_reply();
        let _listening = ListeningMark::new(&self.listening_state.is_listening);
        self.has_listened = true;
        seats.mark_subscribed(added);
        let mut check_at = Instant::now() + CHECK_INTERVAL;
        let mut unused_at: Option<Instant> = None;
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(Ok(message)) => handle(&message, seats),
                    Some(Err(error)) => return Err(error::explain(error)),
                    None => return Err(disconnected()),
                },
                is_open = seats.wait_for_changes() => {
                    if !is_open {
                        return Ok(End::Client);
                    }
                    let (added, removed) = seats.take_changes(usize::MAX, &HashSet::new());
                    if !added.is_empty() {
                        unused_at = None;
                        seats.mark_subscribed(&added);
                    } else if !removed.is_empty() {
                        unused_at = Some(Instant::now() + LINGER);
                    }
                }
                () = sleep_until(unused_at.unwrap_or(check_at)), if unused_at.is_some() => {
                    return Ok(End::Unused);
                }
                Ok(()) = newest_server.changed() => {
                    if *newest_server.borrow_and_update() != Some(endpoint.server) {
                        return Err(STORE.unavailable("the calls of the client have moved to another server"));
                    }
                }
                () = sleep_until(check_at) => {
                    let check = STORE.with_timeout(self.dial.timeout(), first_row(&client, DESCRIBE_SESSION));
                    let row = drive(&mut messages, check, |message| handle(message, seats)).await?;
                    if text_column(&row, "is_read_only") == "true" {
                        return Err(STORE.unwritable(error::READ_ONLY));
                    }
                    check_at = Instant::now() + CHECK_INTERVAL;
                }
            }
        }
    }
}

/// Pauses. Returns `false` at once when the client is dropped.
async fn pause_until(until: Instant, seats: &Listener) -> bool {
    loop {
        match timeout_at(until, seats.wait_for_changes()).await {
            Ok(false) => return false,
            Ok(true) => {}
            Err(_) => return true,
        }
    }
}

/// Wakes the waiter of a notification.
fn handle(message: &AsyncMessage, seats: &Listener) {
    if let AsyncMessage::Notification(notification) = message {
        seats.wake(notification.payload(), Wake::All);
    }
}

fn disconnected() -> Error {
    STORE.unavailable("the connection for notifications has ended")
}

/// Marks the client as listening until it is dropped, also with its runtime.
struct ListeningMark<'a>(&'a AtomicBool);

impl<'a> ListeningMark<'a> {
    fn new(is_listening: &'a AtomicBool) -> Self {
        is_listening.store(true, Relaxed);
        Self(is_listening)
    }
}

impl Drop for ListeningMark<'_> {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

#[async_trait]
impl EventSource for Notifications {
    async fn listen(&mut self, seats: &Listener) {
        let mut backoff = Backoff::background();
        loop {
            let (added, _) = seats.take_changes(usize::MAX, &HashSet::new());
            if added.is_empty() {
                if !seats.wait_for_changes().await {
                    return;
                }
                continue;
            }
            sleep_until(backoff.next_attempt()).await;
            backoff.note_attempt();
            match self.listen_once(seats, &added, &mut backoff).await {
                Ok(End::Client) => return,
                Ok(End::Unused) => {}
                Err(error) => {
                    seats.mark_disconnected();
                    // The waiters get the refusal after `mark_disconnected`. Otherwise a waiter
                    // that joins in between would miss it.
                    let retry_at = (!error.is_transient()).then(|| Instant::now() + LISTEN_RETRY_INTERVAL);
                    if retry_at.is_some() {
                        *self.listening_state.retry_at.lock() = retry_at;
                        seats.refuse(STORE.share(&error));
                    }
                    // Waiters poll until the client listens.
                    if std::mem::take(&mut self.has_listened) || retry_at.is_some() {
                        seats.wake(LISTENING, Wake::All);
                    }
                    if let Some(until) = retry_at
                        && !pause_until(until, seats).await
                    {
                        return;
                    }
                }
            }
        }
    }
}
