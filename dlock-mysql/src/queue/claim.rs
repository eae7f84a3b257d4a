//! One claim in the queue.

use std::{collections::HashMap, future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Kind, Result, Token, Wait,
    driver::{Attempt, Claim, Entry, Grant, Moment, Release, Renewal, Request, Resumption, Seat, watched},
};
use futures_util::{
    FutureExt as _,
    future::{BoxFuture, select_all, try_join_all},
};
use tokio::time::Instant;

use super::{
    client::{QueueClient, Registration},
    inspect::{QueueRow, duration},
    renewals::RenewalRequest,
};
use crate::{
    connection::{Call, LateExecution, Priority, Reply},
    error::{self, STORE},
    keys,
    session::Session,
    sql::{
        AGAIN, ATTEMPT, DETACH, NO_LOCK, RELEASE, RESUME, RING_AGAIN, SWEEP, TRY_CLEAN, TRY_CONDITION,
        column, expect, flag, literal, micros,
    },
};

/// Poll interval while a claim ahead has no doorbell, such as a detached claim. Doubles with each
/// poll that finds no change, up to `LONGEST_POLL_INTERVAL`.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const LONGEST_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Poll interval while each claim ahead has a doorbell of another client. A lock that is broken
/// rings no doorbell.
const BELL_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Poll interval while all claims ahead are this client's. Their keepers wake the waiters, so a
/// poll is useful only if the runtime of a keeper has stopped.
const LOCAL_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Divisor of the ttl. A waiting claim is kept alive once this part of its ttl has passed since the
/// last confirmation by the server. The engine calls `attempt` at every third of the ttl.
const KEEP_ALIVE_DIVISOR: u32 = 4;

pub(super) struct QueueClaim {
    client: Arc<QueueClient>,
    request: Request,
    /// The claims ahead that this claim waits for, by id and kind, each with the way in which the
    /// claim learns of its end.
    awaited: HashMap<(ClaimId, Kind), Awaited>,
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
}

/// The way in which a waiter learns of the end of a claim ahead.
enum Awaited {
    /// The claim is this client's own, and its end wakes the seat.
    Local(Seat),
    /// The claim's client rings its doorbell.
    Bell(BoxFuture<'static, ()>),
    /// The claim has no doorbell, or no session is free to wait for it. The waiter polls, and
    /// tries to wait for the doorbell again at this time.
    Polled(Instant),
}

impl Awaited {
    fn polled() -> Self {
        Self::Polled(Instant::now() + BELL_CHECK_INTERVAL)
    }
}

/// The outcome of an attempt that the server executed in time.
enum Attempted {
    Granted(Option<Token>),
    /// The claim is in the queue, or was deleted from it while the batch ran. It waits for the
    /// claims ahead.
    Waiting(Vec<QueueRow>),
    /// A try found other claims ahead, and is not in the queue.
    Refused(Vec<QueueRow>),
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

    /// Enters the queue, or stays alive in it.
    ///
    /// Repeats the attempt within the time of a call if the batch changed nothing. There are three
    /// reasons for that: other transactions locked the queue until the deadline of the batch, the
    /// claim was deleted from the queue, or a try was refused because of a claim that has since
    /// been deleted.
    async fn enter(&mut self) -> Result<Attempted> {
        let deadline = Instant::now() + self.client.connection.timeout_for(self.request.ttl);
        loop {
            if let Some(attempted) = self.enter_once(deadline).await? {
                return Ok(attempted);
            }
            if Instant::now() >= deadline {
                return Err(STORE.unavailable("other transactions kept the queue locked for too long"));
            }
        }
    }

    /// Sends one attempt. Returns `None` if the server has changed nothing.
    async fn enter_once(&mut self, deadline: Instant) -> Result<Option<Attempted>> {
        let bell_owner = self.bell_owner();
        let batch = self.attempt_sql(bell_owner.as_ref())?;
        let time_left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut call = self.call(batch, time_left, bell_owner.as_ref());
        call.priority = Priority::Attempt;
        if !self.is_queued {
            // An attempt that is executed after the claim's release would leave a claim for a ttl.
            call.late_execution = LateExecution::Refused;
        }
        let session_epoch = self.client.connection.session_epoch();
        let reply = self.client.connection.call(call).await?;
        self.read_attempt(&reply, bell_owner.as_ref(), session_epoch)
    }

