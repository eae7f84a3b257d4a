//! One claim in the cluster: a key in the queue of its name, under the client's lease. Over the usual length, so that all calls
//! of a claim are in one file.

mod queue;
mod together;

use std::{future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Error, Kind, Result, Token, Wait,
    driver::{Attempt, Claim, Grant, Release, Renewal, Request, Resumption, Seat},
};
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnResponse};
use futures_util::future::{select_all, try_join_all};
use tokio::time::Instant;

use crate::{
    client::{Client, Hold, Lease},
    connection::lease_id,
    error::{self, STORE},
    keys::{self, Keys, Record},
};
pub(crate) use queue::entry_of;
use queue::{Standing, look, ranges, standing};
pub(crate) use together::{MOST_TOGETHER, attempt_all};

/// How often an attempt looks into the queue again because the one that it waited for has left meanwhile.
const ROUNDS: usize = 3;

pub(crate) struct EtcdClaim {
    client: Arc<Client>,
    request: Request,
    /// Where the claim is in the cluster, as far as this object knows.
    place: Option<Place>,
    /// Whether the cluster has refused to make the key. Then it refuses to delete it as well.
    is_refused: bool,
    /// While it waits: the keys whose deletion wakes it.
    seats: Vec<(String, Seat)>,
    /// While it holds: the watch on its own key.
    hold: Option<Hold>,
    /// The leases of its own that this object has made for the claim, and that may be left.
    made: Vec<i64>,
    /// Key of a hold that was taken over: the id of another claim is in it.
    inherited: Option<String>,
    /// Id that the hold was detached as, or was to be.
    ticket: Option<ClaimId>,
    /// Whether this object has attempted the lock.
    has_asked: bool,
    /// Time of the last look into the queue that found the claim waiting, with all watches standing before it.
    settled: Option<Instant>,
}

/// What a single try has found.
enum Tried {
    /// Nobody held the lock or waited for it. Now this claim holds it.
    Taken,
    /// Somebody would have to go first. Nothing of this claim is in the cluster.
    Busy,
    /// The queue tells: the claim is there already, or it may hold beside others.
    InQueue,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// `None` if the key may have a lease of its own: a detachment has failed.
    lease: Option<i64>,
    /// The create revision: the place in the queue, and the token.
    revision: i64,
}

impl EtcdClaim {
    pub(crate) fn new(client: Arc<Client>, request: Request) -> Self {
        Self {
            client,
            request,
            place: None,
            is_refused: false,
            seats: Vec::new(),
            hold: None,
            made: Vec::new(),
            inherited: None,
            ticket: None,
            has_asked: false,
            settled: None,
        }
    }

    fn keys(&self) -> Result<Keys> {
        let mut keys = self.client.keys(&self.request.name, self.request.id)?;
        if let Some(own) = &self.inherited {
            keys.own.clone_from(own);
        }
        Ok(keys)
    }

    /// The id of this claim, where its key has the id of another one.
    fn heir(&self) -> Option<ClaimId> {
        self.inherited.as_ref().map(|_| self.request.id)
    }

    /// The longest that a call may take.
    fn bound(&self) -> Duration {
        self.client.config.timeout.min(self.request.ttl / 3)
    }

    async fn bounded<T>(bound: Duration, call: impl Future<Output = Result<T>>) -> Result<T> {
        STORE.with_timeout(bound, call).await
    }

    /// Begins the claim's ttl anew; `false` if it is being deleted.
    fn touch(&self, keys: &Keys) -> bool {
        self.client.session.touch(self.request.id, &keys.own, self.request.ttl)
    }

    async fn ask(&mut self) -> Result<Attempt> {
        let keys = self.keys()?;
        self.client.keep_running();
        let lease = self.client.session.lease().await?;
        if !self.touch(&keys) {
            return Err(being_deleted());
        }
        if self.is_settled(lease) {
            return Ok(Attempt::Busy { retry_in: Duration::MAX });
        }
        self.settled = None;
        self.seats.iter().for_each(|(_, seat)| seat.clear());
        if self.request.wait == Wait::Never {
            match self.try_first(&keys, lease).await? {
                Tried::Taken => return Ok(Attempt::Granted(self.granted(&keys, lease))),
                Tried::Busy => {
                    self.client.session.leave(self.request.id);
                    return Ok(Attempt::Busy { retry_in: Duration::MAX });
                }
                Tried::InQueue => {}
            }
        }
        for _ in 0..ROUNDS {
            let behind = match self.stand(&keys, lease).await? {
                Standing::First => return Ok(Attempt::Granted(self.granted(&keys, lease))),
                Standing::Behind(behind) => behind,
            };
            if self.request.wait == Wait::Never {
                self.withdraw(&keys).await?;
                return Ok(Attempt::Busy { retry_in: Duration::MAX });
            }
            if !self.join(behind).await? {
                self.settled = Some(Instant::now());
                return Ok(Attempt::Busy { retry_in: Duration::MAX });
            }
        }
        Ok(Attempt::Busy { retry_in: Duration::ZERO })
    }

