//! One claim in the queue.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Kind, Result, Token, Wait,
    driver::{
        Attempt, Claim, Grant, LateExecution, LateRequests, Moment, Release, Renewal, Request, Resumption,
    },
};
use tokio::time::Instant;

use self::{attempt::Attempted, waiting::Awaited};
use super::{
    client::{QueueClient, Registration},
    inspect::{Place, QueueRow, duration},
    renewals::RenewalRequest,
};
use crate::{
    connection::{Call, Reply},
    error::STORE,
    keys,
    session::Session,
    sql::{DETACH, NO_LOCK, RELEASE, RESUME, RING_AGAIN, SWEEP, column, expect, flag, literal, micros},
};

mod attempt;
mod waiting;

pub(super) struct QueueClaim {
    client: Arc<QueueClient>,
    request: Request,
    /// The claims ahead that this claim waits for, in their places, each with the way in which the
    /// claim learns of its end.
    awaited: HashMap<Place, Awaited>,
    /// Number of polls in a row that found no change.
    polls: u32,
    /// Whether the last attempt found or put the claim in the queue.
    is_queued: bool,
    /// Time of the last confirmation by the server that the waiting claim is in the queue.
    confirmed_at: Instant,
    /// Time of the next look-up of the claims ahead, if they are this client's.
    poll_at: Instant,
    /// Whether a doorbell or a seat was rung since the last attempt was sent.
    is_woken: bool,
    /// Present while the claim is in the queue, or may be.
    registration: Option<Registration>,
    /// Id under which the store may know the hold, once `detach` was called.
    ticket: Option<ClaimId>,
    late: LateRequests,
}

impl QueueClaim {
    pub(super) fn new(client: Arc<QueueClient>, request: Request) -> Self {
        let now = Instant::now();
        Self {
            client,
            request,
            awaited: HashMap::new(),
            polls: 0,
            is_queued: false,
            confirmed_at: now,
            poll_at: now,
            is_woken: false,
            registration: None,
            ticket: None,
            late: LateRequests::default(),
        }
    }

    fn register(&mut self) {
        let (client, id) = (&self.client, self.request.id);
        self.registration.get_or_insert_with(|| client.register(id));
    }

    /// Returns the session that owns the claim's doorbell, if it is known.
    fn bell_owner(&self) -> Option<Arc<Session>> {
        self.client.local_claims.bell_owner(self.request.id)
    }

