//! The deletion of a claim's key, waiting, held or detached.

use dlock_core::{Error, Result, driver::Release};
use etcd_client::{Compare, CompareOp, KeyValue, Txn, TxnOp};

use super::EtcdClaim;
use crate::{
    error::{self, STORE},
    keys::{Keys, Record},
    queue::ranges,
};

impl EtcdClaim {
    /// Deletes the claim's key, under either id of the hold.
    pub(super) async fn delete(&mut self, keys: &Keys) -> Result<Release> {
        // The hold may have the key of another claim. This is possible if this object knows no key,
        // and has a ticket or has never attempted the lock. The latter applies to a release by
        // ticket and to a resumption that has failed.
        let is_of_ticket = self.own_key.is_none() && (self.ticket.is_some() || !self.has_attempted);
        // A key that was written more than once may contain the id of another claim, and is read
        // first.
        let is_written_once = Compare::version(keys.own.as_str(), CompareOp::Equal, 1);
        let txn = Txn::new()
            .when([is_written_once])
            .and_then([TxnOp::delete(keys.own.as_str(), None)])
            .or_else([TxnOp::get(keys.own.as_str(), None)]);
        let response = match self.client.connection.txn(txn).await {
            // A user without the right to delete the key could not create it either. If a request
            // from before the loss of that right is executed late, the session deletes its key, or
            // the key is deleted at the end of the session.
            Err(Error::Refused { .. }) if self.is_unconfirmed() => {
                self.seats.clear();
                self.client.session.leave(self.request.id);
                return Ok(Release::Gone);
            }
            result => result?,
        };
        // If this claim was notified and has sent no request since, the client's next waiter is
        // notified instead.
        self.seats.clear();
        (self.own_key, self.held_key) = (None, None);
        // If a late request may create the key again, the session deletes it when the ttl is over.
        self.client.session.leave(self.request.id);
        let is_deleted = response.body.succeeded() || response.maybe_repeated;
        let mut release = if is_deleted { Release::Done } else { Release::Gone };
        if let Some(own) = ranges(&response.body).pop().and_then(|mut found| found.pop()) {
            if self.owns(&Record::read(own.value()), self.ticket) {
                release = self.delete_unchanged(&own).await?;
            }
        } else if release == Release::Gone && is_of_ticket {
            release = self.delete_renamed(keys).await?;
        }
        self.end_detach_leases().await;
        Ok(release)
    }

    /// Returns whether this client has sent an attempt of the claim, but this object has no
    /// confirmation that the key exists.
    fn is_unconfirmed(&self) -> bool {
        self.own_key.is_none()
            && self.detach_leases.is_empty()
            && self.client.session.has_record(self.request.id)
    }

    /// Deletes the key of a hold that was renamed to this claim or to its ticket.
    async fn delete_renamed(&self, keys: &Keys) -> Result<Release> {
        let ticket = self.ticket.unwrap_or(self.request.id);
        let Some(own) = self.find_renamed(keys, ticket).await? else { return Ok(Release::Gone) };
        self.delete_unchanged(&own).await
    }

    /// Deletes a key if it is unchanged since it was read.
    async fn delete_unchanged(&self, own: &KeyValue) -> Result<Release> {
        let is_unchanged = Compare::mod_revision(own.key(), CompareOp::Equal, own.mod_revision());
        let txn = Txn::new().when([is_unchanged]).and_then([TxnOp::delete(own.key(), None)]);
        let response = self.client.connection.txn(txn).await?;
        if !response.body.succeeded() && !response.maybe_repeated {
            return Err(STORE.unavailable(error::CONFLICT));
        }
        self.end_own_lease(own, 0).await;
        Ok(Release::Done)
    }
}