    /// Returns `true` if a look into the queue would tell nothing new: the claim waits under this lease, its watches stood
    /// before the last look, and none has fired since. A watch does not tell that the claim's own key was deleted by hand,
    /// so once in a ttl the claim looks all the same, if the client allows it.
    fn is_settled(&self, lease: Lease) -> bool {
        self.settled.is_some_and(|looked| {
            self.place.is_some_and(|place| place.lease == Some(lease.id))
                && !self.seats.is_empty()
                && self.seats.iter().all(|(_, seat)| seat.is_quiet())
                && (looked.elapsed() < self.request.ttl || !self.client.allows_check())
        })
    }

    /// Takes a lock that nobody holds or waits for.
    async fn try_first(&mut self, keys: &Keys, lease: Lease) -> Result<Tried> {
        let put = self.put(keys, lease.id);
        let look = look(keys, self.request.kind, None);
        let txn = Txn::new()
            .when([nobody(keys)])
            .and_then([put])
            .or_else([TxnOp::get(keys.own.as_str(), None), look]);
        let Some(answer) = self.enter(txn, lease).await? else { return Err(without_lease()) };
        if answer.succeeded() {
            self.place = Some(Place { lease: Some(lease.id), revision: revision(&answer)? });
            return Ok(Tried::Taken);
        }
        let [own, queue] = &ranges(&answer)[..] else { return Err(STORE.unexpected_reply("a try")) };
        // A claim that is there already holds: its last answer was lost, or it is to be downgraded.
        let is_free = !own.is_empty() || standing(&self.request, i64::MAX, queue) == Standing::First;
        Ok(if is_free { Tried::InQueue } else { Tried::Busy })
    }

    /// Joins the queue, or looks into it again.
    async fn stand(&mut self, keys: &Keys, lease: Lease) -> Result<Standing> {
        if let Some(place) = self.place.filter(|place| place.lease == Some(lease.id)) {
            let is_there = Compare::create_revision(keys.own.as_str(), CompareOp::Equal, place.revision);
            let look = look(keys, self.request.kind, Some(place.revision));
            let answer = self.client.connection.txn(Txn::new().when([is_there]).and_then([look])).await?.told;
            if answer.succeeded() {
                let queue =
                    ranges(&answer).pop().ok_or_else(|| STORE.unexpected_reply("a look into the queue"))?;
                return Ok(standing(&self.request, place.revision, &queue));
            }
            // Somebody has deleted the key while the claim waited. It joins again, at the end.
            self.place = None;
        }
        Box::pin(self.join_queue(keys, lease)).await
    }

    async fn join_queue(&mut self, keys: &Keys, lease: Lease) -> Result<Standing> {
        let is_new = Compare::create_revision(keys.own.as_str(), CompareOp::Equal, 0);
        let (put, look) = (self.put(keys, lease.id), look(keys, self.request.kind, None));
        let txn =
            Txn::new().when([is_new]).and_then([put, look]).or_else([TxnOp::get(keys.own.as_str(), None)]);
        let Some(answer) = self.enter(txn, lease).await? else { return Err(without_lease()) };
        let first = ranges(&answer).pop().ok_or_else(|| STORE.unexpected_reply("an attempt"))?;
        if answer.succeeded() {
            let place = Place { lease: Some(lease.id), revision: revision(&answer)? };
            self.place = Some(place);
            return Ok(standing(&self.request, place.revision, &first));
        }
        let own = first.first().ok_or_else(|| STORE.unexpected_reply("an attempt"))?;
        // It is there already: the last answer was lost, or another kind of hold is to become this one.
        if (own.lease() != lease.id || Record::read(own.value()).kind != self.request.kind)
            && !self.take_over(keys, own, self.request.kind, lease.id, self.heir()).await?
        {
            return Err(STORE.unavailable("the claim was deleted at this moment"));
        }
        self.place = Some(Place { lease: Some(lease.id), revision: own.create_revision() });
        Box::pin(self.stand(keys, lease)).await
    }

