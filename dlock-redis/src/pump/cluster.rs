//! Listening to a cluster, whose connection comes from the client crate.

use std::collections::HashSet;

use futures_util::{StreamExt, stream::FuturesUnordered};
use redis::{Msg, PushInfo, PushKind, RedisResult, cluster_async::ClusterConnection};
use tokio::{sync::mpsc, time::sleep};

use super::{LONGEST_PAUSE, MOST, Todo, wake, why};
use crate::{
    error,
    hub::{News, Shared},
};

/// A cluster's connection subscribes anew by itself, to other nodes where slots have moved, and says that it broke.
pub(super) async fn listen(
    cluster: &ClusterConnection,
    messages: &mut mpsc::UnboundedReceiver<PushInfo>,
    sharded: bool,
    news: &mut mpsc::UnboundedReceiver<News>,
    hub: &Shared,
) {
    // Another pump may have been here: what it had heard counts no more, what it had begun is not done.
    let mut todo = Todo::default();
    all_anew(&mut todo, hub);
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
                Some(News::Channels) => todo.add(hub.changed()),
                // The client crate listens wherever it sends.
                Some(News::CommandsMoved(_)) => {}
            },
            push = messages.recv() => match push {
                None => return,
                Some(PushInfo { kind: PushKind::Disconnection, .. }) => {
                    hub.missed();
                    all_anew(&mut todo, hub);
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
                    Ok(()) if come => {
                        // What is about to be left is not heard, though somebody has come back to it.
                        todo.add(hub.changed());
                        if !todo.gone.contains(&channel) {
                            hub.heard(&[channel]);
                        }
                    }
                    Ok(()) => {}
                    Err(error) => {
                        let error = error::explain(error);
                        if come && hub.is_missed(&channel) {
                            todo.add((vec![channel], Vec::new()));
                        }
                        // Behind it, or whoever waits to be heard would not see it.
                        if !error.is_transient() {
                            hub.refused(&why(&error));
                        }
                    }
                }
            }
        }
    }
}

/// All channels are to be subscribed to again, and those that have gone to be left, which `all` forgets.
fn all_anew(todo: &mut Todo, hub: &Shared) {
    todo.add(hub.changed());
    todo.add((hub.all().into_iter().collect(), Vec::new()));
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
