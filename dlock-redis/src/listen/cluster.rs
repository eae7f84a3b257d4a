//! Listens to a cluster, whose connections the client crate makes.

use std::{collections::HashSet, time::Duration};

use async_trait::async_trait;
use dlock_core::driver::{EventSource, Listener};
use futures_util::{StreamExt, stream::FuturesUnordered};
use redis::{Msg, PushInfo, PushKind, RedisResult, cluster_async::ClusterConnection};
use tokio::{sync::mpsc, time::sleep};

use super::{MOST, deliver};
use crate::error::{self, STORE};

/// The pause before a subscription that failed is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// The messages of all nodes. After a connection broke, the client crate says so and subscribes again by itself, at other nodes
/// where slots have moved.
pub(super) struct Messages {
    pub(super) cluster: ClusterConnection,
    pub(super) messages: mpsc::UnboundedReceiver<PushInfo>,
    pub(super) sharded: bool,
}

#[async_trait]
impl EventSource for Messages {
    async fn listen(&mut self, seats: &Listener) {
        // Channels are in different slots, so each has a call of its own. A node that is away holds up no channel of another.
        let (mut doing, mut busy) = (FuturesUnordered::new(), HashSet::new());
        loop {
            let (come, gone) = seats.take_changes(MOST.saturating_sub(doing.len()) / 2, &busy);
            let gone = gone.into_iter().map(|channel| (channel, false));
            for (channel, come) in gone.chain(come.into_iter().map(|channel| (channel, true))) {
                busy.insert(channel.clone());
                doing.push(subscribe(self.cluster.clone(), self.sharded, channel, come));
            }
            tokio::select! {
                is_open = seats.has_work() => if !is_open { return },
                push = self.messages.recv() => match push {
                    None => return,
                    Some(push) => hear(seats, push),
                },
                Some((channel, come, outcome)) = doing.next(), if !doing.is_empty() => {
                    busy.remove(&channel);
                    match outcome {
                        Ok(()) if come => seats.mark_subscribed(&[channel]),
                        Ok(()) => {}
                        Err(error) => {
                            let error = error::explain(error);
                            if come {
                                seats.mark_interrupted(&channel);
                            }
                            // After `mark_interrupted`, or a waiter that waits for its subscription would not see the refusal.
                            if !error.is_transient() {
                                seats.refuse(STORE.share(&error));
                            }
                        }
                    }
                }
            }
        }
    }
}

fn hear(seats: &Listener, push: PushInfo) {
    match push {
        PushInfo { kind: PushKind::Disconnection, .. } => seats.mark_all_interrupted(),
        // The server also sends this unasked, when a slot moves to another node. The channel is then subscribed to again there.
        PushInfo { kind: PushKind::SUnsubscribe, data } => {
            let left = data.into_iter().next().and_then(|name| redis::from_redis_value::<String>(name).ok());
            left.iter().for_each(|channel| seats.mark_interrupted(channel));
        }
        push => {
            if let Some(message) = Msg::from_push_info(push) {
                deliver(seats, message.get_channel_name(), message.get_payload_bytes());
            }
        }
    }
}

/// Subscribes to a channel if `come`, else unsubscribes. After a failure the pause is over when this returns.
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
        sleep(PAUSE).await;
    }
    (channel, come, outcome)
}