    /// Sends a transaction that makes the key. `None` if the lease has ended; nothing is then made.
    async fn enter(&mut self, txn: Txn, lease: Lease) -> Result<Option<TxnResponse>> {
        let was_sure = self.client.session.note_unsure(self.request.id);
        let answer = self.client.connection.txn(txn).await;
        self.is_refused = was_sure && matches!(answer, Err(Error::Refused { .. }));
        let answer = match answer {
            Err(error) if error::is_without_lease(&error) => {
                self.client.session.note_end(lease.id);
                None
            }
            answer => Some(answer?),
        };
        // A request that was sent twice may come late.
        if was_sure && answer.as_ref().is_none_or(|answer| !answer.twice) {
            self.client.session.note_sure(self.request.id);
        }
        Ok(answer.map(|answer| answer.told))
    }

    fn put(&self, keys: &Keys, lease: i64) -> TxnOp {
        Self::put_as(&self.request, keys, lease, None, self.heir())
    }

    fn put_as(
        request: &Request,
        keys: &Keys,
        lease: i64,
        own_lease: Option<i64>,
        heir: Option<ClaimId>,
    ) -> TxnOp {
        let value = keys::value(request, own_lease, heir);
        TxnOp::put(keys.own.as_str(), value, Some(PutOptions::new().with_lease(lease)))
    }

    /// The key as it is now. `None` if it is gone, or was handed over to another claim than this one and its `ticket`.
    async fn find(&self, keys: &Keys, ticket: Option<ClaimId>) -> Result<Option<KeyValue>> {
        let found =
            self.client.connection.get(keys.own.as_bytes(), GetOptions::new()).await?.take_kvs().pop();
        let found =
            found.filter(|own| self.place.is_none_or(|place| place.revision == own.create_revision()));
        Ok(found.filter(|own| {
            let heir = Record::read(own.value()).heir;
            heir == self.heir() || heir.is_some() && heir == ticket
        }))
    }

    /// The key of the lock that was handed over to this ticket or to this claim. Reads the whole queue.
    async fn find_inherited(&self, keys: &Keys, ticket: ClaimId) -> Result<Option<KeyValue>> {
        let options = GetOptions::new().with_prefix();
        let queue = self.client.connection.get(keys.folder.as_bytes(), options).await?.take_kvs();
        let is_ours = |heir: Option<ClaimId>| heir == Some(ticket) || heir == Some(self.request.id);
        Ok(queue.into_iter().find(|one| is_ours(Record::read(one.value()).heir)))
    }

    /// Moves the key to this lease, with this kind, if it is still as it was `before`: a request that comes late must not move a
    /// key that somebody has changed since. `false` if it is gone.
    async fn take_over(
        &self,
        keys: &Keys,
        before: &KeyValue,
        kind: Kind,
        lease: i64,
        heir: Option<ClaimId>,
    ) -> Result<bool> {
        let own_lease = self.made.contains(&lease).then_some(lease);
        // It may come late, and the session then has a key that nobody holds.
        let was_sure = own_lease.is_some() || self.client.session.note_unsure(self.request.id);
        let mut request = self.request.clone();
        request.kind = kind;
        let is_same = Compare::mod_revision(keys.own.as_str(), CompareOp::Equal, before.mod_revision());
        let (get, put) =
            (TxnOp::get(keys.own.as_str(), None), Self::put_as(&request, keys, lease, own_lease, heir));
        let txn = Txn::new().when([is_same]).and_then([put]).or_else([get]);
        let answer = self.client.connection.txn(txn).await?;
        if own_lease.is_none() && was_sure && !answer.twice {
            self.client.session.note_sure(self.request.id);
        }
        if !answer.told.succeeded() {
            let now =
                ranges(&answer.told).pop().ok_or_else(|| STORE.unexpected_reply("a change of lease"))?;
            let Some(now) = now.first() else { return Ok(false) };
            // The first of two requests may have done it.
            let is_done = now.lease() == lease && Record::read(now.value()).heir == heir;
            if !is_done || now.create_revision() != before.create_revision() {
                return Err(STORE.unavailable(error::CHANGED));
            }
        }
        self.end_lease_of(before, lease).await;
        Ok(true)
    }

