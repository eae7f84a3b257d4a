//! `redis+redlock://host,host,host`: a majority of independent servers as one store.

use dlock_core::{
    RedLock, Result,
    driver::{ConnectFuture, Store, StoreUrl, connect_majority},
};

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
    let configs = configs(&url)?;
    let lazy: Vec<_> = configs.iter().cloned().map(RedisBackend::lazy).collect::<Result<_>>()?;
    // Refuses an invalid list of members before any I/O.
    RedLock::new(lazy.iter().cloned().map(RedisBackend::into_store))?;
    let connect = async |config| RedisBackend::connect(config).await.map(RedisBackend::into_store);
    let members = configs.into_iter().zip(lazy).map(|(config, lazy)| {
        let connecting: ConnectFuture = Box::pin(connect(config));
        (connecting, Some(lazy.into_store()))
    });
    let lock = RedLock::new(connect_majority(members.collect()).await?)?;
    Ok(limit.into_iter().fold(lock, RedLock::member_timeout).into_store())
}

/// Returns the configuration of each member. All hosts are checked before dlock connects to any,
/// because an invalid host may be a part of a password.
pub(crate) fn configs(url: &StoreUrl) -> Result<Vec<RedisConfig>> {
    url.hosts().iter().map(|host| RedisConfig::from_url(&url.with_host("redis", host))).collect()
}
