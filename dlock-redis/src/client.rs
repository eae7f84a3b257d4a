//! What the claims of one client share.

mod clock;
mod renewals;
mod who;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use dlock_core::{
    LockName, Result,
    driver::{Batcher, Info, Moment},
};
use redis::{Value, cluster_routing::Slot};

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
    pub(crate) renewals: Batcher<Renewals>,
    pub(crate) info: Info,
    clock: OnceLock<ServerClock>,
    written: Written,
}

impl Client {
    pub(crate) fn new(connection: Connection, config: RedisConfig, info: Info) -> Self {
        let script = if config.dialect == Dialect::Plain { &PLAIN_RENEW } else { &RENEW };
        let connection = Arc::new(connection);
        let renewals = Batcher::new(STORE, Renewals::new(Arc::clone(&connection), script));
        Self { config, connection, renewals, info, clock: OnceLock::new(), written: Written::new() }
    }

    /// Runs a script for `key` whose last argument is its deadline, which `call` gets in microseconds since 1970. The script does
    /// nothing once `limit` is over.
    ///
    /// # Errors
    /// As [`Connection::run`].
    pub(crate) async fn run_in_time(
        &self,
        key: &str,
        limit: Duration,
        call: impl Fn(u64) -> Result<Call> + Send,
    ) -> Result<Value> {
        let begun = Moment::now();
        let clock = match self.clock.get() {
            Some(clock) => clock,
            // Callers do not wait for each other here: with a server that hangs, each would wait for all before it.
            // Boxed: it is rare and deep, and a part of the future of every attempt.
            None => {
                let clock = Box::pin(self.read_clock(key)).await?;
                self.clock.get_or_init(|| clock)
            }
        };
        let slot = self.connection.is_cluster().then(|| Slot::for_key(key));
        for _ in 0..2 {
            let Some(left) = limit.checked_sub(begun.elapsed()) else { break };
            let answer = self.connection.run(&call(clock.deadline(slot, left))?).await?;
            let Some(now) = late(&answer) else { return Ok(answer) };
            // Either the request was late, or the server's clock is ahead of what the client knows.
            clock.learn(slot, now);
        }
        Err(STORE.unavailable("the server has received the request too late"))
    }

    /// Reads the clock of the server; on a cluster, of the node that has this key.
    async fn read_clock(&self, key: &str) -> Result<ServerClock> {
        let answer = self.connection.query_node_of(key, &redis::cmd("TIME")).await?;
        let (seconds, micros): (u64, u64) =
            redis::from_redis_value(answer).map_err(|_| STORE.unexpected_reply("TIME"))?;
        Ok(ServerClock::new(seconds.saturating_mul(1_000_000).saturating_add(micros)))
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