    /// Ends the lease of its own that a detached claim had. If that fails, it ends by itself, with no key.
    async fn end_lease_of(&self, before: &KeyValue, now: i64) {
        let own = Record::read(before.value()).own_lease;
        if let Some(lease) = own.filter(|lease| *lease == before.lease() && *lease != now) {
            let _ = self.client.connection.revoke(lease).await;
        }
    }

    /// Ends the leases that detachments have left that failed. None of them has the key.
    async fn end_made(&mut self) {
        while let Some(lease) = self.made.last() {
            if self.client.connection.revoke(*lease).await.is_err() {
                return;
            }
            self.made.pop();
        }
    }

    /// Takes a seat for each of these keys. `true` if it took one: the key may have been deleted before.
    async fn join(&mut self, behind: Vec<String>) -> Result<bool> {
        self.seats.retain(|(key, _)| behind.contains(key));
        let (kind, arrival) = (self.request.kind, self.place.map(|place| place.revision));
        let arrival = arrival.and_then(|revision| u64::try_from(revision).ok());
        // There must be time left to ask once more. A seat whose watch comes later is rung then.
        let limit = self.bound() / 3;
        let new = behind.into_iter().filter(|key| !self.seats.iter().any(|(known, _)| known == key));
        let seats = new.map(async |key| {
            let seat = self.client.seats.join(key.clone(), arrival, kind, limit).await;
            seat.map(|seat| (key, seat))
        });
        let seats = try_join_all(seats).await?;
        let is_new = !seats.is_empty();
        self.seats.extend(seats);
        Ok(is_new)
    }

    fn granted(&mut self, keys: &Keys, lease: Lease) -> Grant {
        self.seats.clear();
        let revision = self.place.map_or(0, |place| place.revision);
        let hold = || self.client.held.hold(&self.client.seats, &keys.own, revision);
        self.hold = Some(self.hold.take().unwrap_or_else(hold));
        let token = u64::try_from(revision).ok().and_then(Token::new);
        Grant { token, valid_for: lease.left().min(self.request.ttl) }
    }

    async fn extend(&mut self) -> Result<Renewal> {
        let keys = self.keys()?;
        self.client.keep_running();
        if self.place.is_none() && self.made.is_empty() && !self.has_asked {
            // It neither attempted the lock nor took it over.
            return Ok(Renewal::Lost);
        }
        let lease = self.client.session.lease().await?;
        let known = self.place.and_then(|place| place.lease);
        // Before the claim asks the cluster: a request to take it back may come late, and is deleted like any silent claim.
        if !self.touch(&keys) {
            return self.overdue();
        }
        if let Some(hold) = &self.hold {
            hold.clear();
        }
        let is_held = match (known, &self.hold) {
            (Some(known), _) if known != lease.id => false,
            (Some(_), Some(hold)) if hold.is_sound() && self.made.is_empty() => true,
            _ => {
                let client = Arc::clone(&self.client);
                client.in_lane(self.take_back(&keys, lease)).await?
            }
        };
        if !is_held {
            self.client.session.leave(self.request.id);
            return Ok(Renewal::Lost);
        }
        Ok(Renewal::Renewed { valid_for: lease.left().min(self.request.ttl) })
    }

    /// The answer while the claim is being deleted. Of a detached hold only the cluster knows whether it is there: what is deleted
    /// may be what an earlier request has left.
    fn overdue(&self) -> Result<Renewal> {
        self.place.and_then(|place| place.lease).map(|_| Renewal::Lost).ok_or_else(being_deleted)
    }

    /// Asks the cluster for the key, and moves it to the client's lease if it may have another. `false` if it is gone.
    async fn take_back(&mut self, keys: &Keys, lease: Lease) -> Result<bool> {
        let unseen = self.hold.as_ref().and_then(Hold::unseen);
        let Some(own) = self.find(keys, self.ticket).await? else { return Ok(false) };
        let is_known = self.place.is_some_and(|place| place.lease.is_some());
        // After a detachment that failed also if the lease is right: that request may come late, and is then refused.
        if (own.lease() != lease.id || !is_known)
            && !self.take_over(keys, &own, Record::read(own.value()).kind, lease.id, self.heir()).await?
        {
            return Ok(false);
        }
        self.place = Some(Place { lease: Some(lease.id), revision: own.create_revision() });
        match (&self.hold, unseen) {
            (Some(hold), Some(round)) => hold.note_seen(round),
            (Some(_), None) => {}
            // A deletion since the key was seen is heard of.
            (None, _) => {
                self.granted(keys, lease);
            }
        }
        self.end_made().await;
        Ok(true)
    }

