//! Checks whether a server is fit for locks.

use dlock_core::Result;
use redis::Value;

use super::Connection;
use crate::error::{self, STORE};

/// The oldest version of Redis whose scripts may ask for the time and then write.
const OLDEST: u32 = 5;

/// Refuses a server that is not fit for locks, and warns of one that may drop them. If the user may not send `INFO`, the
/// server is taken for fit.
pub(crate) async fn check(connection: &Connection) -> Result<()> {
    let about = match info(connection).await {
        Ok(about) => about,
        Err(error) if error.is_transient() || error::wants_login(&error) => return Err(error),
        Err(_) => return Ok(()),
    };
    refuse_old(&about)?;
    refuse_one_node_of_many(connection, &about).await?;
    warn_of_eviction(&about);
    Ok(())
}

/// How many names a server is asked about. Of so many, a node that lacks a part of all names lacks one, almost always.
const NAMES: usize = 32;

/// Refuses a node of a cluster only if it answers `MOVED`. A server in cluster mode may have all names, or be a proxy that
/// knows which node has which.
async fn refuse_one_node_of_many(connection: &Connection, about: &str) -> Result<()> {
    if connection.is_cluster() || field(about, "cluster_enabled") != Some("1") {
        return Ok(());
    }
    let mut all = redis::pipe();
    for name in 0..NAMES {
        all.cmd("EXISTS").arg(format!("dlock:{name}"));
    }
    let answers = connection.query_all_at(all, None).await?;
    let is_elsewhere =
        |answer: &Value| matches!(answer, Value::ServerError(error) if error.code() == "MOVED");
    if answers.iter().any(is_elsewhere) { Err(error::one_node_of_many()) } else { Ok(()) }
}

fn refuse_old(about: &str) -> Result<()> {
    let version = field(about, "redis_version").unwrap_or_default();
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_some_and(|major| major < OLDEST) {
        return Err(STORE.refused(format!("the server is Redis {version}; locks need {OLDEST} or later")));
    }
    Ok(())
}

#[cfg(feature = "tracing")]
fn warn_of_eviction(about: &str) {
    let policy = field(about, "maxmemory_policy").unwrap_or("noeviction");
    if policy != "noeviction" && field(about, "maxmemory").is_some_and(|limit| limit != "0") {
        tracing::warn!(
            store = STORE.store(),
            policy,
            "the server may drop locks when its memory is full; set maxmemory-policy to noeviction"
        );
    }
}

#[cfg(not(feature = "tracing"))]
fn warn_of_eviction(_: &str) {}

/// Whether the server has a replica, by its `INFO`. Warns if it has none, because the caller wanted one.
pub(crate) fn has_replicas(about: &str) -> bool {
    let has = field(about, "connected_slaves").is_some_and(|count| count != "0");
    #[cfg(feature = "tracing")]
    if !has {
        tracing::warn!(
            store = STORE.store(),
            "the server has no replica to wait for; locks are granted without"
        );
    }
    has
}

/// Whether the server is a master, by its `INFO`.
pub(crate) fn is_master(about: &str) -> bool {
    field(about, "role") == Some("master")
}

async fn info(connection: &Connection) -> Result<String> {
    // Not `INFO everything`, to which a server before Redis 6 answers nothing.
    let answer = connection.query(redis::cmd("INFO").arg("default")).await?;
    Ok(match answer {
        // A cluster answers for each node. Any of them will do, because they are alike.
        Value::Map(nodes) => nodes.into_iter().next().map(|(_, about)| text(about)).unwrap_or_default(),
        answer => text(answer),
    })
}

fn text(value: Value) -> String {
    redis::from_redis_value(value).unwrap_or_default()
}

fn field<'a>(about: &'a str, name: &str) -> Option<&'a str> {
    about.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_too_old_is_refused_with_both_versions() {
        let told = refuse_old("# Server\r\nredis_version:4.0.14\r\n").unwrap_err();
        let told = std::error::Error::source(&told).unwrap().to_string();
        assert_eq!(told, "the server is Redis 4.0.14; locks need 5 or later");
        for about in ["redis_version:5.0.7\r\n", "redis_version:255.255.255\r\n", ""] {
            refuse_old(about).expect(about);
        }
    }
}
