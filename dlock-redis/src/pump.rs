//! The one task of a client that listens: from the subscription connection to the hub. A few lines over: a server and a cluster are listened to in two ways.

use std::{
    collections::HashSet,
    future::pending,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use redis::{Msg, PushInfo, PushKind, RedisError, RedisResult, cluster_async::ClusterConnection};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use crate::{
    dial::Dial,
    error,
    hub::{Shared, Wake},
};

/// The first pause before the connection is made again; doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The most channels in one command, so that none holds up the server.
const MOST: usize = 1000;

/// Where messages come from, and where the hub tells that channels have come or gone.
pub(crate) enum Ears {
    Server {
        dial: Arc<Dial>,
        events: bool,
        news: mpsc::UnboundedReceiver<()>,
    },
    Cluster {
        cluster: ClusterConnection,
        messages: mpsc::UnboundedReceiver<PushInfo>,
        sharded: bool,
        news: mpsc::UnboundedReceiver<()>,
    },
}

/// Where the ears are while nobody listens.
pub(crate) type Shelf = Arc<Mutex<Option<Ears>>>;

/// Ears in use. Put back when their pump ends with its runtime, so that another runtime can go on.
pub(crate) struct Borrowed {
    ears: Option<Ears>,
    shelf: Shelf,
    hub: Arc<Shared>,
}

impl Borrowed {
    /// `None` if somebody listens already.
    pub(crate) fn take(shelf: &Shelf, hub: &Arc<Shared>) -> Option<Self> {
        let ears = shelf.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Self { ears: Some(ears), shelf: Arc::clone(shelf), hub: Arc::clone(hub) })
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        *self.shelf.lock().unwrap_or_else(PoisonError::into_inner) = self.ears.take();
        self.hub.deserted();
    }
}

/// Listens until the hub is gone.
pub(crate) async fn pump(mut borrowed: Borrowed) {
    let hub = Arc::clone(&borrowed.hub);
    match &mut borrowed.ears {
        None => {}
        Some(Ears::Server { dial, events, news }) => {
            let mut pause = PAUSE;
            loop {
                match listen(dial, *events, news, &hub, &mut pause).await {
                    End::Hub => return,
                    End::Line(Some(error)) if !error.is_transient() => hub.refused(&why(&error)),
                    End::Line(_) => {}
                }
                hub.missed();
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        Some(Ears::Cluster { cluster, messages, sharded, news }) => {
            listen_to_cluster(cluster, messages, *sharded, news, &hub).await;
        }
    }
}

fn why(error: &dlock_core::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Why listening has ended.
enum End {
    Hub,
    Line(Option<dlock_core::Error>),
}

type Doing<'a> = Pin<Box<dyn Future<Output = RedisResult<Vec<String>>> + Send + 'a>>;

/// Opens a connection and listens until it breaks. The pause is short again once that has worked.
async fn listen(
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
                    Ok(heard) => {
                        *pause = PAUSE;
                        hub.heard(&heard);
                    }
                    Err(error) => return End::Line(Some(error::explain(error))),
                }
            }
        }
    }
}

/// The channels to subscribe to and to leave.
#[derive(Default)]
struct Todo {
    come: HashSet<String>,
    gone: HashSet<String>,
}

impl Todo {
    fn is_empty(&self) -> bool {
        self.come.is_empty() && self.gone.is_empty()
    }

    /// The last word on a channel counts: one that is heard already must not be left for a moment.
    fn add(&mut self, (come, gone): (Vec<String>, Vec<String>)) {
        for channel in come {
            self.gone.remove(&channel);
            self.come.insert(channel);
        }
        for channel in gone {
            self.come.remove(&channel);
            self.gone.insert(channel);
        }
    }

