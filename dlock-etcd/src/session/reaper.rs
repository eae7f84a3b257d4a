//! The records of the claims under a session's lease, and the deletion of their keys.
//!
//! A claim's key is deleted when the claim has sent no request for its ttl, although the lease is
//! alive.
//!
//! # Late requests
//!
//! A request that creates a claim's key, or moves it to the session's lease, may be executed after
//! its caller has given it up, at any time while the lease is alive. The key then blocks the lock
//! for a claim that no keeper owns.
//!
//! Before each such request, the claim calls [`Session::expect_late_request`]. When the outcome of
//! the request is certain, it calls [`Session::rule_out_late_requests`]. If a late request is still
//! possible when the claim [leaves](Session::leave), its record stays, and the session deletes the
//! key several times: after the time limit of a request, or the ttl of the claim if that is
//! shorter, then after pauses that double, up to half the ttl of the lease. This continues for
//! [`LATE_REQUEST_WINDOW`].
//!
//! By then the same client may hold the lock again with the same key, because a resumption keeps
//! the key and renames the hold. Such a deletion therefore requires a value that a late request of
//! the claim has written.

use std::time::Duration;

use dlock_core::{ClaimId, Error, Result, driver::Moment};
use etcd_client::{Compare, CompareOp, Txn, TxnOp};

use super::Session;

/// Time for which a request may arrive after it was given up, counted from the first deletion of
/// its key. With Linux's settings, TCP gives up retransmitting after about 15 minutes. Other
/// systems and proxies stay well below an hour.
const LATE_REQUEST_WINDOW: Duration = Duration::from_secs(3600);

/// Number of deletions of the key of a late request in one ttl of the lease, once the pauses have
/// their full length. A late key blocks its lock for half that ttl at most.
const DELETIONS_PER_TTL: u32 = 2;

/// Maximum number of claims that one request deletes. A server allows 128 operations.
const MAX_DELETIONS: usize = 100;

/// Record of a claim that may have a key under the session's lease.
pub(super) struct Record {
    key: String,
    /// Time from the claim's last request, or from the last deletion, to the next deletion.
    deletion_delay: Duration,
    /// Values that requests which may still be executed write, when they create the key or move it
    /// to the session's lease. If there are any, the key is deleted more than once.
    late_values: Vec<String>,
    /// Whether only late requests can write the key for this claim.
    has_left: bool,
    /// End of [`LATE_REQUEST_WINDOW`]. `None` before the first deletion.
    late_until: Option<Moment>,
}

impl Record {
    /// Returns the operation that deletes the key if it is under this lease. A key under another
    /// lease is a detached hold, or belongs to another client by now.
    fn deletion(&self, lease: i64) -> TxnOp {
        let key = self.key.as_str();
        let is_ours = Compare::lease(key, CompareOp::Equal, lease);
        let delete = || TxnOp::delete(key, None);
        let deletions = if self.has_left {
            let delete_late = |value: &String| {
                let is_late = Compare::value(key, CompareOp::Equal, value.as_str());
                TxnOp::txn(Txn::new().when([is_late]).and_then([delete()]))
            };
            self.late_values.iter().map(delete_late).collect()
        } else {
            vec![delete()]
        };
        TxnOp::txn(Txn::new().when([is_ours]).and_then(deletions))
    }
}

impl Session {
    /// Restarts the ttl of a claim. Returns `false` if the claim is being deleted.
    #[must_use]
    pub(crate) fn touch(&self, id: ClaimId, key: &str, ttl: Duration) -> bool {
        if !self.reaper.touch(id, ttl) {
            return false;
        }
        {
            let mut records = self.records.lock();
            let new = || Record {
                key: key.to_owned(),
                deletion_delay: ttl,
                late_values: Vec::new(),
                has_left: false,
                late_until: None,
            };
            let record = records.entry(id).or_insert_with(new);
            (record.deletion_delay, record.has_left) = (ttl, false);
        }
        let end = Moment::now().after(ttl);
        let is_sooner = self.planned_upkeep.lock().is_none_or(|planned| end.since(planned).is_zero());
        if is_sooner {
            self.upkeep_wake.notify_one();
        }
        true
    }

