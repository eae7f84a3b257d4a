//! One claim, which is a key in the queue of its lock, under the client's lease.
//!
//! In this crate a lease is always a lease of etcd.
//!
//! `claim/attempt.rs` makes an attempt and sets the watches of a waiter, `claim/attempt_all.rs`
//! acquires several locks in one transaction, `claim/hold.rs` renews, detaches and resumes a hold,
//! `claim/reads.rs` reads the keys of many holds in one request, and `claim/release.rs` deletes the
//! key.

use std::{future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Error, Kind, Result, Token,
    driver::{Attempt, Claim, Grant, Release, Renewal, Request, Resumption, Seat},
};
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnResponse};
use futures_util::future::select_all;
use tokio::time::Instant;

use crate::{
    client::Client,
    error::{self, STORE},
    keys::{self, Keys, Record},
    queue::{Queue, ranges},
    session::Lease,
    wake::HeldKey,
};
pub(crate) use attempt_all::{MAX_LOCKS_PER_STEP, attempt_all};
pub(crate) use reads::HoldReads;

mod attempt;
mod attempt_all;
mod hold;
mod reads;
mod release;

/// One claim of a client.
pub(crate) struct EtcdClaim {
    client: Arc<Client>,
    request: Request,
    /// The claim's key in the cluster, as far as this object knows.
    own_key: Option<OwnKey>,
    /// Whether the cluster has refused to create the key. It then also refuses to delete it.
    is_refused: bool,
    /// Queue of a waiting claim, if the claim waits for all claims ahead. Kept while the claim
    /// waits, so that the client's other claims in this queue use the same snapshot.
    queue: Option<Arc<Queue>>,
    /// Number of reads of `queue` that were sent before the claim's key was known to exist. Later
    /// reads contain all claims ahead.
    reads_before: u64,
    /// Seats of a waiting claim, each with the key whose deletion wakes it.
    seats: Vec<(String, Seat)>,
    /// Watch on the claim's own key while it holds the lock.
    held_key: Option<HeldKey>,
    /// Leases that this object has created for detachments, and that may still exist.
    detach_leases: Vec<i64>,
    /// Key of a hold that this claim has taken over. It contains the id of another claim.
    adopted_key: Option<String>,
    /// Ticket of the last detachment, whatever its outcome.
    ticket: Option<ClaimId>,
    /// Whether this object has attempted the lock.
    has_attempted: bool,
    /// Time of the last read of the queue that found the claim waiting. All watches of the claim
    /// had started before it.
    checked_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct OwnKey {
    /// `None` if the key may have a lease of its own, because a detachment has failed.
    lease: Option<i64>,
    /// Position in the queue, and fencing token.
    create_revision: i64,
}

impl EtcdClaim {
    pub(crate) fn new(client: Arc<Client>, request: Request) -> Self {
        Self {
            client,
            request,
            own_key: None,
            is_refused: false,
            queue: None,
            reads_before: 0,
            seats: Vec::new(),
            held_key: None,
            detach_leases: Vec::new(),
            adopted_key: None,
            ticket: None,
            has_attempted: false,
            checked_at: None,
        }
    }

    fn keys(&self) -> Result<Keys> {
        let mut keys = self.client.keys(&self.request.name, self.request.id)?;
        if let Some(own) = &self.adopted_key {
            keys.own.clone_from(own);
        }
        Ok(keys)
    }

    /// Returns the id to which the hold was renamed. `None` if the key contains the claim's own id.
    fn renamed_to(&self) -> Option<ClaimId> {
        self.adopted_key.as_ref().map(|_| self.request.id)
    }

    /// Returns whether the record of a key belongs to this claim or to `ticket`.
    fn owns(&self, record: &Record, ticket: Option<ClaimId>) -> bool {
        record.renamed_to == self.renamed_to() || record.renamed_to.is_some() && record.renamed_to == ticket
    }

    /// Returns the time limit of a call.
    fn time_limit(&self) -> Duration {
        self.request.time_limit(self.client.config.timeout)
    }

