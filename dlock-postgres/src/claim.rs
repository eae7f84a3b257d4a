//! One claim, which is a row in the queue of its lock.
//!
//! `claim/attempt_all.rs` acquires several locks in one transaction.

mod attempt_all;

use std::{future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Result, Token, Wait,
    driver::{Attempt, Claim, Grant, Release, Renewal, Request, Resumption},
};
use futures_util::{future::select, pin_mut};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::{
    client::{Client, RenewalRequest, WaiterSeats},
    connection::{Call, LateExecution, Priority, Reply},
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
    /// Id under which the store may know the hold, once `detach` was called.
    ticket: Option<ClaimId>,
}

/// The server's reply to an attempt.
enum Attempted {
    Granted(Option<Token>),
    Busy {
        /// Time until the claim ahead may expire.
        retry: Duration,
        /// Whether only holders are ahead.
        is_next: bool,
        /// Number of waiting claims ahead, up to a maximum.
        ahead: u32,
    },
}

impl PostgresClaim {
    pub(crate) fn new(client: Arc<Client>, request: Request) -> Self {
        let must_poll = !client.has_notifications();
        Self { client, request, seats: None, must_poll, polls: 0, ticket: None }
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
            late_execution: LateExecution::Refused,
            priority,
        };
        self.client.connection.call(call).await
    }

    /// Enters the queue, or stays alive in it.
    async fn enter(&self) -> Result<Attempted> {
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
            Box::new(self.client.channel.clone()),
            Box::new(who.text().as_bytes().to_vec()),
        ];
        let reply = self.call_in_time(Function::Attempt, params, Priority::Attempt).await?;
        let row = reply.row("an attempt")?;
        self.client.wake(&column::<Vec<Uuid>>(row, "wake")?);
        if let Some(token) = column::<Option<i64>>(row, "token")? {
            return Ok(Attempted::Granted(token_of(token)));
        }
        Ok(Attempted::Busy {
            retry: keys::duration(column::<Option<i64>>(row, "retry")?.unwrap_or_default()),
            is_next: column(row, "is_next")?,
            ahead: column::<i32>(row, "ahead")?.unsigned_abs(),
        })
    }

    /// Takes seats, unless notifications do not arrive. Returns whether the claim has seats now that
    /// it did not have before.
    async fn sit(&mut self) -> bool {
        if self.must_poll || self.seats.is_some() {
            return false;
        }
        let seats = self.client.sit(self.request.id, self.request.kind, self.time_limit()).await;
        self.must_poll = seats.is_err();
        self.seats = seats.ok();
        self.seats.is_some()
    }

    /// Returns the time until the next attempt, if no hint arrives.
    fn retry_in(&mut self, retry: Duration, is_next: bool, ahead: u32) -> Duration {
        let patrol = if self.seats.is_some() {
            if is_next { PATROL_INTERVAL } else { retry }
        } else {
            let interval = POLL_INTERVAL * 2_u32.saturating_pow(self.polls.min(8));
            self.polls += 1;
            (interval.min(LONGEST_POLL_INTERVAL) * (ahead + 1)).min(PATROL_INTERVAL)
        };
        retry.min(patrol).max(MIN_RETRY)
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
        // Once the client listens, seats cost no request, and no wake-up can be missed.
        if !is_try && self.client.is_listening() {
            self.sit().await;
        }
        let mut attempted = self.enter().await?;
        if !is_try && matches!(attempted, Attempted::Busy { .. }) && self.sit().await {
            // The lock may have become free before the client listened.
            attempted = self.enter().await?;
        }
        match attempted {
            Attempted::Granted(token) => {
                self.seats = None;
                Ok(Attempt::Granted(Grant { token, valid_for: self.request.ttl }))
            }
            Attempted::Busy { retry, .. } if is_try => Ok(Attempt::Busy { retry_in: retry }),
            Attempted::Busy { retry, is_next, ahead } => {
                Ok(Attempt::Busy { retry_in: self.retry_in(retry, is_next, ahead) })
            }
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
            false => Renewal::Lost,
        })
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        let params: Vec<Param> = vec![
            Box::new(keys::uuid(self.request.id)),
            Box::new(keys::uuid(ticket)),
            Box::new(keys::micros(self.request.ttl)),
            Box::new(self.client.channel.clone()),
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
                Box::new(self.client.channel.clone()),
                Box::new(self.client.must_sweep()),
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
        Ok(if flag(row, "done")? || reply.sent_twice { Release::Done } else { Release::Gone })
    }

    async fn changed(&mut self) {
        let Some(seats) = &self.seats else { return pending().await };
        let (turn, listening) = (seats.turn.notified(), seats.listening.notified());
        pin_mut!(turn, listening);
        select(turn, listening).await;
    }
}
