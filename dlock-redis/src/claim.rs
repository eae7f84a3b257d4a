//! One claim on the server.

use std::{future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{Attempt, Claim, Grant, Kind, Renewal, Request, Result, Token, Wait};
use redis::Value;

use crate::{
    backend::Shared,
    config::Dialect,
    error,
    hub::Seat,
    keys::{Keys, owner},
    renewal::Hold,
    script::{
        ACQUIRE, FAIR_ACQUIRE, FAIR_RELEASE, PLAIN_ACQUIRE, PLAIN_RELEASE, RELEASE, RW_ACQUIRE, RW_RELEASE,
        Script,
    },
};

/// How often a waiter of the plain dialect asks: only dlock wakes it, others do not.
const INTERVAL: Duration = Duration::from_millis(100);

/// When to ask for a lock that lasts for ever; the engine asks earlier.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

pub(crate) struct RedisClaim {
    shared: Arc<Shared>,
    request: Request,
    /// Where it is woken: among those who wait, or once it holds, if the server tells of keys that are gone.
    seat: Option<Seat>,
}

/// What the server said to an attempt.
enum Answer {
    Granted(Option<Token>),
    Busy { retry_in: Duration, arrival: Option<u64> },
}

impl RedisClaim {
    pub(crate) fn new(shared: Arc<Shared>, request: Request) -> Self {
        Self { shared, request, seat: None }
    }

    fn keys(&self) -> Keys {
        self.shared.keys(&self.request.name)
    }

    fn owner(&self) -> String {
        owner(self.request.id)
    }

    fn ttl(&self) -> String {
        self.request.ttl.as_millis().to_string()
    }

    fn is_plain(&self) -> bool {
        self.shared.config.dialect == Dialect::Plain
    }

    async fn ask(&self) -> Result<Answer> {
        let (keys, owner, ttl) = (self.keys(), self.owner(), self.ttl());
        let publish = self.shared.connection.publish.to_owned();
        let waits = if self.request.wait == Wait::Never { "try" } else { "wait" }.to_owned();
        let (script, keys, args): (&Script, Vec<String>, Vec<String>) = match self.request.kind {
            _ if self.is_plain() => (&PLAIN_ACQUIRE, vec![keys.lock().to_owned()], vec![owner, ttl]),
            Kind::Mutex => (&ACQUIRE, vec![keys.lock().to_owned(), keys.token()], vec![owner, ttl]),
            Kind::Fair => {
                let all = self.fair_keys(&keys).into_iter().chain([keys.token()]);
                (&FAIR_ACQUIRE, all.collect(), self.fair_args(&keys).into_iter().chain([waits]).collect())
            }
            kind @ (Kind::Read | Kind::Write) => {
                let all = self.rw_keys(&keys).into_iter().chain([keys.token()]);
                let args = vec![owner, ttl, keys.rw_channel(), publish, kind.to_string(), waits];
                (&RW_ACQUIRE, all.collect(), args)
            }
        };
        let (answer, answered) = match self.shared.connection.run(script, &keys, &args).await {
            Err(error) if error::is_wrong_type(&error) => return Err(self.wrong_kind("other")),
            outcome => outcome?,
        };
        let answer = self.read(answer)?;
        if let (Answer::Granted(_), Some(wanted)) = (&answer, self.shared.config.replicas) {
            let acks = self.shared.connection.acknowledged(&keys[0], answered, wanted).await?;
            self.shared.check_replicas(acks).await?;
        }
        Ok(answer)
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
                let token = token.and_then(Token::new).ok_or_else(|| error::garbled("a fencing token"))?;
                Ok(Answer::Granted(Some(token)))
            }
            Value::SimpleString(found) => Err(self.wrong_kind(&found)),
            Value::Array(parts) => match parts[..] {
                [Value::Int(left), Value::Int(arrival)] => Ok(busy(left, arrival)),
                _ => Err(error::garbled("an attempt")),
            },
            _ => Err(error::garbled("an attempt")),
        }
    }

    fn wrong_kind(&self, found: &str) -> dlock_core::Error {
        error::wrong_kind(&self.request.name, self.request.kind, found)
    }

    fn fair_keys(&self, keys: &Keys) -> Vec<String> {
        vec![keys.lock().to_owned(), keys.queue(), keys.deadlines(), keys.fair_beats()]
    }

    fn fair_args(&self, keys: &Keys) -> Vec<String> {
        let patience = self.shared.config.patience.as_millis().to_string();
        vec![self.owner(), self.ttl(), patience, keys.channel(), self.shared.connection.publish.to_owned()]
    }

    fn rw_keys(&self, keys: &Keys) -> Vec<String> {
        let timeout = keys.read_timeout(&self.owner());
        vec![keys.lock().to_owned(), keys.readers(), keys.writers(), keys.rw_beats(), timeout]
    }

    /// Takes a place among those who are woken.
    async fn join(&self, arrival: Option<u64>) -> Result<Seat> {
        let keys = self.keys();
        let channel = match self.request.kind {
            Kind::Mutex => keys.channel(),
            Kind::Fair => keys.fair_channel(&self.owner()),
            Kind::Read | Kind::Write => keys.rw_channel(),
        };
        self.shared.connection.hub.join(channel, arrival, self.request.kind == Kind::Read).await
    }

    fn granted(&mut self, token: Option<Token>) -> Attempt {
        // A wake-up that came meanwhile was for the release that made room for this.
        if let Some(seat) = self.seat.take() {
            seat.asks();
        }
        if self.shared.config.events {
            self.seat = Some(self.shared.connection.hub.watch(self.keys().lock()));
        }
        Attempt::Granted(Grant { token, valid_for: self.request.ttl })
    }
}

