//! Creates, finds and downgrades the node of a claim.

use std::sync::Arc;

use dlock_core::{
    Result, Token,
    driver::{Attempt, Grant, Moment, Request},
};
use futures_util::future::{OptionFuture, join_all};
use zookeeper_client::{Client as ZkClient, CreateMode, Error as ZkError, MultiWriteError};

use super::{BUSY_UNTIL_HINT, ZooKeeperClaim};
use crate::{
    error,
    keys::{self, Node},
    queue::Queue,
    session::{Record, Session},
};

impl ZooKeeperClaim {
    /// Returns the claim's node and token, or `None` if it has no node.
    ///
    /// If the outcome of an earlier request is unknown, searches for the node, because the servers
    /// may have executed a request whose reply was lost. Adopts one node of the claim and deletes
    /// all others.
    pub(super) async fn find_node(
        &mut self,
        session: &Session,
        zk: &ZkClient,
    ) -> Result<Option<(Node, u64)>> {
        let Some(record) = session.record(self.request.id) else { return Ok(None) };
        if record.node.is_some() {
            return Ok(record.node);
        }
        let mut found = None;
        for name in session.find_nodes(zk, self.request.id, &record.directory).await? {
            let read = zk.get_data(&format!("{}/{name}", record.directory)).await;
            let (data, stat) = match read {
                Err(ZkError::NoNode) => continue,
                read => read.map_err(error::explain)?,
            };
            match Node::of(name.clone()) {
                Some(node)
                    if found.is_none()
                        && stat.ephemeral_owner == zk.session_id().0
                        && !session.is_deleted_late_node(self.request.id, &name) =>
                {
                    found = Some((node, token_of(&data, stat.czxid)));
                }
                // A second node, from a request that was sent twice, a node of an earlier session,
                // or a node whose deletion was sent before.
                _ => drop(session.delete_node(zk, &record.directory, &name).await?),
            }
        }
        session.expect_late_create(self.request.id, &record);
        match &found {
            Some(_) => session.set_record(self.request.id, Record { node: found.clone(), ..record }),
            None => session.drop_record(self.request.id),
        }
        Ok(found)
    }

    /// Creates the claim's node at the end of the queue. Returns the node, its token, and whether
    /// the queue was listed after the node was created.
    ///
    /// The listing is sent together with the create if no other claim of the client waits in this
    /// queue.
    pub(super) async fn create_node(
        &mut self,
        session: &Session,
        zk: &ZkClient,
        queue: &Arc<Queue>,
    ) -> Result<((Node, u64), bool)> {
        let Request { id, kind, limit, ref who, .. } = self.request;
        let marker = self.client.marker(&self.request);
        let (directory, prefix) = (&queue.directory, keys::prefix(&self.request, marker));
        let path = format!("{directory}/{prefix}");
        let ancestors = keys::ancestors(directory);
        // The number of missing nodes in each attempt. Usually the directory exists, and the nodes
        // above it are missing only for the first lock. The last attempt is a repetition, because
        // the server may delete an empty directory at any time.
        for missing in [0, 1, ancestors.len(), ancestors.len()] {
            let (sent, record) = (Moment::now(), session.begin_record(id, directory));
            let directory_options = self.client.directory_options(session);
            let create_directories = join_all(
                ancestors[ancestors.len() - missing..]
                    .iter()
                    .map(|path| zk.create(path, b"", &directory_options)),
            );
            let options = CreateMode::EphemeralSequential.with_acls(self.client.acls());
            let create = zk.create(&path, who.text().as_bytes(), &options);
            let is_alone = Arc::strong_count(queue) <= 2;
            let list = OptionFuture::from(is_alone.then(|| queue.list(zk)));
            let (directories, created, listed) = tokio::join!(create_directories, create, list);
            match created {
                Ok((stat, number)) => {
                    session.note_confirmed(sent);
                    let name = format!("{prefix}{number}");
                    let node = Node { name, kind, limit, number: number.into_i64(), marker };
                    let created = (node, stat.czxid.unsigned_abs());
                    session.set_record(id, Record { node: Some(created.clone()), ..record });
                    if keys::is_used_up(created.0.number) {
                        session.delete_node(zk, directory, &created.0.name).await?;
                        session.drop_record(id);
                        Self::delete_used_up_directory(zk, directory).await?;
                        continue;
                    }
                    return Ok((created, listed.is_some_and(|listed| listed.is_ok())));
                }
                Err(ZkError::NoNode) => {}
                Err(error) => {
                    if error::is_refusal(&error) {
                        session.drop_record(id);
                    }
                    return Err(error::explain(error));
                }
            }
            let refusals = directories.into_iter().filter_map(std::result::Result::err);
            if let Some(error) = refusals.into_iter().find(|error| !error::is_about_existence(error)) {
                session.drop_record(id);
                return Err(error::explain(error));
            }
        }
        session.drop_record(id);
        Err(error::explain(ZkError::NoNode))
    }