    /// Restarts the claim's ttl. Returns `false` if the claim is being deleted.
    fn touch(&self, keys: &Keys) -> bool {
        self.client.session.touch(self.request.id, &keys.own, self.request.ttl)
    }

    fn put(&self, keys: &Keys, lease: i64) -> TxnOp {
        put(&self.request, keys, lease, None, self.renamed_to())
    }

    /// Returns the value of the key under the client's lease.
    fn value(&self) -> String {
        keys::value(&self.request, None, self.renamed_to())
    }

    /// Records that the claim holds the lock, and returns the grant.
    fn grant(&mut self, keys: &Keys, lease: Lease) -> Grant {
        self.seats.clear();
        let revision = self.own_key.map_or(0, |own_key| own_key.create_revision);
        if let Some(queue) = self.queue.take() {
            queue.note_granted(revision);
        }
        let add = || self.client.held_keys.add(&self.client.seats, &keys.own, revision);
        self.held_key = Some(self.held_key.take().unwrap_or_else(add));
        let token = u64::try_from(revision).ok().and_then(Token::new);
        Grant { token, valid_for: lease.remaining().min(self.request.ttl) }
    }

    /// Reads the claim's key. Returns `None` if it does not exist, or if the hold was renamed to an
    /// id other than that of this claim and `ticket`.
    async fn find(&self, keys: &Keys, ticket: Option<ClaimId>) -> Result<Option<KeyValue>> {
        let found =
            self.client.connection.get(keys.own.as_bytes(), GetOptions::new()).await?.take_kvs().pop();
        Ok(found.filter(|key| self.is_own(key, ticket)))
    }

    /// Returns whether this version of the claim's key belongs to this claim or to `ticket`.
    fn is_own(&self, key: &KeyValue, ticket: Option<ClaimId>) -> bool {
        self.own_key.is_none_or(|own_key| own_key.create_revision == key.create_revision())
            && self.owns(&Record::read(key.value()), ticket)
    }

    /// Finds the key of the lock whose hold was renamed to `ticket` or to this claim's id. Reads
    /// the whole queue.
    async fn find_renamed(&self, keys: &Keys, ticket: ClaimId) -> Result<Option<KeyValue>> {
        let options = GetOptions::new().with_prefix();
        let queue = self.client.connection.get(keys.queue.as_bytes(), options).await?.take_kvs();
        let is_ours = |key: &KeyValue| {
            let renamed_to = Record::read(key.value()).renamed_to;
            renamed_to == Some(ticket) || renamed_to == Some(self.request.id)
        };
        Ok(queue.into_iter().find(is_ours))
    }

    /// Writes the key with this kind, lease and id, if it is unchanged since it was read as
    /// `before`. The condition makes a late execution harmless. Returns `false` if the key was
    /// deleted.
    async fn rewrite(
        &self,
        keys: &Keys,
        before: &KeyValue,
        kind: Kind,
        lease: i64,
        renamed_to: Option<ClaimId>,
    ) -> Result<bool> {
        let session = &self.client.session;
        let own_lease = self.detach_leases.contains(&lease).then_some(lease);
        let mut request = self.request.clone();
        request.kind = kind;
        let value = keys::value(&request, own_lease, renamed_to);
        // If this request is executed late, the key is under the session's lease without a keeper.
        // The session therefore records the value, and deletes such a key.
        let is_only_request = own_lease.is_some() || session.expect_late_request(self.request.id, value);
        let is_unchanged = Compare::mod_revision(keys.own.as_str(), CompareOp::Equal, before.mod_revision());
        let txn = Txn::new()
            .when([is_unchanged])
            .and_then([put(&request, keys, lease, own_lease, renamed_to)])
            .or_else([TxnOp::get(keys.own.as_str(), None)]);
        let response = self.client.connection.txn(txn).await?;
        if own_lease.is_none() && is_only_request && !response.maybe_repeated {
            session.rule_out_late_requests(self.request.id);
        }
        if !response.body.succeeded() {
            let found =
                ranges(&response.body).pop().ok_or_else(|| STORE.unexpected_reply("a change of lease"))?;
            let Some(now) = found.first() else { return Ok(false) };
            // The first of two sends may have written it.
            let is_done = now.lease() == lease && Record::read(now.value()).renamed_to == renamed_to;
            if !is_done || now.create_revision() != before.create_revision() {
                return Err(STORE.unavailable(error::CONFLICT));
            }
        }
        self.end_own_lease(before, lease).await;
        Ok(true)
    }

