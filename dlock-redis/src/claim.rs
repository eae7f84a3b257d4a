//! One claim on the server: the calls of every kind of lock.

pub(crate) mod attempt_all;
mod reply;
mod seats;

use std::{borrow::Cow, pin::pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Kind, Result, Token, Wait,
    driver::{Attempt, Claim, Grant, LateRequests, Release, Renewal, Request, Resumption},
};
use redis::Value;

use self::{
    reply::{AttemptReply, HandedOver, parse_attempt, parse_hand_over, parse_release, wrong_kind},
    seats::ClaimSeats,
};
use crate::{
    client::{Client, Record},
    config::Dialect,
    error::{self, STORE},
    keys::owner,
    scripts::{
        ACQUIRE, Call, FAIR_ACQUIRE, FAIR_RELEASE, HAND_OVER, PERMIT_ACQUIRE, PERMIT_HAND_OVER,
        PERMIT_RELEASE, PLAIN_ACQUIRE, PLAIN_HAND_OVER, PLAIN_RELEASE, RELEASE, RW_ACQUIRE, RW_RELEASE,
        millis,
    },
};

/// Poll interval of a waiter in the plain dialect, because other programs publish no message that
/// wakes it.
const PLAIN_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// `retry_in` of a waiter that need not poll, because the lock has no ttl or another waiter polls
/// for it. The engine limits it to a third of the waiter's ttl.
const MAX_RETRY_IN: Duration = Duration::from_secs(24 * 3600);

pub(crate) struct RedisClaim {
    client: Arc<Client>,
    request: Request,
    /// The claim as the server knows it.
    record: Arc<Record>,
    seats: ClaimSeats,
    /// Record of the hold under the id of its ticket. Set once a detachment was requested, whatever
    /// its outcome. Boxed, because most holds are never detached.
    ticket: Option<Box<Record>>,
    late: LateRequests,
}

impl RedisClaim {
    pub(crate) fn new(client: Arc<Client>, request: Request) -> Self {
        let (keys, owner) = (client.keys(&request.name), owner(request.id));
        let record =
            Arc::new(Record { keys, owner, kind: request.kind, ttl: request.ttl, limit: request.limit });
        Self {
            client,
            request,
            record,
            seats: ClaimSeats::default(),
            ticket: None,
            late: LateRequests::default(),
        }
    }

    fn is_plain(&self) -> bool {
        self.client.config.dialect == Dialect::Plain
    }

    /// Sends the attempt once. With `wait_replicas`, also waits until a replica has the grant.
    async fn send_attempt(&self) -> Result<AttemptReply> {
        let reply = match self.client.call_with_label(&self.request, None, pin!(self.run_attempt())).await {
            Err(error) if error::is_wrong_type(&error) => return Err(wrong_kind(&self.request, "other")),
            value => parse_attempt(&self.request, self.is_plain(), value?)?,
        };
        if let (AttemptReply::Granted(_), Some(wanted)) = (&reply, self.client.config.replicas)
            && !Box::pin(self.client.renewals.batch().confirm(&self.record, wanted)).await?
        {
            return Err(STORE.unavailable(
                "the lock ended before a replica had it: the server has lost it, or another claim holds it now",
            ));
        }
        Ok(reply)
    }

    async fn run_attempt(&self) -> Result<Value> {
        let key = self.record.keys.lock();
        self.client
            .run_in_time(key, self.time_limit(), &self.late, |deadline| self.attempt_call(deadline))
            .await
    }

    /// Time limit of a call. After it the keeper stops waiting for the reply, and the server must
    /// not execute the call.
    fn time_limit(&self) -> Duration {
        self.request.time_limit(self.client.config.timeout)
    }

    /// Returns the call of the script that acquires the lock.
    ///
    /// # Errors
    /// For a kind of lock that the client does not support.
    fn attempt_call(&self, deadline: u64) -> Result<Call> {
        self.client.info.check_kind(self.request.kind)?;
        let Record { keys, owner, ttl, .. } = &*self.record;
        let (ttl, publish) = (millis(*ttl), self.client.connection.publish);
        let token_ttl = self.token_ttl();
        let waits = if self.request.wait == Wait::Never { "try" } else { "wait" };
        Ok(match self.request.kind {
            _ if self.is_plain() => PLAIN_ACQUIRE.call(keys.lock(), (owner, ttl, deadline)),
            Kind::Mutex => ACQUIRE.call((keys.lock(), keys.token()), (owner, ttl, token_ttl, deadline)),
            Kind::Fair => {
                let [lock, queue, deadlines, heartbeats] = keys.for_fair();
                let all = (lock, queue, deadlines, heartbeats, keys.token());
                FAIR_ACQUIRE.call(
                    all,
                    (
                        owner,
                        ttl,
                        self.fair_wait_timeout(),
                        keys.channel(),
                        publish,
                        waits,
                        token_ttl,
                        deadline,
                    ),
                )
            }
            kind @ (Kind::Read | Kind::Write) => {
                let [lock, readers, writers, heartbeats, timeout] = keys.for_rw(owner);
                let all = (lock, readers, writers, heartbeats, timeout, keys.token());
                RW_ACQUIRE.call(
                    all,
                    (owner, ttl, keys.rw_channel(), publish, kind.to_string(), waits, token_ttl, deadline),
                )
            }
            Kind::Permit => {
                let [lock, queue, heartbeats] = keys.for_permit();
                let all = (lock, queue, heartbeats, keys.token());
                PERMIT_ACQUIRE.call(
                    all,
                    (self.record.field(), ttl, keys.channel(), publish, waits, token_ttl, deadline),
                )
            }
            kind => return Err(self.client.info.unsupported(kind)),
        })
    }

