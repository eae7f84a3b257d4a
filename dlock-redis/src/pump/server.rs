//! Listening to one server, on a connection that is opened anew when it breaks.

use std::{collections::HashSet, future::pending, pin::Pin};

use futures_util::StreamExt;
use redis::{Msg, RedisError, RedisResult};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};

use super::{Todo, wake, why};
use crate::{
    dial::Dial,
    error,
    hub::{News, Shared},
    pace::Pace,
};

/// Listens until the hub is gone.
pub(super) async fn listen(
    dial: &Dial,
    events: bool,
    news: &mut mpsc::UnboundedReceiver<News>,
    hub: &Shared,
) {
    let mut pace = Pace::calm();
    loop {
        sleep_until(pace.next()).await;
        pace.note_attempt();
        let End::Line(error) = listen_once(dial, events, news, hub, &mut pace).await else { return };
        hub.missed();
        // After `missed`, which marks the channels as not subscribed: a waiter that waits for its subscription would not see
        // the refusal.
        if let Some(error) = error.filter(|error| !error.is_transient()) {
            hub.refused(&why(&error));
        }
    }
}

/// Why listening has ended.
enum End {
    Hub,
    Line(Option<dlock_core::Error>),
}

type Doing<'a> = Pin<Box<dyn Future<Output = RedisResult<Vec<String>>> + Send + 'a>>;

/// Opens a connection and listens until it breaks, or commands go elsewhere.
async fn listen_once(
    dial: &Dial,
    events: bool,
    news: &mut mpsc::UnboundedReceiver<News>,
    hub: &Shared,
    pace: &mut Pace,
) -> End {
    let began = Instant::now();
    let (sink, mut messages) = match dial.messages().await {
        Ok(connection) => connection.split(),
        Err(error) => return End::Line(Some(error)),
    };
    let mut todo = Todo { come: hub.all(), gone: HashSet::new() };
    if events {
        todo.come
            .extend(["del", "expired", "evicted"].map(|event| format!("__keyevent@{}__:{event}", dial.db())));
    }
    let mut doing: Option<Doing<'_>> = None;
    loop {
        if doing.is_none() && !todo.is_empty() {
            let (mut sink, limit, (come, gone)) = (sink.clone(), dial.limit(), todo.take());
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
                    .unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
            }));
        }
        tokio::select! {
            told = news.recv() => match told {
                None => return End::Hub,
                Some(News::Channels) => todo.add(hub.changed()),
                Some(News::CommandsMoved(since)) if since > began => return End::Line(None),
                Some(News::CommandsMoved(_)) => {}
            },
            message = messages.next() => match message {
                Some(message) => deliver(hub, &message),
                None => return End::Line(None),
            },
            done = done(&mut doing) => {
                doing = None;
                match done {
                    Ok(mut heard) => {
                        pace.note_answer();
                        // What is about to be left is not heard, though somebody has come back to it.
                        todo.add(hub.changed());
                        heard.retain(|channel| !todo.gone.contains(channel));
                        hub.heard(&heard);
                    }
                    Err(error) => return End::Line(Some(error::explain(error))),
                }
            }
        }
    }
}

async fn done(doing: &mut Option<Doing<'_>>) -> Result<Vec<String>, RedisError> {
    match doing {
        Some(doing) => doing.await,
        None => pending().await,
    }
}

fn deliver(hub: &Shared, message: &Msg) {
    match message.get_channel_name() {
        event if event.starts_with("__keyevent@") => {
            if let Ok(key) = std::str::from_utf8(message.get_payload_bytes()) {
                hub.gone(key);
            }
        }
        channel => wake(hub, channel, message.get_payload_bytes()),
    }
}
