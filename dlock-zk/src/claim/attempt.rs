//! An attempt of a claim. It joins the queue, reads the claim's position, and watches the nodes
//! ahead.

use std::{sync::Arc, time::Duration};

use dlock_core::{
    Kind, Result, Token, Wait,
    driver::{Attempt, Grant, Request},
};
use futures_util::future::join_all;
use zookeeper_client::{Client as ZkClient, Error as ZkError, EventType};

use super::{BUSY_UNTIL_HINT, ZooKeeperClaim, being_deleted};
use crate::{
    error,
    queue::{Position, Queue, ReadFrom},
    session::{Session, WatchedPath},
    wake::Watch,
};

/// Maximum number of times that one attempt reads its position in the queue. The keeper makes the
/// next attempt at once.
const MAX_ROUNDS: usize = 32;

/// Number of times that the claim finds a node ahead deleted before it lists the queue again.
/// Several deletions in a row usually mean that a client with many claims has ended.
const MISSES_BEFORE_LIST: usize = 2;

/// Poll interval of a claim whose session has no room to watch all nodes ahead.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Result of an attempt after which the keeper makes the next attempt at once.
const RETRY_NOW: Attempt = Attempt::Busy { retry_in: Duration::ZERO };

impl ZooKeeperClaim {
    /// Makes an attempt, without a time limit.
    pub(super) async fn try_acquire(&mut self) -> Result<Attempt> {
        self.client.info.check_kind(self.request.kind)?;
        let directory = self.client.directory(&self.request.name)?;
        let session = self.choose_session(&directory).await?;
        let Request { id, ttl, kind, wait, .. } = self.request;
        // The ttl restarts before the first wait, because the claim's keeper is alive even if the
        // session has no connection.
        if !session.touch(id, ttl) {
            return Err(being_deleted());
        }
        let zk = session.client().await?;
        let queue = Arc::clone(self.queue.get_or_insert_with(|| session.queue(&directory)));
        let mut is_fresh = false;
        let (node, token) = match self.find_node(&session, &zk).await? {
            Some((node, token)) if kind == Kind::Read && node.kind != kind => {
                return self.downgrade(&session, &zk, (node, token)).await;
            }
            Some(found) => {
                if self.watches_intact() {
                    // No node ahead was deleted, so nothing has changed while the session is alive.
                    return session.valid_for().map(|_| BUSY_UNTIL_HINT);
                }
                if self.lacks_watches {
                    queue.ensure_listed_after(&zk, queue.lists_sent(), ReadFrom::Server).await?;
                    is_fresh = true;
                }
                found
            }
            None => {
                if wait == Wait::Never {
                    // The client's server may lag behind the leader and still show a lock that was
                    // released.
                    queue.ensure_listed_after(&zk, queue.lists_sent(), ReadFrom::Leader).await?;
                    if queue.is_busy(self.request.entry(), self.client.marker(&self.request)) {
                        session.forget(id);
                        return Ok(BUSY_UNTIL_HINT);
                    }
                }
                self.lists_before_node = queue.lists_sent();
                let (created, is_listed) = self.create_node(&session, &zk, &queue).await?;
                is_fresh = is_listed;
                created
            }
        };
        let mut misses = 0;
        for _ in 0..MAX_ROUNDS {
            match queue.position(&node, self.lists_before_node) {
                Position::First if is_fresh || self.watch_own(&session, &zk, &node).await? => {
                    self.stop_waiting();
                    let valid_for = session.valid_for()?.min(ttl);
                    return Ok(Attempt::Granted(Grant { token: Token::new(token), valid_for }));
                }
                Position::Unknown if !is_fresh => {
                    queue.ensure_listed_after(&zk, queue.lists_sent(), ReadFrom::Server).await?;
                    is_fresh = true;
                }
                // Another client may have deleted the claim's node. A try deletes what may be left
                // of it. Any other claim searches for its node in the next attempt, and joins the
                // queue again if the leader has no such node.
                Position::First | Position::Unknown => {
                    self.stop_waiting();
                    if wait == Wait::Never {
                        session.delete_claim(id).await?;
                        return Ok(BUSY_UNTIL_HINT);
                    }
                    session.mark_unknown(id);
                    return Ok(RETRY_NOW);
                }
                Position::Foreign(found) => return Err(error::wrong_kind(&self.request.name, kind, &found)),
                Position::Behind(_) if wait == Wait::Never => {
                    session.delete_claim(id).await?;
                    return Ok(BUSY_UNTIL_HINT);
                }
                Position::Behind(names) => {
                    if self.watch_ahead(&session, &zk, &queue, names).await? {
                        let attempt = if self.lacks_watches {
                            Attempt::Busy { retry_in: POLL_INTERVAL }
                        } else {
                            BUSY_UNTIL_HINT
                        };
                        return session.valid_for().map(|_| attempt);
                    }
                    misses += 1;
                    is_fresh = misses % MISSES_BEFORE_LIST == 0;
                    if is_fresh {
                        queue.ensure_listed_after(&zk, queue.lists_sent(), ReadFrom::Server).await?;
                    }
                }
            }
        }
        Ok(RETRY_NOW)
    }

    /// Watches the nodes `names`, at least one of which must be deleted before the claim can hold
    /// the lock. Returns `false` if one of them no longer exists.
    async fn watch_ahead(
        &mut self,
        session: &Session,
        zk: &ZkClient,
        queue: &Queue,
        names: Vec<String>,
    ) -> Result<bool> {
        self.ahead.retain(|watch| !watch.has_fired() && names.contains(&watch.name));
        let missing = names.into_iter().filter(|name| !self.ahead.iter().any(|watch| watch.name == *name));
        let mut with_room = Vec::new();
        self.lacks_watches = false;
        for name in missing {
            let path = format!("{}/{name}", queue.directory);
            match session.paths.watch(&path) {
                Some(room) => with_room.push((name, path, room)),
                None => self.lacks_watches = true,
            }
        }
        // A permit watches many nodes. All watches are set in one round trip.
        let watch = async |(name, path, room): (String, String, WatchedPath)| {
            (zk.get_and_watch_data(&path).await, name, room)
        };
        let found = join_all(with_room.into_iter().map(watch)).await;
        let (mut all_exist, mut failure) = (true, None);
        for (found, name, room) in found {
            match found {
                Ok((.., watcher)) => self.ahead.push(Watch::new(name, watcher, room)),
                Err(ZkError::NoNode) => {
                    queue.note_deleted(&name);
                    all_exist = false;
                }
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(all_exist), |error| Err(error::explain(error)))
    }

    /// Returns whether the claim has all of its watches on nodes ahead and none has fired. Removes
    /// deleted nodes from the snapshot.
    fn watches_intact(&mut self) -> bool {
        let Some(queue) = self.queue.as_ref().filter(|_| !self.ahead.is_empty()) else { return false };
        let mut are_intact = !self.lacks_watches;
        for watch in &mut self.ahead {
            if let Some(event) = watch.poll_now() {
                are_intact = false;
                if event == EventType::NodeDeleted {
                    queue.note_deleted(&watch.name);
                }
            }
        }
        are_intact
    }

    /// Drops the watches on nodes ahead, and the snapshot of the queue.
    pub(super) fn stop_waiting(&mut self) {
        (self.queue, self.lists_before_node, self.lacks_watches) = (None, 0, false);
        self.ahead.clear();
    }
}
