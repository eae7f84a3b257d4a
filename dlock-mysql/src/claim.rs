//! One claim in the queue. Over the usual length, so that all calls of a claim are in one file.

use std::{collections::HashMap, future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Kind, Result, Token, Wait,
    driver::{Attempt, Claim, Entry, Grant, Moment, Release, Renewal, Request, Resumption, Seat, watched},
};
use futures_util::{
    FutureExt as _,
    future::{BoxFuture, select_all},
};

use tokio::time::Instant;

use crate::{
    client::{Client, Mark, Record, micros},
    connection::{Acts, Answer, Call, Line, Priority},
    error::{self, STORE},
    inspect::Row,
    keys,
    sql::{
        AGAIN, ATTEMPT, Batch, DETACH, NOTHING, RELEASE, RESUME, RING_AGAIN, SWEEP, TRY_CLEAN, TRY_CONDITION,
        literal,
    },
};

/// Poll interval while a claim ahead has no doorbell, such as a detached one. Doubles with each poll that finds no change, up to the
/// longest.
const POLL: Duration = Duration::from_millis(50);
const LONGEST_POLL: Duration = Duration::from_millis(200);

/// Poll interval while another client rings for each claim ahead. A lock that is broken rings no doorbell.
const PATROL: Duration = Duration::from_secs(2);

/// Poll interval while all claims ahead are this client's: their own keepers notice their end, so a poll serves only for one whose
/// runtime stands still.
const OWN_PATROL: Duration = Duration::from_secs(10);

/// A waiting claim is kept alive once this part of its ttl has passed since the server confirmed it. The engine asks every third.
const KEEP_ALIVE: u32 = 4;

/// Statements of `attempt.sql`: the one that draws the claim's number, and the one that puts the claim into the queue or keeps it alive. A try has one more before it.
const DRAWS: usize = 1;
const ENTERS: usize = 3;
const TRY_ENTERS: usize = 4;

/// Which statement of `again.sql` keeps it alive.
const STAYS: usize = 2;

pub(crate) struct MysqlClaim {
    client: Arc<Client>,
    request: Request,
    /// What the claim waits for: claims ahead of it, each by its id and its kind.
    waits: HashMap<(ClaimId, Kind), Awaited>,
    /// How often the claim asked in vain while it had to poll.
    polls: u32,
    /// Whether the claim had its place in the queue when it asked last.
    is_queued: bool,
    /// When the server last confirmed the place of the waiting claim.
    confirmed: Instant,
    /// When to look next for the claims ahead, if they are this client's.
    poll_at: Instant,
    /// Whether a doorbell or a seat was rung since the last request for the lock.
    is_woken: bool,
    /// While the claim is in the queue, or may be.
    mark: Option<Mark>,
    /// Id under which the store may know the hold, once `detach` was called.
    ticket: Option<ClaimId>,
}

/// How the end of a claim ahead is heard of.
enum Awaited {
    /// It is this client's own.
    Here(Seat),
    /// Its client rings.
    Bell(BoxFuture<'static, ()>),
    /// Nobody rings, or a session to listen with is not to be had. Then is the time to look for one again.
    Silent(Instant),
}

impl Awaited {
    fn silent() -> Self {
        Self::Silent(Instant::now() + PATROL)
    }
}

impl MysqlClaim {
    pub(crate) fn new(client: Arc<Client>, request: Request) -> Self {
        let now = Instant::now();
        let (waits, polls, is_queued, is_woken) = (HashMap::new(), 0, false, false);
        let (confirmed, poll_at) = (now, now);
        Self {
            client,
            request,
            waits,
            polls,
            is_queued,
            confirmed,
            poll_at,
            is_woken,
            mark: None,
            ticket: None,
        }
    }

