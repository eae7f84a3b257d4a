//! The least that the protocols allow: their scripts by hand, without an engine.

use std::cell::Cell;

use futures_util::{FutureExt, StreamExt};
use redis::{
    Script, Value,
    aio::{MultiplexedConnection, PubSub},
};
use tokio::sync::Mutex;

use super::Server;
use crate::contest::{Client, Outcome};

/// Redisson's lock, with a fencing token that is not less than the server's clock. If the lock is busy the answer is a list.
const ACQUIRE: &str = "
if redis.call('EXISTS', KEYS[1]) == 1 then return {redis.call('PTTL', KEYS[1])} end
local time = redis.call('TIME')
local token = time[1] .. string.format('%06d', time[2])
local last = redis.call('GETSET', KEYS[2], token)
if last and last >= token then token = redis.call('INCR', KEYS[2]) end
redis.call('HSET', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token";
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
pub(super) struct RedissonByHand {
    connection: MultiplexedConnection,
    messages: Mutex<Messages>,
    acquire: Script,
    release: Script,
    holds: Cell<u64>,
}

/// A connection for messages, and the channel that it was subscribed to last.
struct Messages {
    connection: PubSub,
    channel: String,
}

impl RedissonByHand {
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
        let answer: Value = acquire.invoke_async(&mut self.connection.clone()).await?;
        Ok(!matches!(answer, Value::Array(_)))
    }
}

impl Client for RedissonByHand {
    /// The lock's name and its owner.
    type Held = (String, String);

    async fn lock(&self, name: &str) -> Outcome<Self::Held> {
        let hold = self.holds.replace(self.holds.get() + 1);
        let held = (name.to_owned(), format!("{:p}:{hold}", self));
        if self.acquire(name, &held.1).await? {
            return Ok(held);
        }
        // One connection for messages: a client's waiters wait one after the other.
        let mut messages = self.messages.lock().await;
        messages.subscribe(name).await?;
        loop {
            // Messages that came before this attempt tell nothing about it.
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

/// The limit in the plain dialect, in which nobody is woken.
pub(super) struct PlainByHand {
    connection: MultiplexedConnection,
    delete: Script,
}

impl PlainByHand {
    pub(super) async fn connect(server: &Server) -> Outcome<Self> {
        Ok(Self { connection: server.connection().await?, delete: Script::new(COMPARE_AND_DELETE) })
    }
}

impl Client for PlainByHand {
    /// The lock's name.
    type Held = String;

    async fn lock(&self, name: &str) -> Outcome<String> {
        let mut set = redis::cmd("SET");
        let set = set.arg(name).arg("o").arg("NX").arg("PX").arg(TTL_MS);
        let set: Option<String> = set.query_async(&mut self.connection.clone()).await?;
        Ok(set.map(|_| name.to_owned()).ok_or("it is held, and nothing would tell when it is not")?)
    }

    async fn unlock(&self, held: String) -> Outcome {
        Ok(self.delete.key(held).arg("o").invoke_async(&mut self.connection.clone()).await?)
    }
}
