//! Listening to one server, on a connection that is opened anew when it breaks.

use std::{collections::HashSet, future::pending, pin::Pin, time::Duration};

use futures_util::StreamExt;
use redis::{Msg, RedisError, RedisResult};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use super::{LONGEST_PAUSE, Todo, wake, why};
use crate::{dial::Dial, error, hub::Shared};

/// The first pause before the connection is made again; doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(50);

/// Listens until the hub is gone.
pub(super) async fn listen(dial: &Dial, events: bool, news: &mut mpsc::UnboundedReceiver<()>, hub: &Shared) {
    let mut pause = PAUSE;
    loop {
        let End::Line(error) = listen_once(dial, events, news, hub, &mut pause).await else { return };
        hub.missed();
        // Behind it, or whoever waits to be heard would not see it.
        if let Some(error) = error.filter(|error| !error.is_transient()) {
            hub.refused(&why(&error));
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Why listening has ended.
enum End {
    Hub,
    Line(Option<dlock_core::Error>),
}

type Doing<'a> = Pin<Box<dyn Future<Output = RedisResult<Vec<String>>> + Send + 'a>>;

/// Opens a connection and listens until it breaks. The pause is short again once that has worked.
async fn listen_once(
    dial: &Dial,
    events: bool,
    news: &mut mpsc::UnboundedReceiver<()>,
    hub: &Shared,
    pause: &mut Duration,
) -> End {
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
                Some(()) => todo.add(hub.changed()),
            },
            message = messages.next() => match message {
                Some(message) => deliver(hub, &message),
                None => return End::Line(None),
            },
            done = done(&mut doing) => {
                doing = None;
                match done {
                    Ok(mut heard) => {
                        *pause = PAUSE;
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
