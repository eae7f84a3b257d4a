//! State that the claims of one client share.

mod clock;
mod renewals;
mod who;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use dlock_core::{
    LockName, Result,
    driver::{Batcher, ClockReading, Info, LateRequests, Moment},
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
use who::WrittenLabels;

/// One client: its configuration, its connections, its renewals and its labels.
pub(crate) struct Client {
    pub(crate) config: RedisConfig,
    pub(crate) connection: Arc<Connection>,
    pub(crate) renewals: Batcher<Renewals>,
    pub(crate) info: Info,
    clock: OnceLock<ServerClock>,
    labels: WrittenLabels,
}

impl Client {
    pub(crate) fn new(connection: Connection, config: RedisConfig, info: Info) -> Self {
        let script = if config.dialect == Dialect::Plain { &PLAIN_RENEW } else { &RENEW };
        let connection = Arc::new(connection);
        let renewals = Batcher::new(STORE, Renewals::new(Arc::clone(&connection), script));
        Self { config, connection, renewals, info, clock: OnceLock::new(), labels: WrittenLabels::new() }
    }

    /// Runs a script for `key` that does nothing once `limit` is over. The last argument of the
    /// script is its deadline. `call` receives the deadline in microseconds since 1970.
    ///
    /// If the connection breaks before the deadline, the rest of the time is recorded in `late`.
    ///
    /// # Errors
    /// As [`Connection::run`].
    pub(crate) async fn run_in_time(
        &self,
        key: &str,
        limit: Duration,
        late: &LateRequests,
        call: impl Fn(u64) -> Result<Call> + Send,
    ) -> Result<Value> {
        let started = Moment::now();
        let clock = match self.clock.get() {
            Some(clock) => clock,
            // Each caller reads the clock itself. If the callers read it one after the other, each
            // would wait for all callers before it while the server does not reply. Boxed because
            // this future is large, is needed rarely, and is a part of the future of every attempt.
            None => {
                let reading = Box::pin(self.read_clock(key)).await?;
                self.clock.get_or_init(|| ServerClock::new(reading))
            }
        };
        if clock.begin_reading(started) {
            clock.replace(Box::pin(self.read_clock(key)).await?);
        }
        let slot = self.connection.is_cluster().then(|| Slot::for_key(key));
        for _ in 0..2 {
            let now = Moment::now();
            let Some(left) = limit.checked_sub(started.elapsed_at(now)) else { break };
            let sent = self.connection.run_tracked(&call(clock.deadline(slot, now, left))?).await;
            if sent.is_broken {
                late.note_lost_reply(limit.saturating_sub(started.elapsed()));
            }
            let reply = sent.result?;
            let Some(now) = time_of_refusal(&reply) else { return Ok(reply) };
            // Either the request was late, or the server's clock is ahead of the client's reading.
            clock.learn(slot, now);
        }
        Err(STORE.unavailable("the request reached the server after its deadline"))
    }

    /// Reads the clock of the server. On a cluster, reads the clock of the node that has this key.
    async fn read_clock(&self, key: &str) -> Result<ClockReading> {
        let time = self.server_time(key).await?;
        Ok(ClockReading::received(u64::try_from(time.as_micros()).unwrap_or(u64::MAX)))
    }

    /// Returns the time since 1970 on the clock of the server, or of the node of a cluster that has
    /// this key.
    pub(crate) async fn server_time(&self, key: &str) -> Result<Duration> {
        let reply = self.connection.query_node_of(key, &redis::cmd("TIME")).await?;
        let (seconds, micros): (u64, u64) =
            redis::from_redis_value(reply).map_err(|_| STORE.unexpected_reply("TIME"))?;
        Ok(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
    }

    pub(crate) fn keys(&self, name: &LockName) -> Keys {
        let keys = if self.connection.is_cluster() { Keys::on_cluster } else { Keys::new };
        keys(&self.config.prefix, name)
    }
}

/// Returns the server's time in microseconds since 1970 if this is the reply with which `late.lua`
/// refuses a request.
fn time_of_refusal(reply: &Value) -> Option<u64> {
    let Value::SimpleString(status) = reply else { return None };
    status.strip_prefix("late ")?.parse().ok()
}

#[cfg(test)]
mod fuzz;
