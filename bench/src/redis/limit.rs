//! The least that the protocols allow: their scripts by hand, without an engine.

use redis::{Script, aio::MultiplexedConnection};

use super::Outcome;

/// Redisson's lock with a fencing token that is floored at the server's clock.
const ACQUIRE: &str = "
if redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('PTTL', KEYS[1]) end
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

pub(super) struct ByHand {
    connection: MultiplexedConnection,
    acquire: Script,
    release: Script,
    delete: Script,
}

impl ByHand {
    pub(super) fn new(connection: MultiplexedConnection) -> Self {
        let [acquire, release, delete] = [ACQUIRE, RELEASE, COMPARE_AND_DELETE].map(Script::new);
        Self { connection, acquire, release, delete }
    }

    pub(super) async fn redisson_pair(&self, name: &str, owner: &str) -> Outcome {
        let mut connection = self.connection.clone();
        let (token, channel) =
            (format!("redisson_lock_token:{{{name}}}"), format!("redisson_lock__channel:{{{name}}}"));
        let mut acquire = self.acquire.key(name);
        let _: redis::Value = acquire.key(token).arg(owner).arg(30_000).invoke_async(&mut connection).await?;
        let _: i64 = self.release.key(name).arg(owner).arg(channel).invoke_async(&mut connection).await?;
        Ok(())
    }

    pub(super) async fn plain_pair(&self, name: &str, owner: &str) -> Outcome {
        let mut connection = self.connection.clone();
        let mut set = redis::cmd("SET");
        let _: Option<String> =
            set.arg(name).arg(owner).arg("NX").arg("PX").arg(30_000).query_async(&mut connection).await?;
        let _: i64 = self.delete.key(name).arg(owner).invoke_async(&mut connection).await?;
        Ok(())
    }
}
