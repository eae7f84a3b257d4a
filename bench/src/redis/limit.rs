//! The least that a lock costs in each protocol: its commands and scripts, without an engine.

use std::cell::Cell;

use futures_util::{FutureExt, StreamExt};
use redis::{
    Script, Value,
    aio::{MultiplexedConnection, PubSub},
};
use tokio::sync::Mutex;

use super::Server;
use crate::contest::{Client, Outcome};

/// Redisson's lock, with a fencing token that is not less than the server's clock. The reply is a
/// list if the lock is busy.
const ACQUIRE: &str = "
if redis.call('EXISTS', KEYS[1]) == 1 then return {redis.call('PTTL', KEYS[1])} end
local time = redis.call('TIME')
local token = time[1] .. string.format('%06d', time[2])
local last = redis.call('GETSET', KEYS[2], token)
if last and last >= token then token = redis.call('INCR', KEYS[2]) end
redis.call('HSET', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token";
/// Redisson's release.
const RELEASE: &str = "
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[2], '0')
return 1";
/// The plain dialect's release.
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

const TTL_MS: u32 = 30_000;

/// The limit in Redisson's dialect, whose waiters are woken by a message.
pub(super) struct RedissonLimit {
    connection: MultiplexedConnection,
    messages: Mutex<Messages>,
    acquire: Script,
    release: Script,
    /// Number of requested holds, for their owners' names.
    holds: Cell<u64>,
}

/// A connection for messages, with the channel of its last subscription.
struct Messages {
    connection: PubSub,
    channel: String,
}

impl RedissonLimit {
    pub(super) async fn connect(server: &Server) -> Outcome<Self> {
        let messages = Messages { connection: server.messages().await?, channel: String::new() };
        Ok(Self {
            connection: server.connection().await?,
            messages: Mutex::new(messages),
            acquire: Script::new(ACQUIRE),
            release: Script::new(RELEASE),
            holds: Cell::new(0),
        })
    }

    async fn acquire(&self, name: &str, owner: &str) -> Outcome<bool> {
        let token = format!("redisson_lock_token:{{{name}}}");
        let mut acquire = self.acquire.key(name);
        let acquire = acquire.key(token).arg(owner).arg(TTL_MS);
        let reply: Value = acquire.invoke_async(&mut self.connection.clone()).await?;
        Ok(!matches!(reply, Value::Array(_)))
    }
}

impl Client for RedissonLimit {
    /// The lock's name and its owner.
    type Held = (String, String);

    async fn lock(&self, name: &str) -> Outcome<Self::Held> {
        let hold_number = self.holds.replace(self.holds.get() + 1);
        let held = (name.to_owned(), format!("{:p}:{hold_number}", self));
        if self.acquire(name, &held.1).await? {
            return Ok(held);
        }
        // The client has one connection for messages, so only one of its waiters listens at a time.
        let mut messages = self.messages.lock().await;
        messages.subscribe(name).await?;
        loop {
            // Discards messages from before this attempt, because they say nothing about its
            // result.
            while let Some(Some(_)) = messages.connection.on_message().next().now_or_never() {}
            if self.acquire(name, &held.1).await? {
                return Ok(held);
            }
            messages.connection.on_message().next().await.ok_or("the connection is closed")?;
        }
    }

    async fn unlock(&self, (name, owner): Self::Held) -> Outcome {
        let mut release = self.release.key(&name);
        let release = release.arg(owner).arg(channel(&name));
        Ok(release.invoke_async(&mut self.connection.clone()).await?)
    }
}

impl Messages {
    async fn subscribe(&mut self, name: &str) -> Outcome {
        let channel = channel(name);
        if channel != self.channel {
            self.connection.subscribe(&channel).await?;
            self.channel = channel;
        }
        Ok(())
    }
}

fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// The limit of the plain dialect, which wakes no waiter.
pub(super) struct PlainLimit {
    connection: MultiplexedConnection,
    delete: Script,
}

impl PlainLimit {
    pub(super) async fn connect(server: &Server) -> Outcome<Self> {
        Ok(Self { connection: server.connection().await?, delete: Script::new(COMPARE_AND_DELETE) })
    }
}

impl Client for PlainLimit {
    /// The lock's name.
    type Held = String;

    async fn lock(&self, name: &str) -> Outcome<String> {
        let mut set = redis::cmd("SET");
        let set = set.arg(name).arg("o").arg("NX").arg("PX").arg(TTL_MS);
        let set: Option<String> = set.query_async(&mut self.connection.clone()).await?;
        Ok(set
            .map(|_| name.to_owned())
            .ok_or("the lock is held, and the plain dialect has no message for its release")?)
    }

    async fn unlock(&self, held: String) -> Outcome {
        Ok(self.delete.key(held).arg("o").invoke_async(&mut self.connection.clone()).await?)
    }
}
