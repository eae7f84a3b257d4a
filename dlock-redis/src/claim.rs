//! One claim on the server. A few lines over the usual length, so that all calls of a claim, of every kind, are in one file.

use std::{borrow::Cow, future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Kind, Result, Token, Wait,
    driver::{Attempt, Claim, Grant, Release, Renewal, Request, Resumption, Seat},
};
use futures_util::future::select_all;
use redis::Value;

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

/// How often a waiter of the plain dialect asks again: other programs than dlock do not wake it.
const INTERVAL: Duration = Duration::from_millis(100);

/// When to ask again for a lock that has no ttl. The engine asks earlier.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

pub(crate) struct RedisClaim {
    client: Arc<Client>,
    request: Request,
    /// The claim as it is on the server.
    record: Arc<Record>,
    /// Where the claim is woken. While it waits: by messages of the lock's channel. While it holds, with `keyspace_events`: when
    /// the lock's key is gone.
    seat: Option<Seat>,
    /// A second seat for the first waiter of a fair lock, among the waiters of the mutex of that name. If Redisson holds the name
    /// as a mutex, its release wakes only those.
    as_mutex: Option<Seat>,
    /// The claim as the server knows it once it is detached, or may be.
    ticket: Option<Record>,
    /// A further seat of a waiter with `keyspace_events`, rung when the lock's key is gone. A program that deletes the key may
    /// publish no message.
    for_deletion: Option<Seat>,
}

/// What the server said to an attempt.
enum Answer {
    Granted(Option<Token>),
    /// `arrival` is when a waiter of a read/write lock came. For a fair lock it is 1 if the claim is the first that waits.
    Busy {
        retry_in: Duration,
        arrival: Option<u64>,
    },
}

/// What the server said of a hold that has changed its owner.
struct HandedOver {
    token: Option<Token>,
    /// How long the hold would have lasted for its old owner. `None` if the new one had it before.
    remaining: Option<Duration>,
}

impl RedisClaim {
    pub(crate) fn new(client: Arc<Client>, request: Request) -> Self {
        let (keys, owner) = (client.keys(&request.name), owner(request.id));
        let record =
            Arc::new(Record { keys, owner, kind: request.kind, ttl: request.ttl, limit: request.limit });
        Self { client, request, record, seat: None, as_mutex: None, ticket: None, for_deletion: None }
    }

    fn is_plain(&self) -> bool {
        self.client.config.dialect == Dialect::Plain
    }

    async fn ask(&self) -> Result<Answer> {
        let answer = match self.client.beside(&self.request, None, self.send()).await {
            Err(error) if error::is_wrong_type(&error) => return Err(self.wrong_kind("other")),
            outcome => self.read(outcome?)?,
        };
        match (&answer, self.client.config.replicas) {
            (Answer::Granted(_), Some(wanted)) => {
                match self.client.renewals.batch().confirm(&self.record, wanted).await? {
                    true => Ok(answer),
                    false => Err(STORE.unavailable(
                        "the lock was gone before a replica had it: the server has lost it, or another claim holds it now",
                    )),
                }
            }
            _ => Ok(answer),
        }
    }

    async fn send(&self) -> Result<Value> {
        let key = self.record.keys.lock();
        self.client.run_in_time(key, self.limit(), |deadline| self.call(deadline)).await
    }

    /// Time after which the keeper does not wait for a call any more, and the server must not execute it.
    fn limit(&self) -> Duration {
        self.client.config.timeout.min(self.request.ttl / 3)
    }

