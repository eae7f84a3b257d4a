//! `redis+redlock://host,host,host`: a majority of independent servers as one store.

use dlock_core::{
    Error, RedLock, Result,
    driver::{Store, StoreUrl},
};
use futures_util::future::join_all;

use crate::{
    backend::RedisBackend,
    config::{LEAST_TIME, RedisConfig},
};

/// Connects to each host as to a `redis://` of its own, with the same user, database and parameters. A majority must answer
/// now. A host that does not is connected to later, when it is used.
pub(crate) async fn connect(mut url: StoreUrl) -> Result<Store> {
    let limit = url.duration("member_timeout", LEAST_TIME..)?;
    if url.param("token_ttl").is_some() {
        return Err(url.invalid("has `token_ttl`, and a RedLock has no tokens"));
    }
    url.take_param("member_timeout");
    let asked = join_all(configs(&url)?.into_iter().map(member)).await;
    let (mut members, mut away) = (Vec::with_capacity(asked.len()), Vec::new());
    for member in asked {
        let (backend, error) = member?;
        members.push(backend.into_store());
        away.extend(error);
    }
    let spare = members.len().saturating_sub(1) / 2;
    let lock = RedLock::new(members)?;
    if away.len() > spare {
        return Err(away.swap_remove(0));
    }
    Ok(limit.into_iter().fold(lock, RedLock::member_timeout).into_store())
}

/// The configuration of each member. All are checked before any is connected to: a host that is not valid may be a part of a
/// password.
pub(crate) fn configs(url: &StoreUrl) -> Result<Vec<RedisConfig>> {
    url.hosts().iter().map(|host| RedisConfig::from_url(&url.with_host("redis", host))).collect()
}

/// A member, and the error if it does not answer now.
async fn member(config: RedisConfig) -> Result<(RedisBackend, Option<Error>)> {
    match RedisBackend::connect(config.clone()).await {
        Ok(backend) => Ok((backend, None)),
        Err(error) if error.is_transient() => Ok((RedisBackend::later(config)?, Some(error))),
        Err(error) => Err(error),
    }
}
