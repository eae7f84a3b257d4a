//! `redis+redlock://host,host,host`: a majority of independent servers as one store.

use dlock_core::{
    Error, RedLock, Result,
    driver::{Store, StoreUrl},
};
use futures_util::future::join_all;

use crate::{
    backend::RedisBackend,
    config::{MIN_DURATION, RedisConfig},
};

/// Connects to each host as to a `redis://` store, with the same user, database and parameters. A
/// majority must reply now. Any other member is connected when it is first used.
pub(crate) async fn connect(mut url: StoreUrl) -> Result<Store> {
    let limit = url.duration("member_timeout", MIN_DURATION..)?;
    if url.param("token_ttl").is_some() {
        return Err(url.invalid("has `token_ttl`, but a RedLock has no tokens"));
    }
    url.take_param("member_timeout");
    let results = join_all(configs(&url)?.into_iter().map(member)).await;
    let (mut members, mut errors) = (Vec::with_capacity(results.len()), Vec::new());
    for result in results {
        let (backend, error) = result?;
        members.push(backend.into_store());
        errors.extend(error);
    }
    let max_errors = members.len().saturating_sub(1) / 2;
    let lock = RedLock::new(members)?;
    if errors.len() > max_errors {
        return Err(errors.swap_remove(0));
    }
    Ok(limit.into_iter().fold(lock, RedLock::member_timeout).into_store())
}

/// Returns the configuration of each member. All hosts are checked before dlock connects to any,
/// because an invalid host may be a part of a password.
pub(crate) fn configs(url: &StoreUrl) -> Result<Vec<RedisConfig>> {
    url.hosts().iter().map(|host| RedisConfig::from_url(&url.with_host("redis", host))).collect()
}

/// Connects to a member. If it does not reply now, returns a client that connects later, and the
/// error.
async fn member(config: RedisConfig) -> Result<(RedisBackend, Option<Error>)> {
    match RedisBackend::connect(config.clone()).await {
        Ok(backend) => Ok((backend, None)),
        Err(error) if error.is_transient() => Ok((RedisBackend::lazy(config)?, Some(error))),
        Err(error) => Err(error),
    }
}