    /// Revokes the own lease of a detached hold, after its key was rewritten. `before` is the
    /// former version of the key, and `lease` is the lease of the new version. Does nothing if
    /// `before` was not under an own lease, or if `lease` is that lease. If the request fails, the
    /// own lease expires by itself, without keys.
    async fn end_own_lease(&self, before: &KeyValue, lease: i64) {
        let own_lease = Record::read(before.value()).own_lease;
        if let Some(own_lease) = own_lease.filter(|own| *own == before.lease() && *own != lease) {
            let _ = self.client.connection.revoke(own_lease).await;
        }
    }

    /// Ends the leases of failed detachments. The claim's key is under another lease.
    async fn end_detach_leases(&mut self) {
        while let Some(lease) = self.detach_leases.last() {
            if self.client.connection.revoke(*lease).await.is_err() {
                return;
            }
            self.detach_leases.pop();
        }
    }
}

/// Returns the operation that writes a claim's key.
fn put(
    request: &Request,
    keys: &Keys,
    lease: i64,
    own_lease: Option<i64>,
    renamed_to: Option<ClaimId>,
) -> TxnOp {
    let value = keys::value(request, own_lease, renamed_to);
    TxnOp::put(keys.own.as_str(), value, Some(PutOptions::new().with_lease(lease)))
}

/// Returns the condition that no claim holds the lock or waits for it.
fn is_free(keys: &Keys) -> Compare {
    Compare::create_revision(keys.queue.as_str(), CompareOp::Equal, 0).with_prefix()
}

/// Returns the create revision of the keys that this transaction has created.
fn created_revision(response: &TxnResponse) -> Result<i64> {
    response
        .header()
        .map(etcd_client::ResponseHeader::revision)
        .ok_or_else(|| STORE.unexpected_reply("an attempt"))
}

/// Returns the error of a claim that the reaper is deleting.
fn being_deleted() -> Error {
    STORE.unavailable("the claim's ttl is over, and it is being deleted")
}

/// Returns the error of a claim whose lease has ended.
fn lease_has_ended() -> Error {
    STORE.unavailable("the client's lease has ended")
}

#[async_trait]
impl Claim for EtcdClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        self.has_attempted = true;
        self.client.info.check_kind(self.request.kind)?;
        STORE.with_timeout(self.time_limit(), self.try_acquire()).await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        STORE.with_timeout(self.time_limit(), self.renew_hold()).await
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        let client = Arc::clone(&self.client);
        STORE.with_timeout(self.time_limit(), client.run_other(self.detach_hold(lasting, ticket))).await
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        let client = Arc::clone(&self.client);
        STORE.with_timeout(self.time_limit(), client.run_other(self.resume_hold(ticket))).await
    }

    async fn release(&mut self) -> Result<Release> {
        // A lock with an invalid name was never acquired.
        let Ok(keys) = self.keys() else { return Ok(Release::Gone) };
        if self.is_refused {
            self.client.session.leave(self.request.id);
            return Ok(Release::Gone);
        }
        // The time limit does not depend on the ttl, because the keeper repeats the release until
        // the cluster has confirmed it.
        let timeout = self.client.config.timeout;
        STORE.with_timeout(timeout, self.delete(&keys)).await
    }

    async fn changed(&mut self) {
        match &self.held_key {
            Some(held_key) => held_key.changed().await,
            None if self.seats.is_empty() => pending().await,
            None => drop(select_all(self.seats.iter().map(|(_, seat)| Box::pin(seat.notified()))).await),
        }
    }
}