    /// Returns a call about this claim, on the session that owns the claim's doorbell. Without an
    /// owner, the call may take the doorbell on any session.
    fn call<'a>(&self, batch: String, timeout: Duration, bell_owner: Option<&'a Arc<Session>>) -> Call<'a> {
        let mut call = Call::new(batch, timeout);
        if bell_owner.is_none() {
            // The statements before the refused one may have taken the doorbell.
            call.undo = format!("ROLLBACK; DO {}", self.ring_sql());
        }
        call.session = bell_owner;
        call
    }

    /// Returns the SQL expression that takes the claim's doorbell. A session that owns it must not
    /// take it again, because the server counts how often a session has taken a named lock.
    fn take_bell_sql(&self, bell_owner: Option<&Arc<Session>>) -> String {
        if bell_owner.is_some() || !self.client.doorbells.are_enabled() {
            return NO_LOCK.to_owned();
        }
        format!("GET_LOCK({}, 0)", keys::bell_literal(self.request.id))
    }

    /// Returns the SQL expression that wakes the claim's waiters.
    fn ring_sql(&self) -> String {
        if !self.client.doorbells.are_configured() {
            return NO_LOCK.to_owned();
        }
        format!("RELEASE_LOCK({})", keys::bell_literal(self.request.id))
    }

    /// Extends the claim by its ttl. Returns the time since the sending of the request that
    /// extended it, which may be a call of another claim. Returns `None` if the claim is not in the
    /// queue.
    async fn keep_alive(&mut self) -> Result<Option<Duration>> {
        self.register();
        let (client, id, ttl) = (&self.client, self.request.id, self.request.ttl);
        let checks_bell = client.doorbells.are_enabled()
            && client.local_claims.needs_owner_check(id, client.connection.session_epoch(), ttl);
        let sent = Moment::now();
        if !checks_bell && let Some(age) = client.local_claims.carried_renewal(id, ttl).await {
            return Ok(Some(age));
        }
        if client.renewals.submit(Arc::new(RenewalRequest { id, ttl, checks_bell }), ttl).await? {
            client.local_claims.record_renewal(id, ttl, sent);
            return Ok(Some(sent.elapsed()));
        }
        Ok(None)
    }

    /// Wakes waiters on other clients behind a claim that became a reader. Its doorbell is released
    /// and taken again.
    async fn ring_again(&mut self, bell_owner: &Arc<Session>) {
        if self.client.doorbells.are_enabled() {
            let batch = RING_AGAIN.with(&[("bell", &keys::bell_literal(self.request.id))]);
            let timeout = self.client.connection.timeout_for(self.request.ttl);
            // A waiter that is not woken polls.
            self.client.connection.call(self.call(batch, timeout, Some(bell_owner))).await.ok();
        }
    }

    /// Rings the doorbell on the session that owns it. Does nothing if that session is `session`,
    /// on which the doorbell was rung already. Another session may own the doorbell if a call on it
    /// has renewed the claim.
    async fn ring_elsewhere(&mut self, session: &Arc<Session>) {
        let Some(owner) = self.bell_owner().filter(|owner| !Arc::ptr_eq(owner, session)) else { return };
        let ring = format!("DO {}", self.ring_sql());
        let timeout = self.client.connection.timeout_for(self.request.ttl);
        if self.client.connection.call(self.call(ring, timeout, Some(&owner))).await.is_err() {
            owner.end();
        }
    }

    /// Records the owner of the doorbell after a call that takes the doorbell if it had no owner.
    /// If the former owner has ended, the doorbell has no owner, and the next call takes it.
    fn record_bell_owner(
        &self,
        former_owner: Option<&Arc<Session>>,
        session: &Arc<Session>,
        session_epoch: u64,
    ) {
        let (local_claims, id) = (&self.client.local_claims, self.request.id);
        if former_owner.is_none_or(|owner| Arc::ptr_eq(owner, session)) {
            local_claims.set_bell_owner(id, session, session_epoch);
        } else {
            local_claims.clear_bell_owner(id);
        }
    }

    /// Sends a batch that changes the claim's id, and that the server refuses once the caller has
    /// given up. The last row of the reply says whether the batch was in time.
    async fn rename(&mut self, batch: String, bell_owner: Option<&Arc<Session>>) -> Result<Reply> {
        let timeout = self.client.connection.timeout_for(self.request.ttl);
        let mut call = self.call(batch, timeout, bell_owner);
        call.late_execution = LateExecution::Refused(&self.late);
        let reply = self.client.connection.call(call).await?;
        if !flag(expect(reply.rows.last(), "a detached claim")?, "is_in_time")? {
            reply.session.doubt_clock();
            return Err(STORE.timed_out(timeout));
        }
        Ok(reply)
    }

    /// Records that the store has no trace of the claim.
    fn clear(&mut self) {
        self.awaited.clear();
        self.is_queued = false;
        self.registration = None;
    }
}

