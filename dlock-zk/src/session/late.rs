//! Nodes that a late request creates.
//!
//! A create may still be on its way to a server when its connection breaks, and the servers may
//! execute it after the session has a new connection. Usually they refuse it, because the session
//! has moved to another server. They accept it if the session has moved back. An abandoned attempt
//! to connect to the first server may move it back, if that attempt arrives as late as the create.
//! A search for the claim's node that was sent on the new connection then proves nothing.
//!
//! Such a late node blocks the lock for as long as the session is alive, and no claim knows it.
//! Therefore the session searches for the claim's nodes again, and deletes all that the claim does
//! not know. It does so after each new connection, because a session that has moved back loses its
//! present connection. It does so once more when a late create is no longer possible.

use std::{collections::HashSet, sync::Arc, time::Duration};

use dlock_core::{ClaimId, Result, driver::Moment};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio::time::timeout;
use zookeeper_client::Client as ZkClient;

use super::{Record, Session};

/// Number of session timeouts for which a create may arrive after its connection was lost. A server
/// closes a connection on which nothing has arrived for one timeout. The second timeout is for a
/// server that was suspended.
const TIMEOUTS_IN_WINDOW: u32 = 2;

/// Maximum number of searches in flight. Searches in one directory share their requests.
const MAX_SEARCHES_IN_FLIGHT: usize = 64;

/// A claim of which a late request may create a node.
#[derive(Clone)]
pub(super) struct LateCreate {
    directory: Arc<str>,
    /// Number of the connection on which the create or the last search was sent.
    last_used: u64,
    /// Nodes whose deletion was sent. It may be executed at any time, so no claim may adopt them.
    deleted: HashSet<String>,
    /// Time after which a search that finds no node is the last one.
    until: Moment,
}

impl Session {
    /// Returns a number that differs from all earlier ones if the session has lost or got a
    /// connection since.
    pub(super) fn connection_number(&self) -> u64 {
        let mut connection = self.connection_changes.lock();
        let (states, number) = &mut *connection;
        while states.changed().now_or_never().is_some() {
            *number += 1;
        }
        *number
    }

    /// Records that a late request may create a node of the claim, if the connection has changed
    /// since the request of `record` was sent. A search for the claim's nodes must have ended.
    pub(crate) fn expect_late_create(&self, id: ClaimId, record: &Record) {
        let number = self.connection_number();
        let Some(last_used) = record.connection.filter(|connection| *connection != number) else { return };
        let until = Moment::now().after(self.timeout * TIMEOUTS_IN_WINDOW);
        let mut late_creates = self.late_creates.lock();
        let new = || LateCreate {
            directory: Arc::clone(&record.directory),
            last_used,
            deleted: HashSet::new(),
            until,
        };
        let late = late_creates.entry(id).or_insert_with(new);
        (late.last_used, late.until) = (last_used, until);
    }

    /// Returns whether the deletion of this node was sent, because no claim knew it.
    pub(crate) fn is_deleted_late_node(&self, id: ClaimId, name: &str) -> bool {
        self.late_creates.lock().get(&id).is_some_and(|late| late.deleted.contains(name))
    }

    /// Searches for the nodes of late creates, and deletes them, for at most `limit`.
    pub(super) async fn delete_late_nodes(&self, limit: Duration) {
        // Nodes that are not searched for in this time stay due.
        let _ = timeout(limit, self.delete_due_nodes()).await;
    }

    async fn delete_due_nodes(&self) {
        let Ok(client) = self.client().await else { return };
        // The number is read after the wait for a connection, because the searches use that
        // connection.
        let number = self.connection_number();
        let due: Vec<_> = self
            .late_creates
            .lock()
            .iter()
            .filter(|(_, late)| late.last_used != number || late.until.has_passed())
            .map(|(id, late)| (*id, late.clone()))
            .collect();
        let search = async |(id, late): (ClaimId, LateCreate)| {
            let is_last = late.until.has_passed();
            match self.delete_unknown_nodes(&client, id, &late.directory).await {
                Ok(true) => {}
                // A search that is refused would be refused again.
                Err(error) if is_last && !error.is_transient() => {}
                Ok(false) | Err(_) => return,
            }
            let mut late_creates = self.late_creates.lock();
            match late_creates.get_mut(&id) {
                // Another create of the claim has been lost since.
                Some(newer) if !newer.until.since(late.until).is_zero() => {}
                Some(_) if is_last => drop(late_creates.remove(&id)),
                Some(searched) => searched.last_used = number,
                None => {}
            }
        };
        stream::iter(due).for_each_concurrent(MAX_SEARCHES_IN_FLIGHT, search).await;
    }

    /// Deletes the claim's nodes of this session except the one that its record names. Returns
    /// `false` if the claim has sent a request that creates a node, and has no reply yet.
    async fn delete_unknown_nodes(
        &self,
        client: &ZkClient,
        id: ClaimId,
        directory: &Arc<str>,
    ) -> Result<bool> {
        for name in self.find_own_nodes(client, id, directory).await? {
            match self.record(id).map(|record| record.node) {
                Some(None) => return Ok(false),
                Some(Some((known, _))) if known.name == name => {}
                // A node that the claim creates after the search has another name.
                _ => {
                    if let Some(late) = self.late_creates.lock().get_mut(&id) {
                        late.deleted.insert(name.clone());
                    }
                    self.delete_node(client, directory, &name).await?;
                }
            }
        }
        Ok(true)
    }
}
