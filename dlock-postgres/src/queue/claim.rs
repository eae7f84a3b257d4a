//! One claim, which is a row in the queue of its lock.
//!
//! `claim/attempt_all.rs` acquires several locks in one transaction.

mod attempt_all;

use std::{future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Result, Token, Wait,
    driver::{
        Attempt, Claim, Grant, LateExecution, LateRequests, Release, Renewal, Request, Resumption, Seat,
    },
};
use futures_util::{FutureExt as _, future::select, pin_mut};
use tokio::time::Instant;
use tokio_postgres::Row;
use uuid::Uuid;

use super::client::{Client, NO_CHANNEL, RenewalRequest, WaiterSeats};
use crate::{
    connection::{Call, Priority, Reply},
    keys,
    sql::{Function, Param, column},
};
pub(crate) use attempt_all::attempt_all;

/// Poll interval of a claim that is not woken by notifications. Doubles with each poll, up to
/// `LONGEST_POLL_INTERVAL`. Claims further behind poll less often.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const LONGEST_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Maximum time between two attempts of the first waiting claim. It also limits the poll interval of
/// the claims behind it. A notification is lost only with its connection, which is checked.
const PATROL_INTERVAL: Duration = Duration::from_secs(2);

/// Divisor of the ttl. A waiting claim is kept alive by an attempt once this part of its ttl has
/// passed since the last one. The engine calls `attempt` at every third of the ttl.
const KEEP_ALIVE_DIVISOR: u32 = 4;

/// Shortest time between two attempts. The claim ahead may be about to expire.
const MIN_RETRY: Duration = Duration::from_millis(1);

pub(crate) struct PostgresClaim {
    client: Arc<Client>,
    request: Request,
    /// Present while the claim waits and the client listens.
    seats: Option<WaiterSeats>,
    /// Whether notifications do not arrive, so that the claim polls.
    must_poll: bool,
    /// Number of polls so far.
    polls: u32,
    /// The last reply to an attempt. `None` before the first, and after an error.
    position: Option<Position>,
    /// Id under which the store may know the hold, once `detach` was called.
    ticket: Option<ClaimId>,
    late: LateRequests,
}

/// The server's reply to an attempt.
enum Attempted {
    Granted(Option<Token>),
    Busy(Position),
}

/// The position of a waiting claim in the queue.
#[derive(Clone, Copy)]
struct Position {
    /// Time of the attempt, which has kept the claim alive.
    attempted_at: Instant,
    /// Time at which the claim ahead expires, unless it is renewed.
    ahead_expires_at: Instant,
    /// Whether only holders are ahead.
    is_next: bool,
    /// Number of waiting claims ahead, up to a maximum.
    ahead: u32,
}

impl PostgresClaim {
    pub(crate) fn new(client: Arc<Client>, request: Request) -> Self {
        let must_poll = !client.has_notifications();
        let late = LateRequests::default();
        Self { client, request, seats: None, must_poll, polls: 0, position: None, ticket: None, late }
    }

    /// Returns the time limit of a call that depends on the ttl.
    fn time_limit(&self) -> Duration {
        self.request.time_limit(self.client.connection.timeout())
    }

    fn name(&self) -> Vec<u8> {
        self.request.name.as_str().as_bytes().to_vec()
    }

    /// Calls a function that is not executed once the caller has given up. The first two parameters
    /// are the bucket and the name, and the last one is the deadline.
    async fn call_in_time(
        &self,
        function: Function,
        params: Vec<Param>,
        priority: Priority,
    ) -> Result<Reply> {
        let mut all: Vec<Param> = vec![Box::new(keys::bucket(&self.request.name)), Box::new(self.name())];
        all.extend(params);
        let call = Call {
            function,
            params: all,
            timeout: self.time_limit(),
            late_execution: LateExecution::Refused(&self.late),
            priority,
        };
        self.client.connection.call(call).await
    }