#[async_trait]
impl Claim for QueueClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let (client, id) = (Arc::clone(&self.client), self.request.id);
        client.info.check_kind(self.request.kind)?;
        let is_try = self.request.wait == Wait::Never;
        let may_downgrade = self.request.kind == Kind::Read
            && self.registration.is_none()
            && client.local_claims.contains(id);
        self.register();
        if self.is_queued
            && !is_try
            && !self.awaited.is_empty()
            && !self.was_woken()
            && let Some(retry_in) = self.stay_queued().await?
        {
            return Ok(Attempt::Busy { retry_in });
        }
        self.is_woken = false;
        for awaited in self.awaited.values() {
            if let Awaited::Local(seat) = awaited {
                seat.clear();
            }
        }
        self.confirmed_at = Instant::now();
        let attempted = self.enter().await?;
        if may_downgrade && let Some(bell_owner) = self.bell_owner() {
            // Readers behind the claim that was exclusive may hold now. They may be woken after the
            // downgrade.
            client.wake_local_waiters(id);
            self.ring_again(&bell_owner).await;
        }
        let ahead = match attempted {
            Attempted::Granted(token) => {
                self.awaited.clear();
                return Ok(Attempt::Granted(Grant { token, valid_for: self.request.ttl }));
            }
            Attempted::Refused(ahead) => {
                self.clear();
                let retry_in = ahead.iter().map(|row| row.time_left).min().unwrap_or_default();
                return Ok(Attempt::Busy { retry_in });
            }
            Attempted::Waiting(ahead) => ahead,
        };
        if self.wait_for(&ahead) {
            // A claim that ended before its seat was taken did not wake this waiter.
            let has_ended = |place: &Place| !client.local_claims.contains(place.id);
            let is_missed = |(place, awaited): (&Place, &Awaited)| {
                matches!(awaited, Awaited::Local(_)) && has_ended(place)
            };
            if self.awaited.iter().any(is_missed) {
                return Ok(Attempt::Busy { retry_in: Duration::ZERO });
            }
        }
        Ok(Attempt::Busy { retry_in: self.retry_in(ahead.iter().map(|row| row.time_left)) })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let sent = Moment::now();
        let Some(age) = self.keep_alive().await? else {
            self.clear();
            return Ok(Renewal::Lost);
        };
        // The engine counts from before this call. A carried renewal may be older.
        let valid_for = self.request.ttl.saturating_sub(age.saturating_sub(sent.elapsed()));
        Ok(Renewal::Renewed { valid_for })
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        let id = self.request.id;
        let bell_owner = self.bell_owner();
        let batch = DETACH.with(&[
            ("queue", self.client.connection.tables.queue.as_str()),
            ("name", &literal(self.request.name.as_str().as_bytes())),
            ("claim", &keys::claim_literal(id)),
            ("ticket", &keys::claim_literal(ticket)),
            ("ttl", &micros(lasting)),
            ("ring", &self.ring_sql()),
        ]);
        self.client.local_claims.forget_renewal(id);
        self.ticket = Some(ticket);
        let reply = self.rename(batch, bell_owner.as_ref()).await?;
        // From now on the hold belongs to no client. When this value is dropped, it must neither
        // ring the doorbell of the hold nor wake waiters.
        self.ring_elsewhere(&reply.session).await;
        self.clear();
        Ok(match flag(expect(reply.rows.last(), "a detached claim")?, "is_renamed")? {
            true => Renewal::Renewed { valid_for: lasting },
            false => {
                // The ticket may be that of another claim, which the release must not find.
                self.ticket = None;
                Renewal::Lost
            }
        })
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        self.register();
        let bell_owner = self.bell_owner();
        let batch = RESUME.with(&[
            ("queue", self.client.connection.tables.queue.as_str()),
            ("name", &literal(self.request.name.as_str().as_bytes())),
            ("claim", &keys::claim_literal(self.request.id)),
            ("ticket", &keys::claim_literal(ticket)),
            ("who", &literal(self.request.who.text().as_bytes())),
            ("ttl", &micros(self.request.ttl)),
            ("bell", &self.take_bell_sql(bell_owner.as_ref())),
        ]);
        let session_epoch = self.client.connection.session_epoch();
        let reply = self.rename(batch, bell_owner.as_ref()).await?;
        let row = expect(reply.rows.last(), "a detached claim")?;
        if !flag(row, "is_renamed")? {
            self.clear();
            return Ok(Resumption::Gone);
        }
        self.ticket = None;
        self.record_bell_owner(bell_owner.as_ref(), &reply.session, session_epoch);
        self.client.wake_local_waiters(ticket);
        let token = Token::new(column(row, "seq")?);
        let remaining = duration(row, "time_left")?;
        Ok(Resumption::Resumed {
            grant: Grant { token, valid_for: self.request.ttl },
            remaining: (!flag(row, "had_own_id")?).then_some(remaining),
        })
    }

    /// From now on no call of another claim may renew this one.
    fn leave(&mut self) {
        self.client.local_claims.forget_renewal(self.request.id);
    }

    async fn release(&mut self) -> Result<Release> {
        self.leave();
        let bell_owner = self.bell_owner();
        let queue = self.client.connection.tables.queue.as_str();
        let ids = std::iter::once(self.request.id).chain(self.ticket);
        let claims: Vec<_> = ids.map(keys::claim_literal).collect();
        let mut batch = RELEASE.with(&[
            ("queue", queue),
            ("name", &literal(self.request.name.as_str().as_bytes())),
            ("claims", &claims.join(",")),
            ("ring", &self.ring_sql()),
        ]);
        if self.client.count_release() {
            batch.push(';');
            batch.push_str(&SWEEP.with(&[("queue", queue)]));
        }
        // A release is not bounded by the ttl, because the hold has ended for its caller.
        let call = self.call(batch, self.client.connection.timeout(), bell_owner.as_ref());
        let reply = self.client.connection.call(call).await?;
        self.ring_elsewhere(&reply.session).await;
        self.clear();
        if reply.is_from_another_session() {
            // The release rang no doorbell, because another session owns it. Other doorbells would
            // fail in the same way.
            self.client.doorbells.disable();
        }
        let is_deleted = flag(expect(reply.rows.last(), "a release")?, "is_deleted")?;
        Ok(if is_deleted || reply.maybe_repeated { Release::Done } else { Release::Gone })
    }

    fn may_be_stored(&self) -> bool {
        self.late.has_sent()
    }

    fn late_for(&self) -> Duration {
        self.late.remaining()
    }

    async fn changed(&mut self) {
        self.woken().await;
    }
}
