//! What the claims of a session have in the store, and how it is removed.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use dlock_core::{ClaimId, Result, driver::Moment};
use zookeeper_client::{Client as ZkClient, Error as ZkError};

use super::{Session, lock};
use crate::{
    error,
    keys::{self, Node},
};

/// What a claim has in the store.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) directory: Arc<str>,
    /// Its node and its token. `None` if a request may or may not have made, changed or deleted the node.
    pub(crate) node: Option<(Node, u64)>,
    /// Which request it was that made the node, or may make it.
    pub(crate) made_by: u64,
}

impl Session {
    /// Begins a claim's ttl anew. `false` if the claim is being deleted.
    #[must_use]
    pub(crate) fn touch(&self, id: ClaimId, ttl: Duration) -> bool {
        let is_alive = self.reaper.touch(id, ttl);
        if ttl < lock(&self.look).remaining() {
            self.knock.notify_one();
        }
        is_alive
    }

    /// Notes that the pump will look for overdue claims in `at_most`, or before if a claim is overdue before. Tells in how long.
    pub(in crate::connection) fn look_again(&self, at_most: Duration) -> Duration {
        let mut look = lock(&self.look);
        let latest = Moment::now().after(at_most);
        *look = self.reaper.next().map_or(latest, |overdue| overdue.min(latest));
        look.remaining()
    }

    pub(crate) fn record(&self, id: ClaimId) -> Option<Record> {
        lock(&self.records).get(&id).cloned()
    }

    /// Whether a claim is known to have a node, unless somebody has deleted it.
    pub(crate) fn has_node(&self, id: ClaimId) -> bool {
        lock(&self.records).get(&id).is_some_and(|record| record.node.is_some())
    }

    /// Notes that a request is sent now that may make a node.
    pub(crate) fn begin_record(&self, id: ClaimId, directory: &Arc<str>) -> Record {
        let made_by = self.begun.fetch_add(1, Relaxed);
        let record = Record { directory: Arc::clone(directory), node: None, made_by };
        self.set_record(id, record.clone());
        record
    }

    pub(crate) fn set_record(&self, id: ClaimId, record: Record) {
        lock(&self.records).insert(id, record);
    }

    /// Notes that nobody knows whether a claim's node is there.
    pub(crate) fn doubt(&self, id: ClaimId) {
        if let Some(record) = lock(&self.records).get_mut(&id) {
            record.node = None;
        }
    }

    /// Notes that a claim has no node.
    pub(crate) fn drop_record(&self, id: ClaimId) {
        lock(&self.records).remove(&id);
    }

    /// Forgets a claim that has nothing in the store any more.
    pub(crate) fn forget(&self, id: ClaimId) {
        lock(&self.records).remove(&id);
        self.reaper.forget(id);
        self.paths.free(id);
    }

    /// Forgets a claim that had nothing in the store when this was its record, unless it has sent another request since.
    fn forget_as(&self, id: ClaimId, seen: Option<&Record>) {
        let mut records = lock(&self.records);
        if records.get(&id).map(|now| now.made_by) == seen.map(|seen| seen.made_by) {
            records.remove(&id);
            self.reaper.forget(id);
            self.paths.free(id);
        }
    }

    /// Deletes every node of a claim whose state is unknown, or removes the one that is known. Tells whether there was one. The claim
    /// may be sending a request that makes another: it is then still known.
    ///
    /// # Errors
    /// Whether the nodes were deleted is then unknown, and so the record says.
    pub(crate) async fn remove(&self, id: ClaimId) -> Result<bool> {
        let Some(record) = self.record(id) else {
            self.forget_as(id, None);
            return Ok(false);
        };
        let client = self.client().await?;
        self.doubt(id);
        let was_there = match &record.node {
            Some((node, _)) => self.delete(&client, &record.directory, &node.name).await?,
            None => {
                let nodes = self.search(&client, id, &record.directory).await?;
                let mut was_there = false;
                for node in nodes {
                    let stat = client.check_stat(&format!("{}/{node}", record.directory)).await;
                    // One with another owner is that of another claim object, or goes with the end of its session.
                    if stat
                        .map_err(error::explain)?
                        .is_some_and(|stat| stat.ephemeral_owner == client.session_id().0)
                    {
                        was_there |= self.delete(&client, &record.directory, &node).await?;
                    }
                }
                was_there
            }
        };
        self.forget_as(id, Some(&record));
        Ok(was_there)
    }

    /// Deletes a node. `false` if it was gone.
    pub(crate) async fn delete(&self, client: &ZkClient, directory: &str, name: &str) -> Result<bool> {
        let sent = Moment::now();
        let was_there = match client.delete(&format!("{directory}/{name}"), None).await {
            Ok(()) => true,
            Err(ZkError::NoNode) => false,
            Err(error) => return Err(error::explain(error)),
        };
        self.note_answer(sent);
        if !self.has_containers {
            // If somebody else is in the directory, this is refused, and the last one to leave deletes it.
            let _ = client.delete(directory, None).await;
        }
        Ok(was_there)
    }

    /// The names of a claim's nodes, in the state that the leader has now: another server may be behind. Claims that look into
    /// one directory at the same time share the requests.
    pub(crate) async fn search(
        &self,
        client: &ZkClient,
        id: ClaimId,
        directory: &Arc<str>,
    ) -> Result<Vec<String>> {
        self.queue(directory).find(client, &keys::stem(id)).await
    }
}