    /// Hands the hold of `from` over to `to`. It then lasts for the ttl of `to`. Returns `None` if
    /// neither has the hold.
    async fn hand_over(&self, from: &Record, to: &Record) -> Result<Option<HandedOver>> {
        let (keys, lasting, publish) = (&to.keys, millis(to.ttl), self.client.connection.publish);
        let call = |deadline: u64| {
            Ok(match self.request.kind {
                _ if self.is_plain() => {
                    PLAIN_HAND_OVER.call(keys.lock(), (&from.owner, &to.owner, lasting, deadline))
                }
                Kind::Permit => {
                    let args = (from.field(), lasting, keys.channel(), publish, to.field(), deadline);
                    PERMIT_HAND_OVER.call(&keys.for_permit(), args)
                }
                Kind::Read => {
                    let timeouts = (keys.read_timeout(&from.owner), keys.read_timeout(&to.owner));
                    let args = (from.field(), to.field(), lasting, keys.tag(), deadline);
                    HAND_OVER.call((keys.lock(), keys.token(), timeouts.0, timeouts.1), args)
                }
                _ => {
                    let args = (from.field(), to.field(), lasting, keys.tag(), deadline);
                    HAND_OVER.call((keys.lock(), keys.token(), keys.lock(), keys.lock()), args)
                }
            })
        };
        let reply = self.client.run_in_time(keys.lock(), self.time_limit(), &self.late, call).await?;
        parse_hand_over(&reply)
    }

    /// Releases the claim under the id of `record`.
    async fn release_as(&self, record: &Record) -> Result<Release> {
        let Record { keys, owner, ttl, .. } = record;
        let (ttl, publish) = (millis(*ttl), self.client.connection.publish);
        let call = match self.request.kind {
            _ if self.is_plain() => PLAIN_RELEASE.call(keys.lock(), (owner, keys.channel(), publish)),
            Kind::Mutex => RELEASE.call((keys.lock(), keys.queue()), (owner, keys.channel(), publish)),
            Kind::Fair => {
                let args = (owner, ttl, self.fair_wait_timeout(), keys.channel(), publish);
                FAIR_RELEASE.call(&keys.for_fair(), args)
            }
            Kind::Read | Kind::Write => {
                RW_RELEASE.call(&keys.for_rw(owner), (owner, ttl, keys.rw_channel(), publish, keys.tag()))
            }
            Kind::Permit => {
                let [lock, queue, heartbeats] = keys.for_permit();
                let all = (lock, queue, heartbeats, keys.queue());
                let args = (record.field(), ttl, keys.channel(), publish, keys.rw_channel());
                PERMIT_RELEASE.call(all, args)
            }
            // The client does not support this kind, so no attempt has reached the server.
            _ => return Ok(Release::Gone),
        };
        let sent = self.client.connection.run_tracked(&call).await;
        // If the release ran twice, the second run finds nothing because the first has removed the
        // claim.
        let is_absent = !parse_release(&sent.result?)? && !sent.maybe_repeated;
        Ok(if is_absent { Release::Gone } else { Release::Done })
    }