    async fn leave_alone(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        self.ticket = Some(ticket);
        let mut keys = self.keys()?;
        if !self.touch(&keys) {
            return self.overdue();
        }
        let own = match self.find(&keys, self.ticket).await? {
            // A resumption whose reply was lost: the key has the id of another claim.
            None if self.place.is_none() => self.find_inherited(&keys, ticket).await?,
            found => found,
        };
        let Some(own) = own else {
            self.client.session.leave(self.request.id);
            return Ok(Renewal::Lost);
        };
        keys.own = String::from_utf8_lossy(own.key()).into_owned();
        // A hold that is detached already is never shortened.
        let is_detached = Record::read(own.value()).heir == Some(ticket);
        let left = if is_detached { self.client.connection.left(own.lease()).await? } else { None };
        if left.is_none_or(|left| left < lasting) {
            let lease = lease_id();
            self.made.push(lease);
            self.client.connection.grant(lease, lasting).await?;
            // If no answer comes, the next resumption asks which lease the key has, and moves it back.
            if let Some(place) = &mut self.place {
                place.lease = None;
            }
            self.hold = None;
            if !self.take_over(&keys, &own, Record::read(own.value()).kind, lease, Some(ticket)).await? {
                self.end_made().await;
                return Ok(Renewal::Lost);
            }
            self.made.retain(|made| *made != lease);
        }
        (self.place, self.hold) = (None, None);
        self.end_made().await;
        self.client.session.leave(self.request.id);
        Ok(Renewal::Renewed { valid_for: lasting })
    }

    /// Takes the hold of a ticket over. If another client changes the key at that moment, looks again what became of it.
    async fn inherit(&mut self, ticket: ClaimId) -> Result<Resumption> {
        for _ in 1..ROUNDS {
            match self.try_to_inherit(ticket).await {
                Err(error) if error::is_changed(&error) => {}
                outcome => return outcome,
            }
        }
        self.try_to_inherit(ticket).await
    }

    async fn try_to_inherit(&mut self, ticket: ClaimId) -> Result<Resumption> {
        let mut keys = self.keys()?;
        self.client.keep_running();
        let lease = self.client.session.lease().await?;
        let own = if self.ticket.is_some() || self.inherited.is_some() {
            self.find(&keys, Some(ticket)).await?
        } else {
            self.find_inherited(&keys, ticket).await?
        };
        let Some(own) = own else {
            self.client.session.leave(self.request.id);
            return Ok(Resumption::Gone);
        };
        let key = String::from_utf8_lossy(own.key()).into_owned();
        if key != keys.own {
            keys.own.clone_from(&key);
            self.inherited = Some(key);
        }
        // Before the claim asks the cluster: a request to take it over may come late, and is deleted like any silent claim.
        if !self.touch(&keys) {
            return Err(being_deleted());
        }
        let record = Record::read(own.value());
        let is_detached = record.heir == Some(ticket);
        let left = if is_detached { self.client.connection.left(own.lease()).await? } else { None };
        // Also if the lease is right: a late detachment is refused once the key has changed.
        if !self.take_over(&keys, &own, record.kind, lease.id, self.heir()).await? {
            self.client.session.leave(self.request.id);
            return Ok(Resumption::Gone);
        }
        self.place = Some(Place { lease: Some(lease.id), revision: own.create_revision() });
        let grant = self.granted(&keys, lease);
        self.end_made().await;
        Ok(Resumption::Resumed { grant, remaining: left })
    }

    /// Whether this client has asked for the claim, and this object was never told that its key is there.
    fn has_asked_in_vain(&self) -> bool {
        self.place.is_none() && self.made.is_empty() && self.client.session.knows(self.request.id)
    }

    /// Deletes the key of a hold that was handed over to this claim or to its ticket, if it is as it was seen.
    async fn withdraw_inherited(&mut self, keys: &Keys) -> Result<Release> {
        let ticket = self.ticket.unwrap_or(self.request.id);
        let Some(own) = self.find_inherited(keys, ticket).await? else { return Ok(Release::Gone) };
        self.delete_as_seen(&own).await
    }

