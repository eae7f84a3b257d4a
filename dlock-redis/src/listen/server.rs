//! Listens to one server, on a connection that is opened again when it breaks.

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

use super::{MOST, deliver, deliver_deletion};
use crate::{
    connection::Dial,
    error::{self, STORE},
};

/// The messages of the server that commands go to.
pub(super) struct Messages {
    pub(super) dial: Arc<Dial>,
    /// Whether to subscribe to the server's events of keys that are gone, too.
    pub(super) events: bool,
    /// When the connection for commands was begun, if it has replaced another.
    pub(super) moved: watch::Receiver<Option<Instant>>,
}

#[async_trait]
impl EventSource for Messages {
    async fn listen(&mut self, seats: &Listener) {
        let mut backoff = Backoff::background();
        loop {
            sleep_until(backoff.next_attempt()).await;
            backoff.note_attempt();
            let End::Line(error) = self.listen_once(seats, &mut backoff).await else { return };
            seats.mark_disconnected();
            // After `mark_disconnected`, or a waiter that waits for its subscription would not see the refusal.
            if let Some(error) = error.filter(|error| !error.is_transient()) {
                seats.refuse(STORE.share(&error));
            }
        }
    }
}

/// Why listening has ended.
enum End {
    /// The client is gone.
    Client,
    /// The connection could not be opened, broke, or is to be replaced.
    Line(Option<Error>),
}

type Doing<'a> = Pin<Box<dyn Future<Output = RedisResult<Vec<String>>> + Send + 'a>>;

impl Messages {
    /// Opens a connection, and listens until it breaks or commands go through a newer connection.
    async fn listen_once(&mut self, seats: &Listener, backoff: &mut Backoff) -> End {
        let began = Instant::now();
        let (sink, mut messages) = match self.dial.messages().await {
            Ok(connection) => connection.split(),
            Err(error) => return End::Line(Some(error)),
        };
        let of_keys: &[_] = if self.events { &["del", "expired", "evicted"] } else { &[] };
        let mut of_keys: Vec<_> =
            of_keys.iter().map(|event| format!("__keyevent@{}__:{event}", self.dial.db())).collect();
        let mut doing: Option<Doing<'_>> = None;
        loop {
            if doing.is_none() {
                let (mut come, gone) = seats.take_changes(MOST, &HashSet::new());
                come.append(&mut of_keys);
                if !come.is_empty() || !gone.is_empty() {
                    let (mut sink, limit) = (sink.clone(), self.dial.limit());
                    doing = Some(Box::pin(async move {
                        let both = async {
                            if !gone.is_empty() {
                                sink.unsubscribe(&gone).await?;
                            }
                            if !come.is_empty() {
                                sink.subscribe(&come).await?;
                            }
                            Ok(come)
                        };
                        timeout(limit, both)
                            .await
                            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
                    }));
                }
            }
            tokio::select! {
                is_open = seats.has_work() => if !is_open { return End::Client },
                is_open = moved_after(&mut self.moved, began) => {
                    return if is_open { End::Line(None) } else { End::Client };
                }
                message = messages.next() => match message {
                    Some(message) => hear(seats, &message),
                    None => return End::Line(None),
                },
                done = done(&mut doing) => {
                    doing = None;
                    match done {
                        Ok(heard) => {
                            backoff.note_answer();
                            seats.mark_subscribed(&heard);
                        }
                        Err(error) => return End::Line(Some(error::explain(error))),
                    }
                }
            }
        }
    }
}

/// Waits until commands go through a connection that was begun after `began`. `false` if the client is gone.
async fn moved_after(moved: &mut watch::Receiver<Option<Instant>>, began: Instant) -> bool {
    moved.wait_for(|since| since.is_some_and(|since| since > began)).await.is_ok()
}

async fn done(doing: &mut Option<Doing<'_>>) -> Result<Vec<String>, RedisError> {
    match doing {
        Some(doing) => doing.await,
        None => pending().await,
    }
}

fn hear(seats: &Listener, message: &Msg) {
    match message.get_channel_name() {
        event if event.starts_with("__keyevent@") => {
            if let Ok(key) = std::str::from_utf8(message.get_payload_bytes()) {
                deliver_deletion(seats, key);
            }
        }
        channel => deliver(seats, channel, message.get_payload_bytes()),
    }
}
