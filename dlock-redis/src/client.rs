//! What the claims of one client share.

mod clock;
mod renewals;
mod who;

use std::{sync::Arc, time::Duration};

use dlock_core::{
    LockName, Result,
    driver::{Gathering, Info, Moment},
};
use redis::Value;

use crate::{
    config::{Dialect, RedisConfig},
    connection::Connection,
    error::STORE,
    keys::Keys,
    scripts::{Call, PLAIN_RENEW, RENEW},
};

use clock::ServerClock;
pub(crate) use renewals::Record;
use renewals::Renewals;
use who::Written;

/// One client: its settings, its connections, its renewals, and what it has told of who asks.
pub(crate) struct Client {
    pub(crate) config: RedisConfig,
    pub(crate) connection: Arc<Connection>,
    pub(crate) renewals: Gathering<Renewals>,
    pub(crate) info: Info,
    clock: ServerClock,
    written: Written,
}

impl Client {
    pub(crate) fn new(connection: Connection, config: RedisConfig, info: Info) -> Self {
        let script = if config.dialect == Dialect::Plain { &PLAIN_RENEW } else { &RENEW };
        let connection = Arc::new(connection);
        let renewals = Gathering::new(STORE, Renewals::new(Arc::clone(&connection), script));
        Self { config, connection, renewals, info, clock: ServerClock::default(), written: Written::new() }
    }

    /// Runs a script whose last argument is its deadline, which `call` gets in microseconds since 1970. The script does nothing
    /// once `limit` is over.
    ///
    /// # Errors
    /// As [`Connection::run`].
    pub(crate) async fn run_in_time(
        &self,
        limit: Duration,
        call: impl Fn(u64) -> Result<Call> + Send,
    ) -> Result<Value> {
        let begun = Moment::now();
        let mut deadline = match self.clock.deadline(limit) {
            Some(deadline) => deadline,
            None => self.read_clock(limit).await?,
        };
        for _ in 0..2 {
            let sent = Moment::now();
            let answer = self.connection.run(&call(deadline)?).await?;
            let Some(now) = late(&answer) else { return Ok(answer) };
            // Either the request was late, or the server's clock was set forward.
            self.clock.learn(sent, now);
            match (limit.checked_sub(begun.elapsed()), self.clock.deadline(Duration::ZERO)) {
                (Some(left), Some(now)) => {
                    deadline = now.saturating_add(u64::try_from(left.as_micros()).unwrap_or(u64::MAX))
                }
                _ => break,
            }
        }
        Err(STORE.unavailable("the server has executed the request too late"))
    }

    async fn read_clock(&self, limit: Duration) -> Result<u64> {
        let sent = Moment::now();
        let answer = self.connection.query(&redis::cmd("TIME")).await?;
        let (seconds, micros): (u64, u64) =
            redis::from_redis_value(answer).map_err(|_| STORE.garbled("TIME"))?;
        self.clock.learn(sent, seconds.saturating_mul(1_000_000).saturating_add(micros));
        Ok(self.clock.deadline(limit).unwrap_or_default())
    }

    pub(crate) fn keys(&self, name: &LockName) -> Keys {
        let of = if self.connection.is_cluster() { Keys::on_cluster } else { Keys::new };
        of(&self.config.prefix, name)
    }
}

/// The server's time in microseconds since 1970, if this is the answer of `late.lua`.
fn late(answer: &Value) -> Option<u64> {
    let Value::SimpleString(status) = answer else { return None };
    status.strip_prefix("late ")?.parse().ok()
}