    /// Deletes a key if it is as it was seen.
    async fn delete_as_seen(&self, own: &KeyValue) -> Result<Release> {
        let is_same = Compare::mod_revision(own.key(), CompareOp::Equal, own.mod_revision());
        let txn = Txn::new().when([is_same]).and_then([TxnOp::delete(own.key(), None)]);
        let answer = self.client.connection.txn(txn).await?;
        if !answer.told.succeeded() && !answer.twice {
            return Err(STORE.unavailable(error::CHANGED));
        }
        self.end_lease_of(own, 0).await;
        Ok(Release::Done)
    }

    /// Deletes the key.
    async fn withdraw(&mut self, keys: &Keys) -> Result<Release> {
        // An object that never asked for the lock releases by ticket. One whose resumption failed does not know the key.
        let is_of_ticket = self.place.is_none() && (self.ticket.is_some() || !self.has_asked);
        // A key that was written more than once may have been handed over, and is looked at first.
        let is_untouched = Compare::version(keys.own.as_str(), CompareOp::Equal, 1);
        let delete = TxnOp::delete(keys.own.as_str(), None);
        let txn = Txn::new().when([is_untouched]).and_then([delete]);
        let txn = txn.or_else([TxnOp::get(keys.own.as_str(), None)]);
        let answer = match self.client.connection.txn(txn).await {
            // Who may not delete the key could not make it either. If a request of somebody who could then is still under way, the
            // session deletes what it makes, or ends.
            Err(Error::Refused { .. }) if self.has_asked_in_vain() => {
                self.seats.clear();
                self.client.session.leave(self.request.id);
                return Ok(Release::Gone);
            }
            answer => answer?,
        };
        // If this claim was woken and has not asked since, the wake-up goes to the client's next waiter.
        self.seats.clear();
        (self.place, self.hold) = (None, None);
        // If a request may still make the key again, it is deleted once more when the ttl is over.
        self.client.session.leave(self.request.id);
        let mut release = if answer.told.succeeded() || answer.twice { Release::Done } else { Release::Gone };
        if let Some(own) = ranges(&answer.told).pop().and_then(|mut found| found.pop()) {
            let heir = Record::read(own.value()).heir;
            if heir == self.heir() || heir.is_some() && heir == self.ticket {
                release = self.delete_as_seen(&own).await?;
            }
        } else if release == Release::Gone && is_of_ticket {
            release = self.withdraw_inherited(keys).await?;
        }
        self.end_made().await;
        Ok(release)
    }
}

fn being_deleted() -> Error {
    STORE.unavailable("the claim's ttl was over, and it is being deleted")
}

fn without_lease() -> Error {
    STORE.unavailable("the client's lease is gone")
}

/// That nobody holds this lock or waits for it.
fn nobody(keys: &Keys) -> Compare {
    Compare::create_revision(keys.folder.as_str(), CompareOp::Equal, 0).with_prefix()
}

/// The create revision of the keys that this transaction has made.
fn revision(answer: &TxnResponse) -> Result<i64> {
    answer
        .header()
        .map(etcd_client::ResponseHeader::revision)
        .ok_or_else(|| STORE.unexpected_reply("an attempt"))
}

#[async_trait]
impl Claim for EtcdClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        self.has_asked = true;
        self.client.info.check_kind(self.request.kind)?;
        Self::bounded(self.bound(), self.ask()).await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        Self::bounded(self.bound(), self.extend()).await
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        let client = Arc::clone(&self.client);
        Self::bounded(self.bound(), client.in_lane(self.leave_alone(lasting, ticket))).await
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        let client = Arc::clone(&self.client);
        Self::bounded(self.bound(), client.in_lane(self.inherit(ticket))).await
    }

    async fn release(&mut self) -> Result<Release> {
        // A name that is refused was never taken.
        let Ok(keys) = self.keys() else { return Ok(Release::Gone) };
        if self.is_refused {
            self.client.session.leave(self.request.id);
            return Ok(Release::Gone);
        }
        // However short the ttl is: the keeper asks until the cluster has confirmed it.
        let client = Arc::clone(&self.client);
        Self::bounded(client.config.timeout, client.in_lane(self.withdraw(&keys))).await
    }

    async fn changed(&mut self) {
        match &self.hold {
            Some(hold) => hold.changed().await,
            None if self.seats.is_empty() => pending().await,
            None => drop(select_all(self.seats.iter().map(|(_, seat)| Box::pin(seat.notified()))).await),
        }
    }
}