    /// Enters the queue, or stays alive in it.
    async fn enter(&mut self) -> Result<Attempted> {
        self.position = None;
        let attempted_at = Instant::now();
        if let Some(seats) = &self.seats {
            seats.turn.clear();
            seats.listening.clear();
        }
        let Request { id, kind, limit, ttl, wait, who, .. } = &self.request;
        let params: Vec<Param> = vec![
            Box::new(keys::uuid(*id)),
            Box::new(keys::kind_code(*kind)?),
            Box::new(i32::try_from(limit.get()).unwrap_or(i32::MAX)),
            Box::new(keys::micros(*ttl)),
            Box::new(*wait == Wait::Never),
            Box::new(if self.must_poll { NO_CHANNEL } else { self.client.channel() }.to_owned()),
            Box::new(who.text().as_bytes().to_vec()),
        ];
        let reply = self.call_in_time(Function::Attempt, params, Priority::Attempt).await?;
        let row = reply.row("an attempt")?;
        self.client.wake(&column::<Vec<Uuid>>(row, "wake")?);
        if let Some(token) = column::<Option<i64>>(row, "token")? {
            return Ok(Attempted::Granted(token_of(token)));
        }
        let time_left = keys::duration(column::<Option<i64>>(row, "retry")?.unwrap_or_default());
        let position = Position {
            attempted_at,
            ahead_expires_at: Instant::now() + time_left,
            is_next: column(row, "is_next")?,
            ahead: column::<i32>(row, "ahead")?.unsigned_abs(),
        };
        self.position = Some(position);
        Ok(Attempted::Busy(position))
    }

    /// Polls the queue, and returns the claim's position if it still waits. Returns `None` without a
    /// poll if the claim was woken, or must be kept alive by an attempt.
    async fn poll_position(&self) -> Result<Option<Position>> {
        let Some(position) = self.position.filter(|_| self.request.wait != Wait::Never) else {
            return Ok(None);
        };
        let is_woken = self.seats.as_ref().is_some_and(|seats| {
            let is_notified = |seat: &Seat| seat.notified().now_or_never().is_some();
            is_notified(&seats.turn) || is_notified(&seats.listening)
        });
        if is_woken || position.attempted_at.elapsed() >= self.request.ttl / KEEP_ALIVE_DIVISOR {
            return Ok(None);
        }
        let is_blocked = self.client.is_blocked(self.request.id, self.request.ttl).await?;
        Ok(is_blocked.then_some(position))
    }

    /// Takes seats, unless notifications do not arrive. Returns whether the claim has seats now that
    /// it did not have before.
    async fn take_seats(&mut self) -> bool {
        if self.must_poll || self.seats.is_some() {
            return false;
        }
        let seats = self.client.take_seats(self.request.id, self.request.kind, self.time_limit()).await;
        self.must_poll = seats.is_err();
        self.seats = seats.ok();
        self.seats.is_some()
    }

    /// Returns the time until the next attempt, if no hint arrives.
    fn retry_in(&mut self, position: Position) -> Duration {
        let relies_on_notifications = self.seats.as_ref().is_some_and(|seats| seats.listening.is_quiet());
        let poll_in = if !relies_on_notifications {
            let interval = POLL_INTERVAL * 2_u32.saturating_pow(self.polls.min(8));
            self.polls += 1;
            (interval.min(LONGEST_POLL_INTERVAL) * (position.ahead + 1)).min(PATROL_INTERVAL)
        } else if position.is_next {
            PATROL_INTERVAL
        } else {
            self.request.ttl
        };
        position.retry_in(self.client.until_next(poll_in), self.request.ttl, Instant::now())
    }
}

impl Position {
    /// Returns the time until the next attempt: `poll_in`, or less if the claim ahead expires
    /// before, or if the claim has to be kept alive before.
    fn retry_in(&self, poll_in: Duration, ttl: Duration, now: Instant) -> Duration {
        // If replies take almost as long, attempts that follow at once would load the server more.
        let keep_alive_in = (self.attempted_at + ttl / 3).saturating_duration_since(now).max(ttl / 24);
        // `None` if the claim ahead was renewed.
        let expires_in = self.ahead_expires_at.checked_duration_since(now);
        poll_in.min(keep_alive_in).min(expires_in.unwrap_or(Duration::MAX)).max(MIN_RETRY)
    }
}

fn token_of(number: i64) -> Option<Token> {
    u64::try_from(number).ok().and_then(Token::new)
}

fn flag(row: &Row, name: &str) -> Result<bool> {
    Ok(column::<Option<bool>>(row, name)?.unwrap_or_default())
}