    /// The script that takes the lock.
    ///
    /// # Errors
    /// For a kind of lock that the client does not have.
    fn call(&self, deadline: u64) -> Result<Call> {
        self.client.info.check_kind(self.request.kind)?;
        let Record { keys, owner, ttl, .. } = &*self.record;
        let (ttl, publish) = (millis(*ttl), self.client.connection.publish);
        let token_ttl = self.token_ttl();
        let waits = if self.request.wait == Wait::Never { "try" } else { "wait" };
        Ok(match self.request.kind {
            _ if self.is_plain() => PLAIN_ACQUIRE.call(keys.lock(), (owner, ttl, deadline)),
            Kind::Mutex => ACQUIRE.call((keys.lock(), keys.token()), (owner, ttl, token_ttl, deadline)),
            Kind::Fair => {
                let [lock, queue, deadlines, beats] = keys.of_fair();
                let all = (lock, queue, deadlines, beats, keys.token());
                FAIR_ACQUIRE.call(
                    all,
                    (owner, ttl, self.patience(), keys.channel(), publish, waits, token_ttl, deadline),
                )
            }
            kind @ (Kind::Read | Kind::Write) => {
                let [lock, readers, writers, beats, timeout] = keys.of_rw(owner);
                let all = (lock, readers, writers, beats, timeout, keys.token());
                RW_ACQUIRE.call(
                    all,
                    (owner, ttl, keys.rw_channel(), publish, kind.to_string(), waits, token_ttl, deadline),
                )
            }
            Kind::Permit => {
                let [lock, queue, beats] = keys.of_permit();
                let all = (lock, queue, beats, keys.token());
                PERMIT_ACQUIRE.call(
                    all,
                    (self.record.field(), ttl, keys.channel(), publish, waits, token_ttl, deadline),
                )
            }
            kind => return Err(self.client.info.unsupported(kind)),
        })
    }

    fn read(&self, answer: Value) -> Result<Answer> {
        let busy = |left: i64, arrival: i64| Answer::Busy {
            retry_in: u64::try_from(left).map_or(FOR_EVER, Duration::from_millis),
            arrival: u64::try_from(arrival).ok().filter(|arrival| *arrival > 0),
        };
        match answer {
            Value::Int(-2) if self.is_plain() => Ok(Answer::Granted(None)),
            Value::Int(left) => Ok(busy(left, 0)),
            Value::BulkString(token) => {
                let token = std::str::from_utf8(&token).ok().and_then(|token| token.parse().ok());
                let token: u64 = token.ok_or_else(|| STORE.unexpected_reply("a fencing token"))?;
                // `0` stands for no token.
                Ok(Answer::Granted(Token::new(token)))
            }
            Value::SimpleString(found) => Err(self.wrong_kind(&found)),
            Value::Array(parts) => match parts[..] {
                [Value::Int(left), Value::Int(arrival)] => Ok(busy(left, arrival)),
                _ => Err(STORE.unexpected_reply("an attempt")),
            },
            _ => Err(STORE.unexpected_reply("an attempt")),
        }
    }