    /// Up to `most`, each alone and whether it has come, but for those that are `busy`.
    fn take_each(&mut self, most: usize, busy: &HashSet<String>) -> Vec<(String, bool)> {
        let gone = self.gone.iter().map(|channel| (channel, false));
        let all = gone.chain(self.come.iter().map(|channel| (channel, true)));
        let free = all.filter(|(channel, _)| !busy.contains(*channel)).take(most);
        let some: Vec<_> = free.map(|(channel, come)| (channel.clone(), come)).collect();
        for (channel, come) in &some {
            if *come {
                self.come.remove(channel)
            } else {
                self.gone.remove(channel)
            };
        }
        some
    }

    /// As much of both as fits into a command.
    fn take(&mut self) -> (Vec<String>, Vec<String>) {
        let take = |set: &mut HashSet<String>| {
            let some: Vec<_> = set.iter().take(MOST).cloned().collect();
            some.iter().for_each(|channel| {
                set.remove(channel);
            });
            some
        };
        (take(&mut self.come), take(&mut self.gone))
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

/// `0` may wake one, `1` all; Redisson publishes nothing else, and ignores anything else.
fn wake(hub: &Shared, channel: &str, payload: &[u8]) {
    match payload {
        b"0" => hub.wake(channel, Wake::One),
        b"1" => hub.wake(channel, Wake::All),
        _ => {}
    }
}

/// A cluster's connection subscribes anew by itself, to other nodes where slots have moved, and says that it broke.
async fn listen_to_cluster(
    cluster: &ClusterConnection,
    messages: &mut mpsc::UnboundedReceiver<PushInfo>,
    sharded: bool,
    news: &mut mpsc::UnboundedReceiver<()>,
    hub: &Shared,
) {
    let mut todo = Todo::default();
    // Each channel is in a slot of its own, and has a call of its own: a node that is away holds up no other's.
    let (mut doing, mut busy) = (FuturesUnordered::new(), HashSet::new());
    loop {
        for (channel, come) in todo.take_each(MOST.saturating_sub(doing.len()), &busy) {
            busy.insert(channel.clone());
            doing.push(subscribe(cluster.clone(), sharded, channel, come));
        }
        tokio::select! {
            told = news.recv() => match told {
                None => return,
                Some(()) => todo.add(hub.changed()),
            },
            push = messages.recv() => match push {
                None => return,
                Some(PushInfo { kind: PushKind::Disconnection, .. }) => {
                    hub.missed();
                    todo.add((hub.all().into_iter().collect(), Vec::new()));
                }
                // Also unasked, when a slot moves to another node; whoever waits there then listens at that one.
                Some(PushInfo { kind: PushKind::SUnsubscribe, data }) => {
                    let left = data.into_iter().next().and_then(|name| redis::from_redis_value::<String>(name).ok());
                    todo.add((left.into_iter().filter(|channel| hub.is_missed(channel)).collect(), Vec::new()));
                }
                Some(push) => if let Some(message) = Msg::from_push_info(push) {
                    wake(hub, message.get_channel_name(), message.get_payload_bytes());
                },
            },
            Some((channel, come, outcome)) = doing.next(), if !doing.is_empty() => {
                busy.remove(&channel);
                match outcome {
                    Ok(()) if come => hub.heard(&[channel]),
                    Ok(()) => {}
                    Err(error) => {
                        let error = error::explain(error);
                        if !error.is_transient() {
                            hub.refused(&why(&error));
                        }
                        if come && hub.is_missed(&channel) {
                            todo.add((vec![channel], Vec::new()));
                        }
                    }
                }
            }
        }
    }
}

/// Comes to a channel or leaves it. What failed has had its pause.
async fn subscribe(
    mut cluster: ClusterConnection,
    sharded: bool,
    channel: String,
    come: bool,
) -> (String, bool, RedisResult<()>) {
    let outcome = match (come, sharded) {
        (true, true) => cluster.ssubscribe(&channel).await,
        (true, false) => cluster.subscribe(&channel).await,
        (false, true) => cluster.sunsubscribe(&channel).await,
        (false, false) => cluster.unsubscribe(&channel).await,
    };
    if outcome.is_err() {
        sleep(LONGEST_PAUSE / 4).await;
    }
    (channel, come, outcome)
}
