//! `redis+redlock://host,host,host`: a majority of independent servers as one store.

use std::time::Duration;

use dlock_core::{
    RedLock, Result,
    driver::{Store, StoreUrl},
};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until};

use crate::{
    backend::RedisBackend,
    config::{MIN_DURATION, RedisConfig},
};

/// Time that connecting waits for the other members once a majority has replied: a multiple of the
/// time that the majority took, and at least this minimum.
const GRACE_FACTOR: u32 = 4;
const MIN_GRACE: Duration = Duration::from_millis(250);

/// Connects to each host as to a `redis://` store, with the same user, database and parameters. A
/// majority must reply now. Any other member is connected when it is first used.
pub(crate) async fn connect(mut url: StoreUrl) -> Result<Store> {
    let limit = url.duration("member_timeout", MIN_DURATION..)?;
    if url.param("token_ttl").is_some() {
        return Err(url.invalid("has `token_ttl`, but a RedLock has no tokens"));
    }
    url.take_param("member_timeout");
    let configs = configs(&url)?;
    let lazy: Vec<_> = configs.iter().cloned().map(RedisBackend::lazy).collect::<Result<_>>()?;
    // Refuses an invalid list of members before any I/O.
    RedLock::new(lazy.iter().cloned().map(RedisBackend::into_store))?;
    let connected = connect_members(&configs).await?;
    let members = connected.into_iter().zip(lazy).map(|(member, lazy)| member.unwrap_or(lazy).into_store());
    let lock = RedLock::new(members)?;
    Ok(limit.into_iter().fold(lock, RedLock::member_timeout).into_store())
}

/// Connects to the members, in the order of their configurations. Returns `None` for a member that
/// is unreachable, or that replies much later than the majority.
///
/// # Errors
/// The first of an unreachable member if there is no majority, and every permanent error.
async fn connect_members(configs: &[RedisConfig]) -> Result<Vec<Option<RedisBackend>>> {
    let start = Instant::now();
    let mut tolerated = configs.len().saturating_sub(1) / 2;
    let majority = configs.len() - tolerated;
    let connect = |(index, config): (usize, &RedisConfig)| {
        let config = config.clone();
        async move { (index, RedisBackend::connect(config).await) }
    };
    let mut outstanding: FuturesUnordered<_> = configs.iter().enumerate().map(connect).collect();
    let mut members = vec![None; configs.len()];
    let (mut deadline, mut first_error) = (None, None);
    loop {
        let reply = tokio::select! {
            biased;
            reply = outstanding.next() => reply,
            () = sleep_until(deadline.unwrap_or(start)), if deadline.is_some() => None,
        };
        match reply {
            None => return Ok(members),
            Some((index, Ok(member))) => members[index] = Some(member),
            Some((_, Err(error))) if !error.is_transient() => return Err(error),
            Some((_, Err(error))) if tolerated == 0 => return Err(first_error.unwrap_or(error)),
            Some((_, Err(error))) => {
                tolerated -= 1;
                first_error.get_or_insert(error);
            }
        }
        if deadline.is_none() && members.iter().flatten().count() >= majority {
            let grace = (start.elapsed() * GRACE_FACTOR).max(MIN_GRACE);
            deadline = Some(Instant::now() + grace);
        }
    }
}

/// Returns the configuration of each member. All hosts are checked before dlock connects to any,
/// because an invalid host may be a part of a password.
pub(crate) fn configs(url: &StoreUrl) -> Result<Vec<RedisConfig>> {
    url.hosts().iter().map(|host| RedisConfig::from_url(&url.with_host("redis", host))).collect()
}