    /// Returns the batch of an attempt: `again.sql` if the claim is in the queue, otherwise
    /// `attempt.sql`.
    fn attempt_sql(&self, bell_owner: Option<&Arc<Session>>) -> Result<String> {
        let Request { name, id, kind, limit, wait, ttl, who, .. } = &self.request;
        let tables = &self.client.connection.tables;
        // A permit waits for at most as many claims as its own limit. Other claims wait for the
        // nearest claim that is in the way.
        let ahead = if *kind == Kind::Permit { u64::from(limit.get()) } else { 1 };
        let of_claim = [
            ("queue", tables.queue.as_str()),
            ("name", &literal(name.as_str().as_bytes())),
            ("claim", &keys::claim_literal(*id)),
            ("kind", keys::kind_literal(*kind)?),
            ("slots", &limit.to_string()),
        ];
        let (clean, condition) = match wait {
            Wait::Never => (TRY_CLEAN.with(&of_claim), TRY_CONDITION.with(&of_claim)),
            _ => (String::new(), String::new()),
        };
        let of_attempt = [
            ("fence", tables.fence.as_str()),
            ("clean", &clean),
            ("condition", &condition),
            ("who", &literal(who.text().as_bytes())),
            ("ttl", &micros(*ttl)),
            ("bell", &self.take_bell_sql(bell_owner)),
            ("nearest", &(ahead + 1).to_string()),
        ];
        let batch = if self.is_queued { AGAIN } else { ATTEMPT };
        Ok(batch.with(&[&of_claim[..], &of_attempt].concat()))
    }

    /// Reads the reply to an attempt. Returns `None` if the batch has changed nothing.
    fn read_attempt(
        &mut self,
        reply: &Reply,
        bell_owner: Option<&Arc<Session>>,
        session_epoch: u64,
    ) -> Result<Option<Attempted>> {
        let id = self.request.id;
        let (outcome, rows) = reply.rows.split_last().ok_or_else(|| STORE.unexpected_reply("an attempt"))?;
        if !flag(outcome, "has_drawn")? {
            return Err(STORE.refused(error::INCOMPLETE_FENCE));
        }
        let has_changed = flag(outcome, "is_queued")?;
        let mut rows = rows.iter().map(QueueRow::read).collect::<Result<Vec<_>>>()?;
        let own = rows.iter().position(|row| row.entry.id == id).map(|at| rows.remove(at));
        let was_queued = std::mem::replace(&mut self.is_queued, own.is_some());
        if own.is_some() {
            self.record_bell_owner(bell_owner, &reply.session, session_epoch);
        }
        let entry = own.as_ref().map_or_else(|| self.request.entry(), |own| own.entry);
        let queue: Vec<Entry> = rows.iter().rev().map(|row| row.entry).chain([entry]).collect();
        let watched = watched(&queue, entry.id);
        rows.retain(|row| watched.contains(&row.entry));
        let is_try = self.request.wait == Wait::Never;
        // A try is refused, and changes nothing, if there are claims ahead of it. If any other
        // batch changes nothing, its deadline had passed, or the claim was no longer in the queue.
        let is_refused = own.is_none() && !was_queued && is_try && !rows.is_empty();
        if !has_changed && !is_refused {
            if !was_queued {
                reply.session.doubt_clock();
            }
            return Ok(None);
        }
        Ok(Some(match own {
            Some(own) if rows.is_empty() => Attempted::Granted(Token::new(own.number)),
            _ if is_try => Attempted::Refused(rows),
            _ => Attempted::Waiting(rows),
        }))
    }

    /// Waits for the end of the claims ahead. Returns `true` if one of them may have ended
    /// before the claim waited for it.
    fn wait_for(&mut self, ahead: &[QueueRow]) -> bool {
        let key = |row: &QueueRow| (row.entry.id, row.entry.kind);
        let doorbells = &self.client.doorbells;
        let has_bells = doorbells.are_enabled();
        self.awaited.retain(|known, awaited| {
            (has_bells || !matches!(awaited, Awaited::Bell(_))) && ahead.iter().any(|row| key(row) == *known)
        });
        let mut may_have_missed = false;
        for row in ahead {
            match self.awaited.get(&key(row)) {
                Some(Awaited::Polled(until)) if has_bells && Instant::now() >= *until => {}
                Some(_) => continue,
                None => self.polls = 0,
            }
            let seat = self.client.seats.join_without_subscription(
                row.entry.id.to_string(),
                None,
                self.request.kind,
            );
            // A claim that ends is first deleted from the store, and then wakes its seats. This
            // claim therefore takes its seat before it looks the other claim up, so that it cannot
            // miss the wake-up.
            let awaited = if self.client.local_claims.contains(row.entry.id) {
                may_have_missed = true;
                Awaited::Local(seat)
            } else {
                let bell = doorbells.wait_for(&keys::bell_literal(row.entry.id));
                bell.map_or_else(Awaited::polled, Awaited::Bell)
            };
            self.awaited.insert(key(row), awaited);
        }
        may_have_missed
    }