    /// Records that a request is sent that creates the claim's key with this value, or moves it to
    /// the session's lease. The request may be executed late, until
    /// [`rule_out_late_requests`](Self::rule_out_late_requests) is called. Returns whether this is
    /// the only request of the claim that may be executed late. If it returns `false`, an earlier
    /// request may still be executed late, even when the outcome of this one is certain. The caller
    /// must then not call `rule_out_late_requests`.
    pub(crate) fn expect_late_request(&self, id: ClaimId, value: String) -> bool {
        let mut records = self.records.lock();
        let Some(record) = records.get_mut(&id) else { return true };
        let is_only_request = record.late_values.is_empty();
        if !record.late_values.contains(&value) {
            record.late_values.push(value);
        }
        is_only_request
    }

    /// Records that no request of this claim is in flight or may be executed late.
    pub(crate) fn rule_out_late_requests(&self, id: ClaimId) {
        if let Some(record) = self.records.lock().get_mut(&id) {
            record.late_values.clear();
        }
    }

    /// Returns whether this session has sent a request for the claim that the claim has not
    /// [left](Self::leave) since.
    pub(crate) fn has_record(&self, id: ClaimId) -> bool {
        self.records.lock().contains_key(&id)
    }

    /// Forgets a claim whose key was deleted, or was moved to another lease.
    ///
    /// If a late request is possible, keeps the record, and deletes the key when the time limit of
    /// a request is over, and repeatedly after that, as the documentation of this module describes.
    pub(crate) fn leave(&self, id: ClaimId) {
        let limit = self.connection.limit();
        let delay = self.records.lock().get_mut(&id).and_then(|record| {
            record.has_left = true;
            record.deletion_delay = record.deletion_delay.min(limit);
            (!record.late_values.is_empty()).then_some(record.deletion_delay)
        });
        if let Some(delay) = delay {
            // If the claim is being deleted, its next deletion is planned after this one.
            let _ = self.reaper.touch(id, delay);
            self.upkeep_wake.notify_one();
        } else {
            self.forget(id);
        }
    }

    /// Records that the session has deleted a claim's key, and plans the next deletion if a late
    /// request is possible.
    fn note_deletion(&self, id: ClaimId) {
        let max_delay = self.granted_ttl() / DELETIONS_PER_TTL;
        let next_delay = self.records.lock().get_mut(&id).and_then(|record| {
            let until = *record.late_until.get_or_insert_with(|| Moment::now().after(LATE_REQUEST_WINDOW));
            let is_last = record.late_values.is_empty() || until.has_passed();
            record.has_left = true;
            record.deletion_delay = (record.deletion_delay * 2).min(max_delay);
            (!is_last).then_some(record.deletion_delay)
        });
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
        self.records.lock().remove(&id);
    }

    /// Deletes the keys of overdue claims, many in one request. If the cluster refuses that,
    /// deletes each key by itself, so that one refused key does not keep the others.
    pub(super) async fn reap(&self) -> Result<()> {
        let overdue = self.reaper.begin_deletions();
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

    async fn delete(&self, ids: &[ClaimId]) -> Result<()> {
        // Without a lease there is no key to delete.
        let lease = self.lease.lock().map_or(0, |lease| lease.id);
        let deletions: Vec<_> = {
            let records = self.records.lock();
            ids.iter().filter_map(|id| records.get(id).map(|record| record.deletion(lease))).collect()
        };
        if lease != 0 && !deletions.is_empty() {
            self.connection.txn(Txn::new().and_then(deletions)).await?;
        }
        ids.iter().for_each(|id| self.note_deletion(*id));
        Ok(())
    }
}