#[async_trait]
impl Claim for PostgresClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        self.client.info.check_kind(self.request.kind)?;
        let is_try = self.request.wait == Wait::Never;
        if let Some(position) = self.poll_position().await? {
            return Ok(Attempt::Busy { retry_in: self.retry_in(position) });
        }
        // Once the client listens, seats cost no request, and no wake-up can be missed.
        if !is_try && self.client.is_listening() {
            self.take_seats().await;
        }
        let mut attempted = self.enter().await?;
        if !is_try && matches!(attempted, Attempted::Busy(_)) && self.take_seats().await {
            // The lock may have become free before the client listened.
            attempted = self.enter().await?;
        }
        match attempted {
            Attempted::Granted(token) => {
                self.seats = None;
                Ok(Attempt::Granted(Grant { token, valid_for: self.request.ttl }))
            }
            Attempted::Busy(position) => Ok(Attempt::Busy { retry_in: self.retry_in(position) }),
        }
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let (id, ttl) = (self.request.id, self.request.ttl);
        Ok(match self.client.renewals.submit(Arc::new(RenewalRequest { id, ttl }), ttl).await? {
            true => Renewal::Renewed { valid_for: ttl },
            false => Renewal::Lost,
        })
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        self.ticket = Some(ticket);
        let params: Vec<Param> = vec![
            Box::new(keys::uuid(self.request.id)),
            Box::new(keys::uuid(ticket)),
            Box::new(keys::micros(lasting)),
        ];
        let reply = self.call_in_time(Function::Detach, params, Priority::Urgent).await?;
        Ok(match flag(reply.row("a detachment")?, "done")? {
            true => Renewal::Renewed { valid_for: lasting },
            false => {
                // The ticket may be that of another claim, which the release must not find.
                self.ticket = None;
                Renewal::Lost
            }
        })
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        let params: Vec<Param> = vec![
            Box::new(keys::uuid(self.request.id)),
            Box::new(keys::uuid(ticket)),
            Box::new(keys::micros(self.request.ttl)),
            // The claim holds, so no client notifies it.
            Box::new(NO_CHANNEL.to_owned()),
            Box::new(self.request.who.text().as_bytes().to_vec()),
        ];
        let reply = self.call_in_time(Function::Resume, params, Priority::Urgent).await?;
        let row = reply.row("a resumption")?;
        let Some(token) = column::<Option<i64>>(row, "token")? else { return Ok(Resumption::Gone) };
        self.ticket = None;
        let remaining = keys::duration(column(row, "remaining")?);
        Ok(Resumption::Resumed {
            grant: Grant { token: token_of(token), valid_for: self.request.ttl },
            remaining: (!flag(row, "had_own")?).then_some(remaining),
        })
    }

    async fn release(&mut self) -> Result<Release> {
        let ids = std::iter::once(self.request.id).chain(self.ticket);
        let claims: Vec<_> = ids.map(keys::uuid).collect();
        let call = Call {
            function: Function::Release,
            params: vec![
                Box::new(keys::bucket(&self.request.name)),
                Box::new(self.name()),
                Box::new(claims),
                Box::new(self.client.channel().to_owned()),
                Box::new(self.client.count_release()),
            ],
            // A release is not bounded by the ttl, because the hold has ended for its caller.
            timeout: self.client.connection.timeout(),
            late_execution: LateExecution::Allowed,
            priority: Priority::Urgent,
        };
        let reply = self.client.connection.call(call).await?;
        let row = reply.row("a release")?;
        self.client.wake(&column::<Vec<Uuid>>(row, "wake")?);
        self.seats = None;
        Ok(if flag(row, "done")? || reply.maybe_repeated { Release::Done } else { Release::Gone })
    }

    fn may_be_stored(&self) -> bool {
        self.late.has_sent()
    }

    fn late_for(&self) -> Duration {
        self.late.remaining()
    }

    async fn changed(&mut self) {
        let Some(seats) = &self.seats else { return pending().await };
        let (turn, listening) = (seats.turn.notified(), seats.listening.notified());
        pin_mut!(turn, listening);
        select(turn, listening).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_claim_sends_an_attempt_every_third_of_its_ttl() {
        let now = Instant::now();
        let millis = Duration::from_millis;
        for (ttl, since_attempt, poll_in, expires_in, expected) in [
            // The first poll comes before the attempt that keeps the claim alive.
            (3000, 0, 700, 9000, 700),
            (3000, 700, 2000, 9000, 300),
            (3000, 0, 2000, 9000, 1000),
            (30_000, 0, 2000, 9000, 2000),
            (30_000, 8500, 2000, 9000, 1500),
            // The claim ahead may expire.
            (30_000, 0, 2000, 400, 400),
            (30_000, 0, 2000, 0, 1),
            // The attempt is late.
            (3000, 1500, 2000, 9000, 125),
        ] {
            let position = Position {
                attempted_at: now,
                ahead_expires_at: now + millis(since_attempt + expires_in),
                is_next: true,
                ahead: 0,
            };
            let retry_in = position.retry_in(millis(poll_in), millis(ttl), now + millis(since_attempt));
            assert_eq!(retry_in, millis(expected), "{ttl}, {since_attempt}, {poll_in}, {expires_in}");
        }
    }
}
