//! Receives the messages of one server, on a connection that is reopened after each break.

use std::{collections::HashSet, future::pending, io, pin::Pin, sync::Arc};

use async_trait::async_trait;
use dlock_core::{
    Error,
    driver::{Backoff, EventSource, Listener},
};
use futures_util::StreamExt;
use redis::{Msg, RedisError, RedisResult};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::{MAX_CHANNELS, deliver, deliver_deletion};
use crate::{
    connection::Dialer,
    error::{self, STORE},
};

/// The messages of the server that receives the commands.
pub(super) struct Messages {
    pub(super) dialer: Arc<Dialer>,
    /// Whether `keyspace_events` is on, so the server's events of deleted keys are needed, too.
    pub(super) events: bool,
    /// Time at which the connection for commands was reopened, once it has replaced another one.
    pub(super) reopened_at: watch::Receiver<Option<Instant>>,
}

#[async_trait]
impl EventSource for Messages {
    async fn listen(&mut self, seats: &Listener) {
        let mut backoff = Backoff::background();
        loop {
            sleep_until(backoff.next_attempt()).await;
            backoff.note_attempt();
            let End::Connection(error) = self.listen_once(seats, &mut backoff).await else { return };
            seats.mark_disconnected();
            // The waiters get the refusal after `mark_disconnected`. Otherwise a waiter that waits
            // for its subscription would miss it.
            if let Some(error) = error.filter(|error| !error.is_transient()) {
                seats.refuse(STORE.share(&error));
            }
        }
    }
}

/// Reason why listening has ended.
enum End {
    /// The client was dropped.
    Client,
    /// The connection could not be opened, broke, or must be replaced.
    Connection(Option<Error>),
}

/// A call that changes the subscriptions. Its result is the list of added channels.
type Change<'a> = Pin<Box<dyn Future<Output = RedisResult<Vec<String>>> + Send + 'a>>;

impl Messages {
    /// Opens a connection, and listens until it breaks or commands use a newer connection.
    async fn listen_once(&mut self, seats: &Listener, backoff: &mut Backoff) -> End {
        let opened_at = Instant::now();
        let (sink, mut messages) = match self.dialer.messages().await {
            Ok(connection) => connection.split(),
            Err(error) => return End::Connection(Some(error)),
        };
        let events: &[_] = if self.events { &["del", "expired", "evicted"] } else { &[] };
        let db = self.dialer.db();
        let mut event_channels: Vec<_> =
            events.iter().map(|event| format!("__keyevent@{db}__:{event}")).collect();
        let mut change: Option<Change<'_>> = None;
        loop {
            if change.is_none() {
                let (mut added, removed) = seats.take_changes(MAX_CHANNELS, &HashSet::new());
                added.append(&mut event_channels);
                if !added.is_empty() || !removed.is_empty() {
                    let (mut sink, limit) = (sink.clone(), self.dialer.limit());
                    change = Some(Box::pin(async move {
                        let both = async {
                            if !removed.is_empty() {
                                sink.unsubscribe(&removed).await?;
                            }
                            if !added.is_empty() {
                                sink.subscribe(&added).await?;
                            }
                            Ok(added)
                        };
                        timeout(limit, both)
                            .await
                            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
                    }));
                }
            }
            tokio::select! {
                is_open = seats.wait_for_changes() => if !is_open { return End::Client },
                is_open = reopened_after(&mut self.reopened_at, opened_at) => {
                    return if is_open { End::Connection(None) } else { End::Client };
                }
                message = messages.next() => match message {
                    Some(message) => receive(seats, &message),
                    None => return End::Connection(None),
                },
                result = finish(&mut change) => {
                    change = None;
                    match result {
                        Ok(added) => {
                            backoff.note_reply();
                            seats.mark_subscribed(&added);
                        }
                        Err(error) => return End::Connection(Some(error::explain(error))),
                    }
                }
            }
        }
    }
}

/// Waits until commands use a connection that was opened after `opened_at`. Returns `false` if the
/// client was dropped.
async fn reopened_after(reopened_at: &mut watch::Receiver<Option<Instant>>, opened_at: Instant) -> bool {
    reopened_at.wait_for(|at| at.is_some_and(|at| at > opened_at)).await.is_ok()
}

/// Waits for the change of the subscriptions, or forever if there is none.
async fn finish(change: &mut Option<Change<'_>>) -> Result<Vec<String>, RedisError> {
    match change {
        Some(change) => change.await,
        None => pending().await,
    }
}

fn receive(seats: &Listener, message: &Msg) {
    match message.get_channel_name() {
        event if event.starts_with("__keyevent@") => {
            if let Ok(key) = std::str::from_utf8(message.get_payload_bytes()) {
                deliver_deletion(seats, key);
            }
        }
        channel => deliver(seats, channel, message.get_payload_bytes()),
    }
}
