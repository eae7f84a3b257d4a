//! An attempt of a claim. It joins the queue, reads the claims ahead, and watches them.

use std::{sync::Arc, time::Duration};

use dlock_core::{Error, Result, Wait, driver::Attempt};
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnResponse};
use futures_util::future::try_join_all;
use tokio::time::Instant;

use super::{EtcdClaim, OwnKey, being_deleted, created_revision, is_free, lease_has_ended};
use crate::{
    error::{self, STORE},
    keys::{Keys, Record},
    queue::{self, Place, Position, Queue, Reader, position, ranges, waits_for_all},
    session::Lease,
};

/// Maximum number of reads of the queue in one attempt. Each further read follows the deletion of a
/// claim that was ahead.
const MAX_READS: usize = 3;

/// Numbers of keys ahead that a claim checks in its first and its second transaction. The second is
/// sent only if all keys of the first were deleted. Few keys suffice after a hand-off, and many
/// after the end of another client. If these were deleted as well, the claim reads the whole queue.
/// By default a server allows 128 operations in a transaction.
const CHECKED_AT_ONCE: [usize; 2] = [4, 64];

/// Result of an attempt that needs no timed retry, because a watch reports the change or the caller
/// does not wait.
const BUSY_UNTIL_HINT: Attempt = Attempt::Busy { retry_in: Duration::MAX };

/// Result of a single try.
enum TryOutcome {
    /// There was no other claim, and this claim now holds the lock.
    Acquired,
    /// The claim would have to wait. The cluster has no key of it.
    Busy,
    /// The queue has to be read. The claim has a key already, or it may hold beside others.
    Undecided,
}

impl EtcdClaim {
    /// Makes an attempt.
    pub(super) async fn try_acquire(&mut self) -> Result<Attempt> {
        let keys = self.keys()?;
        self.client.ensure_pump_runs();
        let lease = self.client.session.lease().await?;
        if !self.touch(&keys) {
            return Err(being_deleted());
        }
        if self.is_unchanged(lease) {
            return Ok(BUSY_UNTIL_HINT);
        }
        self.checked_at = None;
        self.seats.iter().for_each(|(_, seat)| seat.clear());
        if self.request.wait == Wait::Never {
            match self.try_once(&keys, lease).await? {
                TryOutcome::Acquired => return Ok(Attempt::Granted(self.grant(&keys, lease))),
                TryOutcome::Busy => {
                    self.client.session.leave(self.request.id);
                    return Ok(BUSY_UNTIL_HINT);
                }
                TryOutcome::Undecided => {}
            }
        }
        for _ in 0..MAX_READS {
            let ahead = match self.find_position(&keys, lease).await? {
                Position::First => return Ok(Attempt::Granted(self.grant(&keys, lease))),
                Position::Behind(ahead) => ahead,
            };
            if self.request.wait == Wait::Never {
                self.delete(&keys).await?;
                return Ok(BUSY_UNTIL_HINT);
            }
            if !self.watch(ahead).await? {
                self.checked_at = Some(Instant::now());
                return Ok(BUSY_UNTIL_HINT);
            }
        }
        Ok(Attempt::Busy { retry_in: Duration::ZERO })
    }

    /// Returns whether a read of the queue would find nothing new. This is the case if the claim
    /// waits under this lease, its watches had started before the last read, and none has reported
    /// an event since.
    ///
    /// No watch reports that another program has deleted the claim's own key. Once per ttl this
    /// therefore returns `false`, if the client allows the read.
    fn is_unchanged(&self, lease: Lease) -> bool {
        self.checked_at.is_some_and(|checked_at| {
            self.own_key.is_some_and(|own_key| own_key.lease == Some(lease.id))
                && !self.seats.is_empty()
                && self.seats.iter().all(|(_, seat)| seat.is_quiet())
                && (checked_at.elapsed() < self.request.ttl || !self.client.allows_check())
        })
    }

    /// Acquires the lock if it has no other claim.
    async fn try_once(&mut self, keys: &Keys, lease: Lease) -> Result<TryOutcome> {
        let txn = Txn::new()
            .when([is_free(keys)])
            .and_then([self.put(keys, lease.id)])
            .or_else([TxnOp::get(keys.own.as_str(), None), queue::read(keys, self.request.kind, None)]);
        let response = self.send_create(txn, lease).await?;
        if response.succeeded() {
            let create_revision = created_revision(&response)?;
            self.own_key = Some(OwnKey { lease: Some(lease.id), create_revision });
            return Ok(TryOutcome::Acquired);
        }
        let [own, queue] = &ranges(&response)[..] else { return Err(STORE.unexpected_reply("a try")) };
        // If the claim has a key already, it holds the lock. Its last reply was lost, or it is to
        // be downgraded.
        let may_hold = !own.is_empty() || position(&self.request, i64::MAX, queue) == Position::First;
        Ok(if may_hold { TryOutcome::Undecided } else { TryOutcome::Busy })
    }

