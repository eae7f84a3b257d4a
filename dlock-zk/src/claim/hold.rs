//! Watches the node of a held claim, and verifies the hold for a renewal.

use std::sync::Arc;

use dlock_core::{
    Result,
    driver::{Renewal, Request},
};
use tokio::time::timeout;
use zookeeper_client::{Client as ZkClient, Error as ZkError, OneshotWatcher};

use super::ZooKeeperClaim;
use crate::{
    error,
    keys::{self, Node},
    session::{Record, Session, WatchedPath},
    wake::Watch,
};

/// Divisor of the ttl. A renewal waits at most this part of the ttl for the read of the claim's own
/// node. Without a reply by then it relies on the heartbeats.
const READ_WAIT_DIVISOR: u32 = 12;

/// Result of a read of the claim's own node.
pub(super) enum OwnNode {
    Deleted,
    /// The node exists, and the session has no room to watch it.
    Unwatched,
    /// The node exists and is watched. Contains its data.
    Watched(Vec<u8>, OneshotWatcher, WatchedPath),
}

impl ZooKeeperClaim {
    /// Watches the claim's own node, unless it is already watched. Returns `false` if the node does
    /// not exist.
    pub(super) async fn watch_own(&mut self, session: &Session, zk: &ZkClient, node: &Node) -> Result<bool> {
        if self.is_own_watched(node) {
            return Ok(true);
        }
        let Some(record) = session.record(self.request.id) else { return Ok(false) };
        let path = format!("{}/{}", record.directory, node.name);
        let Some(room) = session.paths.watch(&path) else {
            return Ok(zk.check_stat(&path).await.map_err(error::explain)?.is_some());
        };
        match zk.get_and_watch_data(&path).await {
            Ok((data, _, watcher)) => {
                self.set_own_watch(node, &data, watcher, room);
                Ok(true)
            }
            Err(ZkError::NoNode) => Ok(false),
            Err(error) => Err(error::explain(error)),
        }
    }

    /// Returns whether `node` is watched and its watch has not fired.
    fn is_own_watched(&mut self, node: &Node) -> bool {
        self.own.as_mut().is_some_and(|own| own.name == node.name && own.poll_now().is_none())
    }

    /// Keeps the watch on the claim's own node. Logs a request to release the lock, which is in the
    /// node's data.
    fn set_own_watch(&mut self, node: &Node, data: &[u8], watcher: OneshotWatcher, room: WatchedPath) {
        self.own = Some(Watch::new(node.name.clone(), watcher, room));
        if data == keys::REVOKE {
            self.client.note_revocation(&self.request);
        }
    }

    /// Verifies that the claim still holds the lock, without a time limit. Needs no request while
    /// the watch on the claim's own node has not fired.
    pub(super) async fn verify_hold(&mut self, session: &Arc<Session>) -> Result<Renewal> {
        let Request { id, ttl, .. } = self.request;
        let valid_for = session.valid_for()?.min(ttl);
        if !session.touch(id, ttl) {
            return Ok(Renewal::Lost);
        }
        let renewed = Renewal::Renewed { valid_for };
        if let Some(Record { node: Some((node, _)), directory, .. }) = session.record(id) {
            if self.is_own_watched(&node) {
                return Ok(renewed);
            }
            if let Ok(exists) =
                timeout(ttl / READ_WAIT_DIVISOR, self.read_own_node(session, &directory, &node)).await
            {
                if exists? {
                    return Ok(renewed);
                }
                session.forget(id);
                return Ok(Renewal::Lost);
            }
            // The node exists as long as its session, unless another client deletes it. Confirmed
            // heartbeats prove that the session is alive, and a later renewal gets the reply to the
            // read. Without a connection the hold cannot be confirmed, because the servers may have
            // lost their data.
            return if session.is_healthy() { Ok(renewed) } else { Err(error::session_is_silent()) };
        }
        let zk = session.client().await?;
        if let Some((node, _)) = self.find_node(session, &zk).await?
            && self.watch_own(session, &zk, &node).await?
        {
            return Ok(renewed);
        }
        session.forget(id);
        Ok(Renewal::Lost)
    }

    /// Reads and watches the claim's own node. Returns `false` if the node does not exist.
    ///
    /// If the returned future is dropped, the read stays in flight, and the next call waits for its
    /// reply.
    async fn read_own_node(&mut self, session: &Arc<Session>, directory: &str, node: &Node) -> Result<bool> {
        let path = format!("{directory}/{}", node.name);
        if self.pending_read.as_ref().is_none_or(|(name, _)| *name != node.name) {
            let room = session.paths.watch(&path);
            let session = Arc::clone(session);
            let read = async move {
                let zk = session.client().await?;
                let own_node = match room {
                    None => zk
                        .check_stat(&path)
                        .await
                        .map(|stat| stat.map_or(OwnNode::Deleted, |_| OwnNode::Unwatched)),
                    Some(room) => match zk.get_and_watch_data(&path).await {
                        Err(ZkError::NoNode) => Ok(OwnNode::Deleted),
                        read => read.map(|(data, _, watcher)| OwnNode::Watched(data, watcher, room)),
                    },
                };
                own_node.map_err(error::explain)
            };
            self.pending_read = Some((node.name.clone(), Box::pin(read)));
        }
        let own_node = match &mut self.pending_read {
            Some((_, read)) => read.as_mut().await,
            None => return Ok(false),
        };
        self.pending_read = None;
        match own_node? {
            OwnNode::Deleted => Ok(false),
            OwnNode::Unwatched => Ok(true),
            OwnNode::Watched(data, watcher, room) => {
                self.set_own_watch(node, &data, watcher, room);
                Ok(true)
            }
        }
    }
}