    /// A call about this claim, on the session that has the claim's doorbell. If no session has it, the call may take it.
    fn about<'a>(&self, batch: String, limit: Duration, home: Option<&'a Arc<Line>>) -> Call<'a> {
        let mut call = Call::new(batch, limit);
        if home.is_none() {
            // The part of the batch that was done may have taken the doorbell.
            call.undo = format!("ROLLBACK; DO {}", self.ring());
        }
        call.home = home;
        call
    }

    async fn call(&mut self, batch: String, limit: Duration, home: Option<&Arc<Line>>) -> Result<Answer> {
        self.client.connection.call(self.about(batch, limit, home)).await
    }

    /// What takes the doorbell of the claim, unless its session has it already: a session counts how often it took a doorbell.
    fn bell_for(&self, home: Option<&Arc<Line>>) -> String {
        if home.is_some() || !self.client.connection.waits.are_on() {
            return NOTHING.to_owned();
        }
        format!("GET_LOCK({}, 0)", keys::bell(self.request.id))
    }

    /// What rings those who wait for the claim.
    fn ring(&self) -> String {
        if !self.client.connection.waits.were_on() {
            return NOTHING.to_owned();
        }
        format!("RELEASE_LOCK({})", keys::bell(self.request.id))
    }

    /// Enters the queue, or stays alive in it. Answers with the claim's place, and the claims that it waits for.
    ///
    /// A claim that came too late, because others kept the queue locked, asks again in the time that is left. So do one that has lost
    /// its place, and a try that was refused because of a claim that has left meanwhile.
    async fn ask(&mut self) -> Result<(Option<Row>, Vec<Row>)> {
        let until = Instant::now() + self.client.connection.limit(self.request.ttl);
        loop {
            if let Some(told) = self.ask_until(until).await? {
                return Ok(told);
            }
            if Instant::now() >= until {
                return Err(STORE.unavailable("others kept the queue locked for too long"));
            }
        }
    }

    /// Asks once. `None` if the server has done nothing: it found the call late, or the claim is not in the queue any more.
    async fn ask_until(&mut self, until: Instant) -> Result<Option<(Option<Row>, Vec<Row>)>> {
        let Request { name, id, kind, limit: slots, wait, .. } = &self.request;
        let (id, kind, is_try, home) = (*id, *kind, *wait == Wait::Never, self.client.here.home(*id));
        let tables = &self.client.connection.tables;
        // A permit is kept out by as many others as its own limit, whatever they are. Others look at the nearest that is in the way.
        let nearest = if kind == Kind::Permit { u64::from(slots.get()) + 1 } else { 2 };
        let (batch, changes) = match (self.is_queued, is_try) {
            (true, _) => (AGAIN, STAYS),
            (false, true) => (ATTEMPT, TRY_ENTERS),
            (false, false) => (ATTEMPT, ENTERS),
        };
        let (name, claim, slots) = (literal(name.as_str().as_bytes()), keys::claim(id), slots.to_string());
        let values = [
            ("queue", tables.queue.as_str()),
            ("name", &name),
            ("claim", &claim),
            ("kind", keys::word(kind)?),
            ("slots", &slots),
        ];
        let of_try = |part: Batch| if is_try { part.with(&values) } else { String::new() };
        let (clean, condition) = (of_try(TRY_CLEAN), of_try(TRY_CONDITION));
        let (who, ttl, bell) = (
            literal(self.request.who.text().as_bytes()),
            micros(self.request.ttl),
            self.bell_for(home.as_ref()),
        );
        let nearest = nearest.to_string();
        let more = [
            ("fence", tables.fence.as_str()),
            ("clean", &clean),
            ("condition", &condition),
            ("who", &who),
            ("ttl", &ttl),
            ("bell", &bell),
            ("nearest", &nearest),
        ];
        let batch = batch.with(&[&values[..], &more].concat());
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut call = self.about(batch, left, home.as_ref());
        call.priority = Priority::Attempt;
        if !self.is_queued {
            // An attempt that acts behind a release would stay for a ttl.
            call.acts = Acts::InTime;
        }
        let ended = self.client.connection.sessions_ended();
        let answer = self.client.connection.call(call).await?;
        if !self.is_queued && answer.changed_by(DRAWS) == 0 {
            return Err(STORE.refused(error::FENCE));
        }
        let mut rows = answer.rows.iter().map(Row::of_attempt).collect::<Result<Vec<_>>>()?;
        let own = rows.iter().position(|row| row.entry.id == id).map(|at| rows.remove(at));
        let was_queued = std::mem::replace(&mut self.is_queued, own.is_some());
        let is_late = answer.changed_by(changes) == 0;
        if own.is_some() {
            self.note_home(home.as_ref(), &answer.line, ended);
        }
        let entry = own.as_ref().map_or_else(|| self.request.entry(), |own| own.entry);
        let queue: Vec<Entry> = rows.iter().rev().map(|row| row.entry).chain([entry]).collect();
        let ahead = watched(&queue, entry.id);
        rows.retain(|row| ahead.contains(&row.entry));
        // A try that finds others ahead is refused. All others were late: what is in the queue was not kept alive.
        let is_refused = own.is_none() && !was_queued && is_try && !rows.is_empty();
        if is_late && !is_refused {
            if !was_queued {
                answer.line.doubt_clock();
            }
            return Ok(None);
        }
        Ok(Some((own, rows)))
    }

    /// Listens for the end of those ahead. `true` if one of them may have left before the claim listened.
    fn listen(&mut self, ahead: &[Row]) -> bool {
        let of = |row: &Row| (row.entry.id, row.entry.kind);
        let has_bells = self.client.connection.waits.are_on();
        self.waits.retain(|known, awaited| {
            (has_bells || !matches!(awaited, Awaited::Bell(_))) && ahead.iter().any(|row| of(row) == *known)
        });
        let mut missed = false;
        for row in ahead {
            match self.waits.get(&of(row)) {
                Some(Awaited::Silent(until)) if has_bells && Instant::now() >= *until => {}
                Some(_) => continue,
                None => self.polls = 0,
            }
            let seat = self.client.seats.sit(row.entry.id.to_string(), None, self.request.kind);
            // A claim that leaves wakes its seats after it has left the store. So it is looked for behind the taking of the seat.
            let awaited = if self.client.here.has(row.entry.id) {
                missed = true;
                Awaited::Here(seat)
            } else {
                let bell = self.client.connection.waits.for_bell(&keys::bell(row.entry.id));
                bell.map_or_else(Awaited::silent, Awaited::Bell)
            };
            self.waits.insert(of(row), awaited);
        }
        missed
    }

    /// Returns when to look again for the claims ahead without being woken.
    fn retry_in(&mut self) -> Duration {
        let is = |like: fn(&Awaited) -> bool| self.waits.values().any(like);
        let interval = if is(|awaited| matches!(awaited, Awaited::Silent(_))) {
            self.polls += 1;
            (POLL * 2_u32.saturating_pow((self.polls - 1).min(8))).min(LONGEST_POLL)
        } else if is(|awaited| matches!(awaited, Awaited::Bell(_))) {
            PATROL
        } else {
            OWN_PATROL
        };
        // Waiters of one client look at the same moments, so that one statement serves them all.
        let ahead = self.client.until_next(interval);
        self.poll_at = Instant::now() + ahead;
        ahead
    }

    /// Whether a claim ahead may have left, as its doorbell or its client says.
    fn was_woken(&mut self) -> bool {
        for awaited in self.waits.values_mut() {
            match awaited {
                Awaited::Here(seat) => self.is_woken |= seat.rung().now_or_never().is_some(),
                Awaited::Bell(bell) => {
                    if bell.now_or_never().is_some() {
                        *awaited = Awaited::silent();
                        self.is_woken = true;
                    }
                }
                Awaited::Silent(_) => {}
            }
        }
        let is_bell_due = |awaited: &Awaited| matches!(awaited, Awaited::Silent(at) if Instant::now() >= *at);
        self.is_woken || (self.client.connection.waits.has_place() && self.waits.values().any(is_bell_due))
    }

    /// Keeps the place of a waiting claim, and looks for the claims ahead if a look is due. Both requests are sent together with those
    /// of other waiters. Returns when to call again, or `None` if the claim must ask for the lock: it has lost its place, or a claim
    /// ahead has left.
    async fn stay(&mut self) -> Result<Option<Duration>> {
        if self.confirmed.elapsed() >= self.request.ttl / KEEP_ALIVE {
            let Some(age) = self.keep_alive().await? else { return Ok(None) };
            self.confirmed = Instant::now().checked_sub(age).unwrap_or(self.confirmed);
        }
        // This client's own claims wake it without a request. All others are looked for whenever the engine asks.
        let are_own = self.waits.values().all(|awaited| matches!(awaited, Awaited::Here(_)));
        if are_own && Instant::now() < self.poll_at {
            return Ok(Some(self.poll_at.saturating_duration_since(Instant::now())));
        }
        let client = Arc::clone(&self.client);
        let looks = self.waits.keys().map(|(id, kind)| client.is_present(*id, *kind, self.request.ttl));
        let present = futures_util::future::try_join_all(looks).await?;
        if present.contains(&false) {
            return Ok(None);
        }
        Ok(Some(self.retry_in()))
    }

    /// Nothing of the claim is in the store any more.
    fn left(&mut self) {
        self.waits.clear();
        self.is_queued = false;
        self.mark = None;
    }

    /// Sends a batch that changes the claim's id, and that the server ignores once the caller has given up. The last row begins with
    /// whether the batch came in time.
    async fn rename(&mut self, batch: String, home: Option<&Arc<Line>>) -> Result<Answer> {
        let limit = self.client.connection.limit(self.request.ttl);
        let mut call = self.about(batch, limit, home);
        call.acts = Acts::InTime;
        let answer = self.client.connection.call(call).await?;
        if last_number::<i64>(&answer, 0)? == 0 {
            answer.line.doubt_clock();
            return Err(STORE.late(limit));
        }
        Ok(answer)
    }

    /// Tells the store that the hold is alive. `None` if it is gone, else how long ago the server has confirmed it: another claim's
    /// renewal may have carried it.
    async fn keep_alive(&mut self) -> Result<Option<Duration>> {
        let (client, id, ttl) = (Arc::clone(&self.client), self.request.id, self.request.ttl);
        let connection = &client.connection;
        let looks_at_bell =
            connection.waits.are_on() && client.here.is_to_be_looked_at(id, connection.sessions_ended(), ttl);
        self.mark.get_or_insert_with(|| client.mark(id));
        let sent = Moment::now();
        if !looks_at_bell && let Some(age) = client.standing.news(id, ttl).await {
            return Ok(Some(age));
        }
        if client.renewals.ask(Arc::new(Record { id, ttl, looks_at_bell }), ttl).await? {
            client.standing.note(id, ttl, sent);
            return Ok(Some(sent.elapsed()));
        }
        Ok(None)
    }

    /// Rings with the session that has the doorbell, if that is not this one, which has rung: a renewal with others may have taken the
    /// doorbell meanwhile.
    async fn ring_elsewhere(&mut self, line: &Arc<Line>) {
        let Some(home) = self.client.here.home(self.request.id).filter(|home| !Arc::ptr_eq(home, line))
        else {
            return;
        };
        let ring = format!("DO {}", self.ring());
        if self.call(ring, self.client.connection.limit(self.request.ttl), Some(&home)).await.is_err() {
            home.end();
        }
    }

    /// Notes which session has the doorbell after a call that takes it if no session, no home, has it. If the home has ended on the
    /// way, none has, and the next call takes it.
    fn note_home(&self, home: Option<&Arc<Line>>, line: &Arc<Line>, sessions_ended: u64) {
        if home.is_none_or(|home| Arc::ptr_eq(home, line)) {
            self.client.here.set_home(self.request.id, line, sessions_ended);
        } else {
            self.client.here.lose_home(self.request.id);
        }
    }
}