    /// Deletes a directory whose counter is used up, so that the counter of its successor begins at
    /// zero.
    ///
    /// The server does the same with empty container nodes, and refuses to delete a directory with
    /// nodes. Curator creates a missing directory again.
    ///
    /// # Errors
    /// If the directory has nodes of other claims.
    async fn delete_used_up_directory(zk: &ZkClient, directory: &str) -> Result<()> {
        match zk.delete(directory, None).await {
            Ok(()) | Err(ZkError::NoNode) => Ok(()),
            Err(ZkError::NotEmpty) => Err(error::counter_used_up(directory)),
            Err(error) => Err(error::explain(error)),
        }
    }

    /// Replaces the claim's node by a read node with the same number, in one transaction.
    pub(super) async fn downgrade(
        &mut self,
        session: &Session,
        zk: &ZkClient,
        (old, token): (Node, u64),
    ) -> Result<Attempt> {
        // The request has the kind of the hold after the downgrade.
        let Request { id, kind, ref who, .. } = self.request;
        let (directory, marker) =
            (self.client.directory(&self.request.name)?, self.client.marker(&self.request));
        let name = format!("{}{}", keys::prefix(&self.request, marker), keys::digits(old.number));
        let node = Node { name, kind, marker, ..old.clone() };
        let (sent, record) = (Moment::now(), session.begin_record(id, &directory));
        let options = CreateMode::Ephemeral.with_acls(self.client.acls());
        let mut step = zk.new_multi_writer();
        step.add_delete(&format!("{directory}/{}", old.name), None).map_err(error::explain)?;
        step.add_create(&format!("{directory}/{}", node.name), &downgraded_data(token, who.text()), &options)
            .map_err(error::explain)?;
        match step.commit().await {
            Ok(_) => {}
            Err(MultiWriteError::OperationFailed { source: ZkError::NoNode, .. }) => {
                // The hold was lost before, and the transaction has created no node.
                session.forget(id);
                return Ok(BUSY_UNTIL_HINT);
            }
            Err(error) => return Err(error::explain(error.into())),
        }
        session.note_confirmed(sent);
        session.set_record(id, Record { node: Some((node, token)), ..record });
        self.stop_waiting();
        let valid_for = session.valid_for()?.min(self.request.ttl);
        Ok(Attempt::Granted(Grant { token: Token::new(token), valid_for }))
    }
}

/// Returns the data of a node that a downgrade creates: the text about its holder and the token of
/// the hold before.
fn downgraded_data(token: u64, who: &str) -> Vec<u8> {
    format!("{who}\n{token}").into_bytes()
}

/// Returns the token of a node. This is the token in its data, or else the number `created` of the
/// transaction that created the node.
pub(crate) fn token_of(data: &[u8], created: i64) -> u64 {
    let kept = std::str::from_utf8(data).ok().and_then(|text| text.split_once('\n')?.1.parse().ok());
    kept.unwrap_or(created.unsigned_abs())
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_that_of_the_hold_before_a_downgrade() {
        assert_eq!(token_of(&downgraded_data(7, "anna@web-3 pid 4711"), 9), 7);
        for data in [&b"anna@web-3"[..], b"", b"__REVOKE__", b"\xff\n7", b"anna\nx"] {
            assert_eq!(token_of(data, 9), 9);
        }
    }
}
