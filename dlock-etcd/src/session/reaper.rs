//! The deletion of the keys of claims under a session's lease.
//!
//! A claim's key is deleted when the claim has sent no request for its ttl, although the lease is
//! alive. If a creation of the key may be executed late, the deletion also writes the claim's
//! tombstone.
//!
//! If another late request is possible when the claim [leaves](Session::leave), its record stays,
//! and the session deletes the key several times: when the ttl of the claim is over, then after
//! pauses that double, up to half the ttl of the lease. This continues for an hour.

use std::time::Duration;

use dlock_core::{ClaimId, Error, Result, driver::Moment};
use etcd_client::{Compare, CompareOp, Txn, TxnOp};

use super::{
    Session, lock,
    record::{Record, TombstoneChange},
    tombstones::Tombstones,
};
use crate::keys;

/// Number of deletions of the key of a late request in one ttl of the lease, once the pauses have
/// their full length. A late key blocks its lock for half that ttl at most.
const DELETIONS_PER_TTL: u32 = 2;

/// Maximum number of claims that one request deletes. A server allows 128 operations.
const MAX_DELETIONS: usize = 100;

impl Session {
    /// Restarts the ttl of a claim. Returns `false` if the claim is being deleted.
    #[must_use]
    pub(crate) fn touch(&self, id: ClaimId, key: &str, ttl: Duration) -> bool {
        if !self.reaper.touch(id, ttl) {
            return false;
        }
        {
            let mut records = lock(&self.records);
            records.entry(id).or_insert_with(|| Record::new(key, ttl)).set_ttl(ttl);
        }
        let end = Moment::now().after(ttl);
        let is_sooner = lock(&self.planned_upkeep).is_none_or(|planned| end.since(planned).is_zero());
        if is_sooner {
            self.upkeep_wake.notify_one();
        }
        true
    }

    /// Returns whether this session has sent a request for the claim that the claim has not
    /// [left](Self::leave) since.
    pub(crate) fn has_record(&self, id: ClaimId) -> bool {
        lock(&self.records).contains_key(&id)
    }

    /// Forgets a claim whose key was deleted, or was moved to another lease.
    ///
    /// If the claim has a tombstone, or if a late request is possible that no tombstone prevents,
    /// keeps the record for the deletions that the documentation of this module describes.
    pub(crate) fn leave(&self, id: ClaimId) {
        let delay = lock(&self.records).get_mut(&id).and_then(Record::delay_after_leave);
        match delay {
            Some(delay) => {
                // If the claim is being deleted, its next deletion is planned after this one.
                let _ = self.reaper.touch(id, delay);
                // Each keep-alive plans the next upkeep, too.
                if delay < self.granted_ttl() {
                    self.upkeep_wake.notify_one();
                }
            }
            None => self.forget(id),
        }
    }

    /// Records that the session has deleted a claim's key, and plans the next deletion if one is
    /// necessary.
    fn note_deletion(&self, deletion: &Deletion) {
        let (id, change) = (deletion.id, deletion.change);
        let max_delay = self.granted_ttl() / DELETIONS_PER_TTL;
        let next = |record: &mut Record| record.delay_after_deletion(change, max_delay);
        let next_delay = lock(&self.records).get_mut(&id).and_then(next);
        match next_delay {
            None => self.forget(id),
            Some(delay) => {
                self.reaper.forget(id);
                let _ = self.reaper.touch(id, delay);
            }
        }
    }

    fn forget(&self, id: ClaimId) {
        self.reaper.forget(id);
        lock(&self.records).remove(&id);
    }

    /// Deletes the keys of overdue claims, many in one request. If the cluster refuses that,
    /// deletes each key by itself, so that one refused key does not keep the others.
    pub(super) async fn reap(&self) -> Result<()> {
        let overdue = self.reaper.overdue();
        let mut result = Ok(());
        for ids in overdue.chunks(MAX_DELETIONS) {
            match self.delete(ids).await {
                Err(Error::Refused { .. }) => {
                    for id in ids.chunks(1) {
                        result = result.and(self.delete(id).await);
                    }
                }
                outcome => outcome?,
            }
        }
        result
    }

    /// Deletes the keys of these claims, and writes or removes their tombstones.
    pub(super) async fn delete(&self, ids: &[ClaimId]) -> Result<()> {
        // Without a lease there is no key to delete.
        let lease = lock(&self.lease).map_or(0, |lease| lease.id);
        let deletions = self.plan_deletions(ids);
        if lease != 0 && !deletions.is_empty() {
            let is_write = |deletion: &&Deletion| deletion.change == TombstoneChange::Write;
            let given_up: Vec<_> = deletions.iter().filter(is_write).map(|deletion| deletion.id).collect();
            let txn = |tombstones: &Tombstones| {
                let operations = deletions.iter().map(|deletion| deletion.operation(lease, tombstones));
                Txn::new().and_then(operations.collect::<Vec<_>>())
            };
            self.send_with_tombstones(&given_up, txn).await?;
        }
        deletions.iter().for_each(|deletion| self.note_deletion(deletion));
        Ok(())
    }

    /// Returns the deletions of these claims. Forgets claims without a record, which have no key
    /// under the lease.
    fn plan_deletions(&self, ids: &[ClaimId]) -> Vec<Deletion> {
        let records = lock(&self.records);
        let plan = |id: &ClaimId| match records.get(id) {
            Some(record) => {
                Some(Deletion { id: *id, key: record.key().to_owned(), change: record.tombstone_change() })
            }
            None => {
                self.reaper.forget(*id);
                None
            }
        };
        ids.iter().filter_map(plan).collect()
    }
}

/// A deletion of a claim's key by the session.
struct Deletion {
    id: ClaimId,
    key: String,
    change: TombstoneChange,
}

impl Deletion {
    /// Returns the operation that deletes the key if it has the session's lease. A key under
    /// another lease is a detached hold, or belongs to another client by now.
    fn operation(&self, lease: i64, tombstones: &Tombstones) -> TxnOp {
        let is_ours = Compare::lease(self.key.as_str(), CompareOp::Equal, lease);
        let tombstone = match self.change {
            TombstoneChange::Write => tombstones.write(self.id),
            TombstoneChange::Remove => Some(TxnOp::delete(keys::tombstone(&self.key), None)),
            TombstoneChange::None => None,
        };
        let delete = [TxnOp::delete(self.key.as_str(), None)].into_iter().chain(tombstone.clone());
        let txn = Txn::new().when([is_ours]).and_then(delete.collect::<Vec<_>>());
        TxnOp::txn(txn.or_else(tombstone.into_iter().collect::<Vec<_>>()))
    }
}