    /// Gives the hold of `from` to `to`, which then lasts for the ttl of `to`. `None` if the hold is gone.
    async fn hand_over(&self, from: &Record, to: &Record) -> Result<Option<HandedOver>> {
        let (keys, lasting, publish) = (&to.keys, millis(to.ttl), self.client.connection.publish);
        let call = |deadline: u64| {
            Ok(match self.request.kind {
                _ if self.is_plain() => {
                    PLAIN_HAND_OVER.call(keys.lock(), (&from.owner, &to.owner, lasting, deadline))
                }
                Kind::Permit => {
                    let args = (from.field(), lasting, keys.channel(), publish, to.field(), deadline);
                    PERMIT_HAND_OVER.call(&keys.of_permit(), args)
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
        let answer = self.client.run_in_time(keys.lock(), self.limit(), call).await?;
        let Value::Array(parts) = &answer else { return Err(STORE.unexpected_reply("a hand-over")) };
        let text = |part: &Value| match part {
            Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse::<u64>().ok(),
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        match &parts[..] {
            [Value::Int(0)] => Ok(None),
            [Value::Int(1 | 2), token, rest @ ..] => {
                let token = text(token).ok_or_else(|| STORE.unexpected_reply("a fencing token"))?;
                let remaining = rest.first().and_then(text).map(Duration::from_millis);
                Ok(Some(HandedOver { token: Token::new(token), remaining }))
            }
            _ => Err(STORE.unexpected_reply("a hand-over")),
        }
    }

    async fn release_as(&self, record: &Record) -> Result<Release> {
        let Record { keys, owner, ttl, .. } = record;
        let (ttl, publish) = (millis(*ttl), self.client.connection.publish);
        let call = match self.request.kind {
            _ if self.is_plain() => PLAIN_RELEASE.call(keys.lock(), (owner, keys.channel(), publish)),
            Kind::Mutex => RELEASE.call((keys.lock(), keys.queue()), (owner, keys.channel(), publish)),
            Kind::Fair => {
                FAIR_RELEASE.call(&keys.of_fair(), (owner, ttl, self.patience(), keys.channel(), publish))
            }
            Kind::Read | Kind::Write => {
                RW_RELEASE.call(&keys.of_rw(owner), (owner, ttl, keys.rw_channel(), publish, keys.tag()))
            }
            Kind::Permit => {
                let [lock, queue, beats] = keys.of_permit();
                let all = (lock, queue, beats, keys.queue());
                let args = (record.field(), ttl, keys.channel(), publish, keys.rw_channel());
                PERMIT_RELEASE.call(all, args)
            }
            // The client does not have this kind, so no attempt has reached the server.
            _ => return Ok(Release::Gone),
        };
        let (answer, again) = self.client.connection.run_and_tell(&call).await?;
        // A release that was sent twice may find nothing because the first one removed it.
        Ok(if answer == Value::Int(0) && !again { Release::Gone } else { Release::Done })
    }

    fn wrong_kind(&self, found: &str) -> dlock_core::Error {
        error::wrong_kind(&self.request.name, self.request.kind, found)
    }

    /// How long the script keeps the token: the `token_ttl` of `draw.lua`.
    fn token_ttl(&self) -> Cow<'static, str> {
        match self.client.config.token_ttl {
            _ if !self.request.wants_token => "none".into(),
            Some(ttl) => millis(ttl).to_string().into(),
            None => "never".into(),
        }
    }

    fn patience(&self) -> u64 {
        millis(self.client.config.patience)
    }

    /// Takes the seats that the claim lacks. `true` if it took one on a channel: a message may have been published before.
    async fn join(&mut self, arrival: Option<u64>) -> Result<bool> {
        let Record { keys, owner, .. } = &*self.record;
        let (kind, hub) = (self.request.kind, &self.client.connection.hub);
        let (channel, arrival, is_first) = match kind {
            Kind::Mutex => (keys.channel(), arrival, false),
            Kind::Fair => (keys.fair_channel(owner), None, arrival.is_some()),
            Kind::Read | Kind::Write => (keys.rw_channel(), arrival, false),
            Kind::Permit => (keys.fair_channel(owner), None, false),
            kind => return Err(self.client.info.unsupported(kind)),
        };
        let before = (self.seat.is_some(), self.as_mutex.is_some());
        if self.client.config.events && self.for_deletion.is_none() {
            self.for_deletion = Some(hub.await_deletion(keys.lock(), arrival, kind));
        }
        if self.seat.is_none() {
            self.seat = Some(hub.join(channel.to_string(), arrival, kind).await?);
        }
        if is_first && self.as_mutex.is_none() {
            self.as_mutex = Some(hub.join(keys.channel().to_string(), None, kind).await?);
        }
        Ok(before != (self.seat.is_some(), self.as_mutex.is_some()))
    }

    /// Marks the wake-ups that have come as used: the claim asks the server now, and sees what they told of.
    fn clear_seats(&self) {
        self.seats().for_each(Seat::clear);
    }

    fn seats(&self) -> impl Iterator<Item = &Seat> {
        [&self.seat, &self.as_mutex, &self.for_deletion].into_iter().flatten()
    }

    fn leave_seats(&mut self) {
        (self.seat, self.as_mutex, self.for_deletion) = (None, None, None);
    }

    /// Whether another waiter of this client asks the server for this one too. A mutex has no queue on the server, so only the
    /// client's first waiter of a name needs to look whether the holder is gone without a message. While the server does not
    /// answer, each waiter asks for itself, and so gets the error. A waiter on a RedLock, which wants no token, asks for itself
    /// too: another waiter may be the first on each member, and none of them would then see a majority that is free.
    fn is_represented(&self) -> bool {
        self.request.kind == Kind::Mutex
            && self.request.wants_token
            && !self.is_plain()
            && self.seat.as_ref().is_some_and(|seat| !seat.is_first_of_its_kind() && seat.is_quiet())
            && self.for_deletion.as_ref().is_none_or(Seat::is_quiet)
            && self.client.connection.has_answered_within(self.request.ttl / 2)
    }

    /// Takes the seat of a holder.
    fn watch(&mut self) {
        if self.client.config.events && self.seat.is_none() {
            self.seat = Some(self.client.connection.hub.watch(self.record.keys.lock(), self.request.kind));
        }
    }

    fn granted(&mut self, token: Option<Token>) -> Attempt {
        // A wake-up that came meanwhile told of the release that made this grant possible. It must not go to the next waiter.
        self.clear_seats();
        self.leave_seats();
        self.watch();
        Attempt::Granted(Grant { token, valid_for: self.request.ttl })
    }
}

fn renewal(held: bool, ttl: Duration) -> Renewal {
    if held { Renewal::Renewed { valid_for: ttl } } else { Renewal::Lost }
}

#[async_trait]
impl Claim for RedisClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        if self.is_represented() {
            return Ok(Attempt::Busy { retry_in: FOR_EVER });
        }
        self.clear_seats();
        let mut answer = self.ask().await?;
        if let Answer::Busy { arrival, .. } = answer
            && self.request.wait != Wait::Never
            && self.join(arrival).await?
            && !self.is_represented()
        {
            // A holder that released before the subscription stood has woken nobody, so the claim asks once more.
            answer = self.ask().await?;
        }
        Ok(match answer {
            Answer::Granted(token) => self.granted(token),
            Answer::Busy { retry_in, .. } if self.is_plain() => {
                Attempt::Busy { retry_in: retry_in.min(INTERVAL) }
            }
            Answer::Busy { retry_in, .. } => Attempt::Busy { retry_in },
        })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        // Before the server is asked: a claim that is taken back was not granted to this client, so it has no seat yet.
        self.watch();
        self.clear_seats();
        let (ttl, record) = (self.request.ttl, Arc::clone(&self.record));
        let asked = self.client.renewals.submit(record, ttl);
        Ok(renewal(self.client.beside(&self.request, None, asked).await?, ttl))
    }

    /// The hold is on the server for its time, whether its client lives or not: so this gives it another owner and another time.
    /// With `wait_replicas` a replica must have it, as it must have a grant: no renewal follows.
    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        let ticket = Record { owner: owner(ticket), ttl: lasting, ..Record::clone(&self.record) };
        let handed_over = self.hand_over(&self.record, &ticket);
        let answer = self.client.beside(&self.request, Some(lasting), handed_over).await;
        let answer = match (answer, self.client.config.replicas) {
            (Ok(Some(_)), Some(wanted)) => self.client.renewals.batch().confirm(&ticket, wanted).await,
            (answer, _) => answer.map(|handed_over| handed_over.is_some()),
        };
        self.ticket = Some(ticket);
        Ok(renewal(answer?, lasting))
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        // Before the server is asked: the claim was not granted to this client, so it has no seat yet.
        self.watch();
        self.clear_seats();
        let ticket = Record { owner: owner(ticket), ..Record::clone(&self.record) };
        let handed_over = self.hand_over(&ticket, &self.record);
        let Some(HandedOver { token, remaining }) =
            self.client.beside(&self.request, None, handed_over).await?
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
        // If this claim was woken and has not asked since, the wake-up goes to the client's next waiter.
        self.leave_seats();
        Ok(release)
    }

    async fn changed(&mut self) {
        if self.seat.is_none() {
            return pending().await;
        }
        select_all(self.seats().map(|seat| Box::pin(seat.notified()))).await;
    }
}