    /// Finds the claim's position in the queue. Joins the queue first if the claim has no key
    /// there.
    async fn find_position(&mut self, keys: &Keys, lease: Lease) -> Result<Position> {
        let shared = self.shared_queue(keys);
        let queue = shared.as_ref().and_then(|(_reader, queue)| queue.as_ref());
        if let Some(own_key) = self.own_key.filter(|own_key| own_key.lease == Some(lease.id)) {
            if let Some(position) = self.position_of(keys, own_key, queue).await? {
                return Ok(position);
            }
            // Another program has deleted the key while the claim was waiting. The claim joins
            // again, at the end.
            self.own_key = None;
        }
        Box::pin(self.join_queue(keys, lease, queue)).await
    }

    /// Counts the claim as a reader of the client's snapshot of the queue. Also returns the
    /// snapshot if other claims read their position at the same time, or if the snapshot contains
    /// all claims ahead already.
    ///
    /// Returns `None` for a claim that does not wait for all claims ahead, because the snapshot
    /// does not contain their kinds, and for a single try.
    fn shared_queue(&mut self, keys: &Keys) -> Option<(Reader, Option<Arc<Queue>>)> {
        if self.request.wait == Wait::Never || !waits_for_all(self.request.kind) {
            return None;
        }
        if self.queue.is_none() {
            let queue = self.client.queue(keys);
            self.reads_before = queue.reads_sent();
            self.queue = Some(queue);
        }
        let queue = self.queue.as_ref()?;
        let (reader, has_others) = queue.enter();
        let is_useful = has_others || queue.is_read_after(self.reads_before);
        Some((reader, is_useful.then(|| Arc::clone(queue))))
    }

    /// Returns the position of the claim's key, or `None` if that key was deleted.
    async fn position_of(
        &self,
        keys: &Keys,
        own_key: OwnKey,
        queue: Option<&Arc<Queue>>,
    ) -> Result<Option<Position>> {
        let Some(queue) = queue else { return self.read_position(keys, own_key).await };
        match self.check_position(keys, own_key, queue).await {
            // The server may allow fewer operations in a transaction.
            Err(error) if !error.is_transient() => self.read_position(keys, own_key).await,
            position => position,
        }
    }

    /// Reads the claim directly ahead. Returns `None` if the claim's own key was deleted.
    async fn read_position(&self, keys: &Keys, own_key: OwnKey) -> Result<Option<Position>> {
        let revision = own_key.create_revision;
        let read = queue::read(keys, self.request.kind, Some(revision));
        let found = self.read_if_queued(keys, own_key, vec![read]).await?;
        Ok(found.map(|found| position(&self.request, revision, &found.concat())))
    }

    /// Checks which of the claims ahead, according to the snapshot, still exist. Returns `None` if
    /// the claim's own key was deleted.
    async fn check_position(&self, keys: &Keys, own_key: OwnKey, queue: &Queue) -> Result<Option<Position>> {
        let (connection, revision) = (&self.client.connection, own_key.create_revision);
        queue.ensure_read_after(connection, self.reads_before).await?;
        for count in CHECKED_AT_ONCE {
            let nearest = queue.nearest_ahead(revision, count);
            // Without a claim ahead, the transaction only checks the claim's own key.
            let reads = nearest.iter().map(|(_, key)| get_key(key)).collect();
            let Some(found) = self.read_if_queued(keys, own_key, reads).await? else { return Ok(None) };
            for (place, found) in nearest.iter().zip(found) {
                if found.iter().any(|found| found.create_revision() == place.0) {
                    return Ok(Some(Position::Behind(vec![text(place)])));
                }
                queue.note_deleted(place);
            }
            if nearest.len() < count {
                return Ok(Some(Position::First));
            }
        }
        queue.ensure_read_after(connection, queue.reads_sent()).await?;
        Ok(position_in(queue, &(revision, keys.own.clone().into_bytes())))
    }

    /// Sends reads that are executed only if the claim's own key exists. Returns the keys that each
    /// has found, or `None` if the own key does not exist.
    async fn read_if_queued(
        &self,
        keys: &Keys,
        own_key: OwnKey,
        reads: Vec<TxnOp>,
    ) -> Result<Option<Vec<Vec<KeyValue>>>> {
        let count = reads.len();
        let exists = Compare::create_revision(keys.own.as_str(), CompareOp::Equal, own_key.create_revision);
        let response = self.client.connection.txn(Txn::new().when([exists]).and_then(reads)).await?.body;
        if !response.succeeded() {
            return Ok(None);
        }
        let found = ranges(&response);
        if found.len() != count {
            return Err(STORE.unexpected_reply("a read of the queue"));
        }
        Ok(Some(found))
    }

