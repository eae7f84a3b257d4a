//! Tombstones, and the requests that they prevent from being executed late.
//!
//! # Late requests
//!
//! A request that creates a claim's key, or moves it to the session's lease, may be executed after
//! its caller has given it up, at any time while the lease is alive. The key then blocks the lock
//! for a claim that no keeper owns.
//!
//! Before each such request, the claim calls [`Session::expect_creation`] or
//! [`Session::expect_move`]. When the outcome of the request is certain, it calls
//! [`Session::rule_out_late_requests`].
//!
//! A creation has the condition that the claim has no tombstone. The transaction that gives the
//! claim up writes the tombstone if a creation may be executed late, so it costs no request of its
//! own. The creation is then executed before that transaction, which deletes the key, or fails. The
//! tombstone has the session's lease. The session removes it after an hour.
//!
//! Some late requests have no such condition: those that move a key, those of a claim that is
//! attempted again after its tombstone was sent, and those of a user without rights on tombstones.
//! The session deletes the keys of these claims several times, as `session/reaper.rs` describes.

use std::{collections::HashMap, sync::atomic::Ordering::Relaxed};

use dlock_core::{ClaimId, Result};
use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp, TxnResponse};

use super::{Lease, Session, lock, record::Protection};
use crate::{connection::Response, error, keys};

/// A request that creates a claim's key.
pub(crate) struct Creation {
    /// Whether no earlier request of the claim may be executed late. The outcome of this request
    /// then rules that out.
    pub(crate) is_only_request: bool,
    /// Condition that makes the request fail once the claim was given up.
    pub(crate) condition: Option<Compare>,
}

/// The tombstones that a transaction writes.
pub(crate) struct Tombstones {
    lease: i64,
    keys: HashMap<ClaimId, String>,
}

impl Tombstones {
    fn none() -> Self {
        Self { lease: 0, keys: HashMap::new() }
    }

    /// Returns the operation that writes the tombstone of a claim, if this has one.
    pub(crate) fn write(&self, id: ClaimId) -> Option<TxnOp> {
        let key = self.keys.get(&id)?.as_str();
        Some(TxnOp::put(key, keys::TOMBSTONE, Some(PutOptions::new().with_lease(self.lease))))
    }
}

impl Session {
    /// Records that a request is sent that creates the claim's key. It may be executed late, until
    /// [`rule_out_late_requests`](Self::rule_out_late_requests) is called.
    pub(crate) fn expect_creation(&self, id: ClaimId) -> Creation {
        let mut records = lock(&self.records);
        // Without a record the lease has ended, and the request fails.
        let Some(record) = records.get_mut(&id) else {
            return Creation { is_only_request: true, condition: None };
        };
        let allows_tombstones = self.allows_tombstones.load(Relaxed);
        let protection = if allows_tombstones { record.protection() } else { Protection::Deletions };
        let is_only_request = record.expect(protection);
        let absent = || Compare::create_revision(keys::tombstone(record.key()), CompareOp::Equal, 0);
        let condition = (protection == Protection::Tombstone).then(absent);
        Creation { is_only_request, condition }
    }

    /// Records that a request is sent that moves the claim's key to the session's lease, or creates
    /// the key without a condition. Returns `false` if an earlier request of the claim may be
    /// executed late, too. The outcome of this request then does not rule that out.
    pub(crate) fn expect_move(&self, id: ClaimId) -> bool {
        lock(&self.records).get_mut(&id).is_none_or(|record| record.expect(Protection::Deletions))
    }

    /// Records that no request of this claim is in flight or may be executed late.
    pub(crate) fn rule_out_late_requests(&self, id: ClaimId) {
        if let Some(record) = lock(&self.records).get_mut(&id) {
            record.rule_out_late_requests();
        }
    }

    /// Records that the user has rights on the locks, and none on tombstones.
    pub(crate) fn note_tombstones_denied(&self) {
        self.allows_tombstones.store(false, Relaxed);
    }

    /// Sends a transaction that gives claims up, and that contains the tombstones that it gets. If
    /// the cluster refuses them, sends the transaction without them.
    ///
    /// # Errors
    /// If the outcome is unknown, or if the cluster refuses the transaction without tombstones.
    pub(crate) async fn send_with_tombstones(
        &self,
        ids: &[ClaimId],
        txn: impl Fn(&Tombstones) -> Txn + Send + Sync,
    ) -> Result<Response<TxnResponse>> {
        let tombstones = self.plan_tombstones(ids);
        let result = self.connection.txn(txn(&tombstones)).await;
        if tombstones.keys.is_empty() {
            return result;
        }
        let without = Tombstones::none();
        match result {
            Ok(response) => {
                let mut records = lock(&self.records);
                for id in tombstones.keys.keys() {
                    if let Some(record) = records.get_mut(id) {
                        record.note_tombstone();
                    }
                }
                Ok(response)
            }
            // The next keep-alive finds out whether the session's lease has ended. No creation can be
            // executed any more then.
            Err(error) if error::is_without_lease(&error) => self.connection.txn(txn(&without)).await,
            Err(error) if error::is_refused_for_rights(&error) => {
                let result = self.connection.txn(txn(&without)).await;
                if result.is_ok() {
                    self.note_tombstones_denied();
                }
                result
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the tombstones of those claims of which a creation may be executed late.
    fn plan_tombstones(&self, ids: &[ClaimId]) -> Tombstones {
        let lease = *lock(&self.lease);
        let Some(Lease { id: lease, .. }) = lease.filter(|_| self.allows_tombstones.load(Relaxed)) else {
            return Tombstones::none();
        };
        let mut records = lock(&self.records);
        let mut keys = HashMap::new();
        for id in ids {
            if let Some(record) = records.get_mut(id).filter(|record| record.needs_tombstone()) {
                record.note_tombstone_sent();
                keys.insert(*id, keys::tombstone(record.key()));
            }
        }
        Tombstones { lease, keys }
    }

    /// Forgets claims that have no key, because their tries were refused. If a creation of a key may
    /// be executed late, first writes a tombstone. If that fails, the session writes it later.
    pub(crate) async fn withdraw(&self, ids: &[ClaimId]) {
        let late: Vec<_> = {
            let records = lock(&self.records);
            let needs_tombstone =
                |id: &ClaimId| records.get(id).is_some_and(|record| record.needs_tombstone());
            ids.iter().copied().filter(needs_tombstone).collect()
        };
        if !late.is_empty() {
            let _ = self.delete(&late).await;
        }
        ids.iter().for_each(|id| self.leave(*id));
    }
}
