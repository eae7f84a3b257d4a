//! Records of the nodes that the claims of a session have in the store, and the deletion of these
//! nodes.
//!
//! A record covers requests whose outcome is unknown. The servers may execute a create, a downgrade
//! or a delete after its caller has given up. A record without a node says that the outcome of such
//! a request is unknown, so the claim may have no node, one node or several. Before the record is
//! removed, a search through the leader finds the nodes. The servers execute the requests of a
//! connection in order, so the search runs after the earlier request. If the connection was lost in
//! between, an earlier request may still be executed later, as `session/late.rs` describes.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use dlock_core::{ClaimId, Result, driver::Moment};
use zookeeper_client::{Client as ZkClient, Error as ZkError};

use super::Session;
use crate::{
    error,
    keys::{self, Node},
};

/// The node of a claim, or the fact that its node is unknown.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) directory: Arc<str>,
    /// Node and fencing token of the claim. `None` while the outcome of a request that creates,
    /// changes or deletes the node is unknown.
    pub(crate) node: Option<(Node, u64)>,
    /// Number of the request that created the node, or may create it.
    pub(crate) create_number: u64,
    /// Connection of that request, as a number. `None` if the request was confirmed before the node
    /// became unknown.
    pub(crate) connection: Option<u64>,
}

impl Session {
    /// Returns the claim's record, or `None` if the claim has no node.
    pub(crate) fn record(&self, id: ClaimId) -> Option<Record> {
        self.records.lock().get(&id).cloned()
    }

    /// Returns whether the claim's node is known. Another client may have deleted the node since.
    pub(crate) fn has_node(&self, id: ClaimId) -> bool {
        self.records.lock().get(&id).is_some_and(|record| record.node.is_some())
    }

    /// Records that a request that may create a node is sent now.
    pub(crate) fn begin_record(&self, id: ClaimId, directory: &Arc<str>) -> Record {
        let create_number = self.creates_sent.fetch_add(1, Relaxed);
        let connection = Some(self.connection_number());
        let record = Record { directory: Arc::clone(directory), node: None, create_number, connection };
        self.set_record(id, record.clone());
        record
    }

    /// Replaces the claim's record.
    pub(crate) fn set_record(&self, id: ClaimId, record: Record) {
        self.records.lock().insert(id, record);
    }

    /// Records that it is unknown whether the claim's node exists.
    pub(crate) fn mark_unknown(&self, id: ClaimId) {
        if let Some(record) = self.records.lock().get_mut(&id)
            && record.node.take().is_some()
        {
            record.connection = None;
        }
    }

    /// Records that the claim has no node.
    pub(crate) fn drop_record(&self, id: ClaimId) {
        self.records.lock().remove(&id);
    }

    /// Forgets a claim that has no node in the store.
    pub(crate) fn forget(&self, id: ClaimId) {
        self.records.lock().remove(&id);
        self.reaper.forget(id);
        self.paths.free(id);
    }

    /// Forgets a claim that had no node in the store when `deleted` was its record, unless the
    /// claim has sent another create since.
    fn forget_if_unchanged(&self, id: ClaimId, deleted: Option<&Record>) {
        let mut records = self.records.lock();
        if records.get(&id).map(|record| record.create_number) == deleted.map(|record| record.create_number) {
            records.remove(&id);
            self.reaper.forget(id);
            self.paths.free(id);
        }
    }

    /// Deletes the claim's known node, or every node of the claim if its node is unknown. Returns
    /// whether a node existed.
    ///
    /// The claim may be sending a request that creates another node. In that case the claim is not
    /// forgotten.
    ///
    /// # Errors
    /// If the outcome is unknown. The record then has no node.
    pub(crate) async fn delete_claim(&self, id: ClaimId) -> Result<bool> {
        let Some(record) = self.record(id) else {
            self.forget_if_unchanged(id, None);
            return Ok(false);
        };
        let client = self.client().await?;
        self.mark_unknown(id);
        let existed = match &record.node {
            Some((node, _)) => self.delete_node(&client, &record.directory, &node.name).await?,
            None => {
                let mut existed = false;
                for name in self.find_own_nodes(&client, id, &record.directory).await? {
                    existed |= self.delete_node(&client, &record.directory, &name).await?;
                }
                self.expect_late_create(id, &record);
                existed
            }
        };
        self.forget_if_unchanged(id, Some(&record));
        Ok(existed)
    }

    /// Deletes a node. Returns `false` if the node did not exist.
    pub(crate) async fn delete_node(&self, client: &ZkClient, directory: &str, name: &str) -> Result<bool> {
        let sent = Moment::now();
        let existed = match client.delete(&format!("{directory}/{name}"), None).await {
            Ok(()) => true,
            Err(ZkError::NoNode) => false,
            Err(error) => return Err(error::explain(error)),
        };
        self.note_confirmed(sent);
        if !self.has_containers {
            // The server refuses this while the directory has other nodes. The last client to leave
            // deletes the directory.
            let _ = client.delete(directory, None).await;
        }
        Ok(existed)
    }

    /// Returns the names of a claim's nodes in this session.
    ///
    /// A node of another session belongs to another claim object with this id, or is deleted when
    /// that session ends.
    pub(super) async fn find_own_nodes(
        &self,
        client: &ZkClient,
        id: ClaimId,
        directory: &Arc<str>,
    ) -> Result<Vec<String>> {
        let mut own = Vec::new();
        for name in self.find_nodes(client, id, directory).await? {
            let stat = client.check_stat(&format!("{directory}/{name}")).await.map_err(error::explain)?;
            if stat.is_some_and(|stat| stat.ephemeral_owner == client.session_id().0) {
                own.push(name);
            }
        }
        Ok(own)
    }

    /// Returns the names of a claim's nodes, in the leader's present state, because the client's
    /// server may lag behind. Claims that search one directory at the same time share the requests.
    pub(crate) async fn find_nodes(
        &self,
        client: &ZkClient,
        id: ClaimId,
        directory: &Arc<str>,
    ) -> Result<Vec<String>> {
        self.queue(directory).find(client, &keys::stem(id)).await
    }
}