    async fn join_queue(
        &mut self,
        keys: &Keys,
        lease: Lease,
        shared: Option<&Arc<Queue>>,
    ) -> Result<Position> {
        let is_new = Compare::create_revision(keys.own.as_str(), CompareOp::Equal, 0);
        let read = shared.is_none().then(|| queue::read(keys, self.request.kind, None));
        let join: Vec<_> = [self.put(keys, lease.id)].into_iter().chain(read).collect();
        let txn = Txn::new().when([is_new]).and_then(join).or_else([TxnOp::get(keys.own.as_str(), None)]);
        let response = self.send_create(txn, lease).await?;
        self.reads_before = self.queue.as_ref().map_or(0, |queue| queue.reads_sent());
        let found = ranges(&response).pop();
        if response.succeeded() {
            let create_revision = created_revision(&response)?;
            self.own_key = Some(OwnKey { lease: Some(lease.id), create_revision });
            let Some(queue) = shared else {
                let found = found.ok_or_else(|| STORE.unexpected_reply("an attempt"))?;
                return Ok(position(&self.request, create_revision, &found));
            };
            queue.ensure_read_after(&self.client.connection, self.reads_before).await?;
            let position = position_in(queue, &(create_revision, keys.own.clone().into_bytes()));
            return position.ok_or_else(|| STORE.unavailable("another program has deleted the claim"));
        }
        let own = found.and_then(|mut found| found.pop());
        let own = own.ok_or_else(|| STORE.unexpected_reply("an attempt"))?;
        // The key exists already. The last reply was lost, or a hold of another kind is to be
        // downgraded.
        if (own.lease() != lease.id || Record::read(own.value()).kind != self.request.kind)
            && !self.rewrite(keys, &own, self.request.kind, lease.id, self.renamed_to()).await?
        {
            return Err(STORE.unavailable("another request has deleted the claim at the same time"));
        }
        self.own_key = Some(OwnKey { lease: Some(lease.id), create_revision: own.create_revision() });
        Box::pin(self.find_position(keys, lease)).await
    }

    /// Sends a transaction that creates the key.
    ///
    /// # Errors
    /// If the lease has ended, the key was not created. Other errors leave that unknown.
    async fn send_create(&mut self, txn: Txn, lease: Lease) -> Result<TxnResponse> {
        let session = &self.client.session;
        let is_only_request = session.expect_late_request(self.request.id, self.value());
        let result = self.client.connection.txn(txn).await;
        self.is_refused = is_only_request && matches!(result, Err(Error::Refused { .. }));
        let response = match result {
            Err(error) if error::is_without_lease(&error) => {
                session.note_lease_end(lease.id);
                None
            }
            result => Some(result?),
        };
        // If the request was sent twice, the first send may be executed late.
        if is_only_request && response.as_ref().is_none_or(|response| !response.maybe_repeated) {
            session.rule_out_late_requests(self.request.id);
        }
        response.map(|response| response.body).ok_or_else(lease_has_ended)
    }

    /// Takes a seat for each of these keys, and leaves all other seats. Returns whether a seat is
    /// new, in which case its key may have been deleted before the watch started.
    async fn watch(&mut self, ahead: Vec<String>) -> Result<bool> {
        self.seats.retain(|(key, _)| ahead.contains(key));
        let arrival = self.own_key.and_then(|own_key| u64::try_from(own_key.create_revision).ok());
        // Time must remain for another read. A seat whose watch starts later is notified then.
        let limit = self.time_limit() / 3;
        let new = ahead.into_iter().filter(|key| !self.seats.iter().any(|(taken, _)| taken == key));
        let seats = new.map(async |key| {
            let seat = self.client.seats.join(key.clone(), arrival, self.request.kind, limit).await;
            seat.map(|seat| (key, seat))
        });
        let seats = try_join_all(seats).await?;
        let is_new = !seats.is_empty();
        self.seats.extend(seats);
        Ok(is_new)
    }
}

/// Returns the position of a claim according to a snapshot, or `None` if the snapshot lacks the
/// claim.
fn position_in(queue: &Queue, own: &Place) -> Option<Position> {
    if !queue.contains(own) {
        return None;
    }
    let ahead = queue.nearest_ahead(own.0, 1);
    Some(ahead.first().map_or(Position::First, |place| Position::Behind(vec![text(place)])))
}

/// Returns the operation that reads whether a key exists.
fn get_key(key: &[u8]) -> TxnOp {
    TxnOp::get(key, Some(GetOptions::new().with_keys_only()))
}

/// Returns the key of a place as text, to watch it.
fn text((_, key): &Place) -> String {
    String::from_utf8_lossy(key).into_owned()
}