    /// Returns the time until the next look-up of the claims ahead, if no hint arrives. The claims
    /// expire after `times_left`, unless they are renewed.
    fn retry_in(&mut self, times_left: impl Iterator<Item = Duration>) -> Duration {
        let awaits = |is: fn(&Awaited) -> bool| self.awaited.values().any(is);
        let mut expiry = times_left.min().unwrap_or(Duration::MAX);
        let interval = if awaits(|awaited| matches!(awaited, Awaited::Polled(_))) {
            self.polls += 1;
            (POLL_INTERVAL * 2_u32.saturating_pow((self.polls - 1).min(8))).min(LONGEST_POLL_INTERVAL)
        } else if awaits(|awaited| matches!(awaited, Awaited::Bell(_))) {
            BELL_CHECK_INTERVAL
        } else {
            expiry = Duration::MAX;
            LOCAL_CHECK_INTERVAL
        };
        // All waiters of a client poll at the same times, so that they share one statement. The
        // doorbell of a client that is stopped or cut off does not ring when its claim expires.
        let retry_in = self.client.until_next(interval).min(expiry);
        self.poll_at = Instant::now() + retry_in;
        retry_in
    }

    /// Returns whether the claim must query the store now. This is the case after a hint that a
    /// claim ahead may have ended. It is also the case when a session has become free, so that the
    /// claim can wait for a doorbell instead of polling.
    fn was_woken(&mut self) -> bool {
        for awaited in self.awaited.values_mut() {
            match awaited {
                Awaited::Local(seat) => self.is_woken |= seat.notified().now_or_never().is_some(),
                Awaited::Bell(bell) => {
                    if bell.now_or_never().is_some() {
                        *awaited = Awaited::polled();
                        self.is_woken = true;
                    }
                }
                Awaited::Polled(_) => {}
            }
        }
        let is_bell_due = |awaited: &Awaited| matches!(awaited, Awaited::Polled(at) if Instant::now() >= *at);
        self.is_woken || (self.client.doorbells.has_free_session() && self.awaited.values().any(is_bell_due))
    }

    /// Keeps a waiting claim alive, and looks up the claims ahead if a poll is due. Both requests
    /// are sent together with those of other waiters.
    ///
    /// Returns the time until the next call. Returns `None` if the claim must attempt the lock,
    /// because the claim itself or a claim ahead is no longer in the queue.
    async fn stay_queued(&mut self) -> Result<Option<Duration>> {
        if self.confirmed_at.elapsed() >= self.request.ttl / KEEP_ALIVE_DIVISOR {
            let Some(age) = self.keep_alive().await? else { return Ok(None) };
            self.confirmed_at = Instant::now().checked_sub(age).unwrap_or(self.confirmed_at);
        }
        // A claim ahead that belongs to this client wakes the waiter without a request. A claim of
        // another client is looked up at each call.
        let are_local = self.awaited.values().all(|awaited| matches!(awaited, Awaited::Local(_)));
        if are_local && Instant::now() < self.poll_at {
            return Ok(Some(self.poll_at.saturating_duration_since(Instant::now())));
        }
        let client = Arc::clone(&self.client);
        let look_ups = self.awaited.keys().map(|(id, kind)| client.time_left(*id, *kind, self.request.ttl));
        let times_left: Option<Vec<_>> = try_join_all(look_ups).await?.into_iter().collect();
        Ok(times_left.map(|times_left| self.retry_in(times_left.into_iter())))
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
        call.late_execution = LateExecution::Refused;
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
            let has_ended = |(id, _): &(ClaimId, Kind)| !client.local_claims.contains(*id);
            let is_missed = |(key, awaited): (&(ClaimId, Kind), &Awaited)| {
                matches!(awaited, Awaited::Local(_)) && has_ended(key)
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
            false => Renewal::Lost,
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

    async fn release(&mut self) -> Result<Release> {
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
        if self.client.must_sweep() {
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
        Ok(if is_deleted || reply.sent_twice { Release::Done } else { Release::Gone })
    }

    async fn changed(&mut self) {
        let hints = self.awaited.iter_mut().filter_map(|(key, awaited)| match awaited {
            Awaited::Local(seat) => Some(seat.notified().map(|()| None).boxed()),
            Awaited::Bell(bell) => Some(bell.map(|()| Some(*key)).boxed()),
            Awaited::Polled(_) => None,
        });
        let hints: Vec<_> = hints.collect();
        if hints.is_empty() {
            return pending().await;
        }
        let (rung_bell, ..) = select_all(hints).await;
        self.is_woken = true;
        if let Some(key) = rung_bell {
            // If the claim is still in the queue, its doorbell has no owner.
            self.awaited.insert(key, Awaited::polled());
        }
    }
}