#[async_trait]
impl Claim for MysqlClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let (client, id) = (Arc::clone(&self.client), self.request.id);
        client.info.check_kind(self.request.kind)?;
        let may_downgrade = self.request.kind == Kind::Read && self.mark.is_none() && client.here.has(id);
        self.mark.get_or_insert_with(|| client.mark(id));
        if self.is_queued
            && self.request.wait != Wait::Never
            && !self.waits.is_empty()
            && !self.was_woken()
            && let Some(retry_in) = self.stay().await?
        {
            return Ok(Attempt::Busy { retry_in });
        }
        self.is_woken = false;
        for awaited in self.waits.values() {
            if let Awaited::Here(seat) = awaited {
                seat.clear();
            }
        }
        self.confirmed = Instant::now();
        let (own, ahead) = self.ask().await?;
        if may_downgrade && let Some(home) = client.here.home(id) {
            // Readers behind the claim that was exclusive may hold now. That they are told a moment later does no harm.
            client.ring(id);
            if client.connection.waits.are_on() {
                let ring = RING_AGAIN.with(&[("bell", &keys::bell(id))]);
                self.call(ring, client.connection.limit(self.request.ttl), Some(&home)).await.ok();
            }
        }
        if let (Some(own), true) = (&own, ahead.is_empty()) {
            self.waits.clear();
            let token = Token::new(own.number);
            return Ok(Attempt::Granted(Grant { token, valid_for: self.request.ttl }));
        }
        if self.request.wait == Wait::Never {
            self.left();
            let retry_in = ahead.iter().map(|row| row.time_left).min().unwrap_or_default();
            return Ok(Attempt::Busy { retry_in });
        }
        if self.listen(&ahead) {
            // Whoever left meanwhile rang before the claim listened.
            let missed = |(id, _): &(ClaimId, Kind)| !client.here.has(*id);
            if self.waits.iter().any(|(ahead, awaited)| matches!(awaited, Awaited::Here(_)) && missed(ahead))
            {
                return Ok(Attempt::Busy { retry_in: Duration::ZERO });
            }
        }
        Ok(Attempt::Busy { retry_in: self.retry_in() })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let sent = Moment::now();
        let confirmed = self.keep_alive().await?;
        if let Some(age) = confirmed {
            let valid_for = self.request.ttl.saturating_sub(age.saturating_sub(sent.elapsed()));
            return Ok(Renewal::Renewed { valid_for });
        }
        self.left();
        Ok(Renewal::Lost)
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        let (client, id) = (Arc::clone(&self.client), self.request.id);
        let (home, ring) = (client.here.home(id), self.ring());
        let values = [
            ("queue", client.connection.tables.queue.as_str()),
            ("name", &literal(self.request.name.as_str().as_bytes())),
            ("claim", &keys::claim(id)),
            ("ticket", &keys::claim(ticket)),
            ("ttl", &micros(lasting)),
            ("ring", &ring),
        ];
        client.standing.forget(id);
        self.ticket = Some(ticket);
        let answer = self.rename(DETACH.with(&values), home.as_ref()).await?;
        // This client neither rings for the claim nor wakes others when this object ends: the claim is nobody's now.
        self.ring_elsewhere(&answer.line).await;
        self.left();
        Ok(match last_number::<i64>(&answer, 1)? {
            1 => Renewal::Renewed { valid_for: lasting },
            _ => Renewal::Lost,
        })
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        let (client, id) = (Arc::clone(&self.client), self.request.id);
        self.mark.get_or_insert_with(|| client.mark(id));
        let home = client.here.home(id);
        let values = [
            ("queue", client.connection.tables.queue.as_str()),
            ("name", &literal(self.request.name.as_str().as_bytes())),
            ("claim", &keys::claim(id)),
            ("ticket", &keys::claim(ticket)),
            ("who", &literal(self.request.who.text().as_bytes())),
            ("ttl", &micros(self.request.ttl)),
            ("bell", &self.bell_for(home.as_ref())),
        ];
        let ended = client.connection.sessions_ended();
        let answer = self.rename(RESUME.with(&values), home.as_ref()).await?;
        if last_number::<i64>(&answer, 1)? != 1 {
            self.left();
            return Ok(Resumption::Gone);
        }
        self.ticket = None;
        self.note_home(home.as_ref(), &answer.line, ended);
        client.ring(ticket);
        let token = Token::new(last_number(&answer, 2)?);
        let had_own_id = last_number::<i64>(&answer, 3)? == 1;
        let remaining = Duration::from_micros(last_number(&answer, 4)?);
        Ok(Resumption::Resumed {
            grant: Grant { token, valid_for: self.request.ttl },
            remaining: (!had_own_id).then_some(remaining),
        })
    }

    async fn release(&mut self) -> Result<Release> {
        let (client, id) = (Arc::clone(&self.client), self.request.id);
        let (home, ring) = (client.here.home(id), self.ring());
        let queue = client.connection.tables.queue.as_str();
        let claims: Vec<_> = std::iter::once(id).chain(self.ticket).map(keys::claim).collect();
        let name = literal(self.request.name.as_str().as_bytes());
        let parts = [("queue", queue), ("name", &name), ("claims", &claims.join(",")), ("ring", &ring)];
        let mut batch = RELEASE.with(&parts);
        if client.sweeps() {
            batch.push(';');
            batch.push_str(&SWEEP.with(&[("queue", queue)]));
        }
        // The claim may have any ttl, and it is nobody's hold any more: the call may take its time.
        let answer = self.call(batch, client.connection.longest(), home.as_ref()).await?;
        self.ring_elsewhere(&answer.line).await;
        self.left();
        if answer.is_of_another_session() {
            // It did not ring, since another session has the doorbell. So it will be with others.
            client.connection.waits.give_up();
        }
        Ok(if answer.changed() > 0 || answer.twice { Release::Done } else { Release::Gone })
    }

    async fn changed(&mut self) {
        let rung = self.waits.iter_mut().filter_map(|(ahead, awaited)| match awaited {
            Awaited::Here(seat) => Some(
                async {
                    seat.rung().await;
                    None
                }
                .boxed(),
            ),
            Awaited::Bell(bell) => Some(bell.map(|()| Some(*ahead)).boxed()),
            Awaited::Silent(_) => None,
        });
        let rung: Vec<_> = rung.collect();
        if rung.is_empty() {
            return pending().await;
        }
        let (rung, ..) = select_all(rung).await;
        self.is_woken = true;
        if let Some(ahead) = rung {
            // Should that claim be there still, its doorbell is not to be had.
            self.waits.insert(ahead, Awaited::silent());
        }
    }
}

/// A column of the last row of a batch that ends with one row of numbers.
fn last_number<'a, T>(answer: &'a Answer, at: usize) -> Result<T>
where
    T: sqlx::Decode<'a, sqlx::MySql>,
{
    let row = answer.rows.last().ok_or_else(|| STORE.garbled("a detached claim"))?;
    sqlx::Row::try_get_unchecked(row, at).map_err(error::explain)
}

/// A queue row that cannot be read.
pub(crate) fn bad(what: &str) -> dlock_core::Error {
    STORE.refused(format!("a row of the queue has a bad {what}"))
}
