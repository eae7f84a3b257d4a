//! Nodes that a late request creates.
//!
//! A create may still be on its way to a server when its connection breaks, and the servers may
//! execute it after the session has a new connection. Usually they refuse it, because the session
//! has moved to another server. They accept it if the session has moved back. That needs no action
//! of the client: an abandoned attempt to connect to the first server may arrive as late as the
//! create. A search for the claim's node that was sent on the new connection then proves nothing.
//!
//! Such a late node blocks the lock for as long as the session is alive, and no claim knows it.
//! Therefore the session searches for the claim's nodes again, and deletes all that the claim does
//! not know: after each new connection, because a session that has moved back loses its present
//! connection, and once more when a late create is no longer possible.

use std::{sync::Arc, time::Duration};

use dlock_core::{ClaimId, Result, driver::Moment};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio::time::timeout;

use super::{Record, Session, lock};

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
    /// Time after which a search that finds no node is the last one.
    until: Moment,
}

impl Session {
    /// Returns a number that differs from all earlier ones if the session has lost or got a
    /// connection since.
    pub(super) fn connection_number(&self) -> u64 {
        let mut connection = lock(&self.connection_changes);
        let (states, number) = &mut *connection;
        while states.changed().now_or_never().is_some() {
            *number += 1;
        }
        *number
    }

    /// Records that a late request may create a node of the claim, if the connection has changed
    /// since the request of `record` was sent. A search for the claim's nodes must have ended.
    pub(crate) fn expect_late_create(&self, id: ClaimId, record: &Record) {
        if self.connection_number() != record.connection {
            let (directory, last_used) = (Arc::clone(&record.directory), record.connection);
            let until = Moment::now().after(self.timeout * TIMEOUTS_IN_WINDOW);
            lock(&self.late_creates).insert(id, LateCreate { directory, last_used, until });
        }
    }

    /// Searches for the nodes of late creates, and deletes them. Each search has at most `limit`.
    pub(super) async fn delete_late_nodes(&self, limit: Duration) {
        let number = self.connection_number();
        let due: Vec<_> = lock(&self.late_creates)
            .iter()
            .filter(|(_, late)| late.last_used != number || late.until.has_passed())
            .map(|(id, late)| (*id, late.clone()))
            .collect();
        let search = async |(id, late): (ClaimId, LateCreate)| {
            let is_last = late.until.has_passed();
            if !matches!(timeout(limit, self.delete_unknown_nodes(id, &late.directory)).await, Ok(Ok(true))) {
                return;
            }
            let mut late_creates = lock(&self.late_creates);
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
    async fn delete_unknown_nodes(&self, id: ClaimId, directory: &Arc<str>) -> Result<bool> {
        let client = self.client().await?;
        for name in self.find_own_nodes(&client, id, directory).await? {
            match self.record(id).map(|record| record.node) {
                Some(None) => return Ok(false),
                Some(Some((known, _))) if known.name == name => {}
                // A node that the claim creates after the search has another name.
                _ => drop(self.delete_node(&client, directory, &name).await?),
            }
        }
        Ok(true)
    }
}