#[async_trait]
impl Claim for RedisClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        if let Some(seat) = &self.seat {
            seat.asks();
        }
        let mut answer = self.ask().await?;
        if let (Answer::Busy { arrival, .. }, None) = (&answer, &self.seat)
            && self.request.wait != Wait::Never
        {
            self.seat = Some(self.join(*arrival).await?);
            // Whoever let go before the subscription was there has woken nobody.
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
        if let Some(seat) = &self.seat {
            seat.asks();
        }
        let (keys, owner) = (self.keys(), self.owner());
        let lock = keys.lock().to_owned();
        let timeout = if self.request.kind == Kind::Read { keys.read_timeout(&owner) } else { lock.clone() };
        let field = if self.request.kind == Kind::Write { format!("{owner}:write") } else { owner };
        let hold = Hold { lock, timeout, field, ttl: self.request.ttl };
        Ok(match self.shared.renewals.renew(hold).await? {
            true => Renewal::Renewed { valid_for: self.request.ttl },
            false => Renewal::Lost,
        })
    }

    async fn release(&mut self) -> Result<()> {
        let (keys, owner) = (self.keys(), self.owner());
        let publish = self.shared.connection.publish.to_owned();
        let (script, keys, args): (&Script, Vec<String>, Vec<String>) = match self.request.kind {
            _ if self.is_plain() => {
                (&PLAIN_RELEASE, vec![keys.lock().to_owned()], vec![owner, keys.channel(), publish])
            }
            Kind::Mutex => {
                (&RELEASE, vec![keys.lock().to_owned(), keys.queue()], vec![owner, keys.channel(), publish])
            }
            Kind::Fair => (&FAIR_RELEASE, self.fair_keys(&keys), self.fair_args(&keys)),
            Kind::Read | Kind::Write => {
                let args = vec![owner, self.ttl(), keys.rw_channel(), publish, keys.tag().to_owned()];
                (&RW_RELEASE, self.rw_keys(&keys), args)
            }
        };
        self.shared.connection.run(script, &keys, &args).await?;
        // The next of this client's waiters may come now, if this one was to.
        self.seat = None;
        Ok(())
    }

    async fn changed(&mut self) {
        match &self.seat {
            Some(seat) => seat.rung().await,
            None => pending().await,
        }
    }
}
