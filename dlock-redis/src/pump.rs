//! The one task of a client that listens: from the subscription connection to the hub. A server and a cluster are listened to
//! in two ways.

mod cluster;
mod server;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use redis::{PushInfo, cluster_async::ClusterConnection};
use tokio::sync::mpsc;

use crate::{
    dial::Dial,
    hub::{News, Shared, Wake},
};

/// The longest pause before what failed is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The most channels in one command, or in as many at once, so that none holds up the server.
const MOST: usize = 1000;

/// Where messages come from, and where the hub tells what is new.
pub(crate) enum Ears {
    Server {
        dial: Arc<Dial>,
        events: bool,
        news: mpsc::UnboundedReceiver<News>,
    },
    Cluster {
        cluster: ClusterConnection,
        messages: mpsc::UnboundedReceiver<PushInfo>,
        sharded: bool,
        news: mpsc::UnboundedReceiver<News>,
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
        Some(Ears::Server { dial, events, news }) => server::listen(dial, *events, news, &hub).await,
        Some(Ears::Cluster { cluster, messages, sharded, news }) => {
            cluster::listen(cluster, messages, *sharded, news, &hub).await;
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

/// `0` may wake one, `1` all; Redisson publishes nothing else, and ignores anything else.
fn wake(hub: &Shared, channel: &str, payload: &[u8]) {
    match payload {
        b"0" => hub.wake(channel, Wake::One),
        b"1" => hub.wake(channel, Wake::All),
        _ => {}
    }
}

fn why(error: &dlock_core::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
