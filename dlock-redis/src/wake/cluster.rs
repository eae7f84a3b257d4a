//! Receives the messages of a cluster, whose connections the client crate makes.

use std::{collections::HashSet, time::Duration};

use async_trait::async_trait;
use dlock_core::driver::{EventSource, Listener};
use futures_util::{StreamExt, stream::FuturesUnordered};
use redis::{Msg, PushInfo, PushKind, RedisResult, cluster_async::ClusterConnection};
use tokio::{sync::mpsc, time::sleep};

use super::{MAX_CHANNELS, deliver};
use crate::error::{self, STORE};

/// Pause before a failed subscription is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The messages of all nodes. The client crate reports when a connection breaks, and then
/// subscribes again by itself, also when slots have moved to other nodes.
pub(super) struct Messages {
    pub(super) cluster: ClusterConnection,
    pub(super) messages: mpsc::UnboundedReceiver<PushInfo>,
    pub(super) sharded: bool,
}

#[async_trait]
impl EventSource for Messages {
    async fn listen(&mut self, seats: &Listener) {
        // Channels are in different slots, so each has its own call. An unreachable node then
        // delays no channel of another node.
        let (mut calls, mut busy) = (FuturesUnordered::new(), HashSet::new());
        loop {
            let (added, removed) = seats.take_changes(MAX_CHANNELS.saturating_sub(calls.len()) / 2, &busy);
            let removed = removed.into_iter().map(|channel| (channel, false));
            for (channel, is_added) in removed.chain(added.into_iter().map(|channel| (channel, true))) {
                busy.insert(channel.clone());
                calls.push(change(self.cluster.clone(), self.sharded, channel, is_added));
            }
            tokio::select! {
                is_open = seats.wait_for_changes() => if !is_open { return },
                push = self.messages.recv() => match push {
                    None => return,
                    Some(push) => receive(seats, push),
                },
                Some((channel, is_added, result)) = calls.next(), if !calls.is_empty() => {
                    busy.remove(&channel);
                    match result {
                        Ok(()) if is_added => seats.mark_subscribed(&[channel]),
                        Ok(()) => {}
                        Err(error) => {
                            let error = error::explain(error);
                            if is_added {
                                seats.mark_interrupted(&channel);
                            }
                            // The waiters get the refusal after `mark_interrupted`. Otherwise a
                            // waiter that waits for its subscription would miss it.
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

fn receive(seats: &Listener, push: PushInfo) {
    match push {
        PushInfo { kind: PushKind::Disconnection, .. } => seats.mark_all_interrupted(),
        // The server also sends this without a request, when a slot moves to another node. The
        // source then subscribes to the channel again, at that node.
        PushInfo { kind: PushKind::SUnsubscribe, data } => {
            let channel =
                data.into_iter().next().and_then(|name| redis::from_redis_value::<String>(name).ok());
            channel.iter().for_each(|channel| seats.mark_interrupted(channel));
        }
        push => {
            if let Some(message) = Msg::from_push_info(push) {
                deliver(seats, message.get_channel_name(), message.get_payload_bytes());
            }
        }
    }
}

/// Subscribes to a channel if `is_added`, and unsubscribes otherwise. After a failure it returns
/// only after [`RETRY_PAUSE`].
async fn change(
    mut cluster: ClusterConnection,
    sharded: bool,
    channel: String,
    is_added: bool,
) -> (String, bool, RedisResult<()>) {
    let result = match (is_added, sharded) {
        (true, true) => cluster.ssubscribe(&channel).await,
        (true, false) => cluster.subscribe(&channel).await,
        (false, true) => cluster.sunsubscribe(&channel).await,
        (false, false) => cluster.unsubscribe(&channel).await,
    };
    if result.is_err() {
        sleep(RETRY_PAUSE).await;
    }
    (channel, is_added, result)
}