    /// Returns the `token_ttl` of `draw.lua`.
    fn token_ttl(&self) -> Cow<'static, str> {
        match self.client.config.token_ttl {
            _ if !self.request.wants_token => "none".into(),
            Some(ttl) => millis(ttl).to_string().into(),
            None => "never".into(),
        }
    }

    fn fair_wait_timeout(&self) -> u64 {
        millis(self.client.config.fair_wait_timeout)
    }

    /// Returns whether another waiter of this client polls the server on behalf of this one.
    ///
    /// A mutex has no queue on the server, so the client's first waiter of a name is enough to
    /// detect a hold that has ended without a message. While the server does not reply, each waiter
    /// sends its own attempts, and so gets the error. A waiter of a RedLock, which wants no token,
    /// also sends its own attempts. Otherwise the first waiter could be a different one on each
    /// member, and none of them would find a free majority.
    fn is_represented(&self) -> bool {
        self.request.kind == Kind::Mutex
            && self.request.wants_token
            && !self.is_plain()
            && self.seats.is_quiet_follower()
            && self.client.connection.has_replied_within(self.request.ttl / 2)
    }

    /// Records that the claim holds its lock.
    fn grant(&mut self, token: Option<Token>) -> Grant {
        // A notification during the attempt was caused by the release that made this grant
        // possible. It must not be passed on to the next waiter.
        self.seats.clear();
        self.seats.leave();
        self.seats.join_as_holder(&self.client, &self.record);
        Grant { token, valid_for: self.request.ttl }
    }
}

fn renewal(held: bool, ttl: Duration) -> Renewal {
    if held { Renewal::Renewed { valid_for: ttl } } else { Renewal::Lost }
}

#[async_trait]
impl Claim for RedisClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        if self.is_represented() {
            return Ok(Attempt::Busy { retry_in: MAX_RETRY_IN });
        }
        self.seats.clear();
        let mut reply = self.send_attempt().await?;
        if let AttemptReply::Busy { arrival, .. } = reply
            && self.request.wait != Wait::Never
            && Box::pin(self.seats.join(&self.client, &self.record, arrival)).await?
            && !self.is_represented()
        {
            // A release before the subscription was active has notified no waiter of this client,
            // so the claim sends its attempt once more.
            reply = Box::pin(self.send_attempt()).await?;
        }
        Ok(match reply {
            AttemptReply::Granted(token) => Attempt::Granted(self.grant(token)),
            AttemptReply::Busy { retry_in, .. } if self.is_plain() => {
                Attempt::Busy { retry_in: retry_in.min(PLAIN_POLL_INTERVAL) }
            }
            AttemptReply::Busy { retry_in, .. } => Attempt::Busy { retry_in },
        })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        // The seats are taken before the request, because a claim that was resumed was not granted
        // to this client and has no seat yet.
        self.seats.join_as_holder(&self.client, &self.record);
        self.seats.clear();
        let (ttl, record) = (self.request.ttl, Arc::clone(&self.record));
        let held = pin!(self.client.renewals.submit(record, ttl));
        Ok(renewal(self.client.call_with_label(&self.request, None, held).await?, ttl))
    }

    /// Gives the hold the id of the ticket and another ttl. The server keeps every hold for its
    /// ttl, whether or not its client still exists. With `wait_replicas`, a replica must confirm
    /// the detached hold like a grant, because no renewal follows.
    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        let ticket = Record { owner: owner(ticket), ttl: lasting, ..Record::clone(&self.record) };
        let result = {
            let handed_over = pin!(self.hand_over(&self.record, &ticket));
            self.client.call_with_label(&self.request, Some(lasting), handed_over).await
        };
        let held = match (result, self.client.config.replicas) {
            (Ok(Some(_)), Some(wanted)) => self.client.renewals.batch().confirm(&ticket, wanted).await,
            (result, _) => result.map(|handed_over| handed_over.is_some()),
        };
        // The ticket may be that of another claim, which the release must not find.
        self.ticket = Some(Box::new(ticket)).filter(|_| !matches!(held, Ok(false)));
        Ok(renewal(held?, lasting))
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        // The seats are taken before the request, because the claim was not granted to this client
        // and has no seat yet.
        self.seats.join_as_holder(&self.client, &self.record);
        self.seats.clear();
        let ticket = Record { owner: owner(ticket), ..Record::clone(&self.record) };
        let handed_over = pin!(self.hand_over(&ticket, &self.record));
        let Some(HandedOver { token, remaining }) =
            self.client.call_with_label(&self.request, None, handed_over).await?
        else {
            return Ok(Resumption::Gone);
        };
        if let Some(wanted) = self.client.config.replicas
            && !self.client.renewals.batch().confirm(&self.record, wanted).await?
        {
            return Ok(Resumption::Gone);
        }
        let grant = Grant { token, valid_for: self.request.ttl };
        Ok(Resumption::Resumed { grant, remaining })
    }

    async fn release(&mut self) -> Result<Release> {
        let mut release = self.release_as(&self.record).await?;
        if let Some(ticket) = &self.ticket
            && self.release_as(ticket).await? == Release::Done
        {
            release = Release::Done;
        }
        // If this claim was notified and has sent no request since, the client's next waiter is
        // notified instead.
        self.seats.leave();
        Ok(release)
    }

    fn late_for(&self) -> Duration {
        self.late.remaining()
    }

    async fn changed(&mut self) {
        self.seats.notified().await;
    }
}
