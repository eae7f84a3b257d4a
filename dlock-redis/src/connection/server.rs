//! Checks whether a server is suitable for locks.

use dlock_core::Result;
use redis::Value;

use super::Connection;
use crate::error::{self, STORE};

/// Oldest major version of Redis whose scripts may read the time and then write.
const MIN_VERSION: u32 = 5;

/// Refuses a server that is not suitable for locks, and logs a warning for a server that may evict
/// locks. If the user may not send `INFO`, the server counts as suitable.
pub(crate) async fn check(connection: &Connection) -> Result<()> {
    let info = match info(connection).await {
        Ok(info) => info,
        Err(error) if error.is_transient() || error::wants_login(&error) => return Err(error),
        Err(_) => return Ok(()),
    };
    refuse_old(&info)?;
    refuse_one_node_of_many(connection, &info).await?;
    warn_of_eviction(&info);
    Ok(())
}

/// Number of names with which a server is probed. A node of a cluster almost certainly lacks at
/// least one of them.
const PROBES: usize = 32;

/// Refuses a node of a cluster if it replies `MOVED` to a probe. Any other server in cluster mode
/// is accepted. It may have all names, or be a proxy that forwards commands to the right node.
async fn refuse_one_node_of_many(connection: &Connection, info: &str) -> Result<()> {
    if connection.is_cluster() || field(info, "cluster_enabled") != Some("1") {
        return Ok(());
    }
    let mut all = redis::pipe();
    for name in 0..PROBES {
        all.cmd("EXISTS").arg(format!("dlock:{name}"));
    }
    let replies = connection.query_all_at(all, None).await?;
    let is_elsewhere = |reply: &Value| matches!(reply, Value::ServerError(error) if error.code() == "MOVED");
    if replies.iter().any(is_elsewhere) { Err(error::one_node_of_many()) } else { Ok(()) }
}

fn refuse_old(info: &str) -> Result<()> {
    let version = field(info, "redis_version").unwrap_or_default();
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_some_and(|major| major < MIN_VERSION) {
        return Err(
            STORE.refused(format!("the server is Redis {version}; locks need {MIN_VERSION} or later"))
        );
    }
    Ok(())
}

#[cfg(feature = "tracing")]
fn warn_of_eviction(info: &str) {
    let policy = field(info, "maxmemory_policy").unwrap_or("noeviction");
    if policy != "noeviction" && field(info, "maxmemory").is_some_and(|limit| limit != "0") {
        tracing::warn!(
            store = STORE.store(),
            policy,
            "the server may drop locks when its memory is full; set maxmemory-policy to noeviction"
        );
    }
}

#[cfg(not(feature = "tracing"))]
fn warn_of_eviction(_: &str) {}

/// Returns whether the server has a replica, according to its `INFO`. Logs a warning if it has
/// none, because the caller has configured that grants wait for one.
pub(crate) fn has_replicas(info: &str) -> bool {
    let has = field(info, "connected_slaves").is_some_and(|count| count != "0");
    #[cfg(feature = "tracing")]
    if !has {
        tracing::warn!(
            store = STORE.store(),
            "the server has no replica to wait for; locks are granted without"
        );
    }
    has
}

/// Returns whether the server is a master, according to its `INFO`.
pub(crate) fn is_master(info: &str) -> bool {
    field(info, "role") == Some("master")
}

async fn info(connection: &Connection) -> Result<String> {
    // Not `INFO everything`, to which a server before Redis 6 sends an empty reply.
    let reply = connection.query(redis::cmd("INFO").arg("default")).await?;
    Ok(match reply {
        // A cluster sends a reply of each node. The fields that are read here are the same in all.
        Value::Map(nodes) => nodes.into_iter().next().map(|(_, info)| text(info)).unwrap_or_default(),
        reply => text(reply),
    })
}

fn text(value: Value) -> String {
    redis::from_redis_value(value).unwrap_or_default()
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_too_old_is_refused_with_both_versions() {
        let error = refuse_old("# Server\r\nredis_version:4.0.14\r\n").unwrap_err();
        let reason = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(reason, "the server is Redis 4.0.14; locks need 5 or later");
        for info in ["redis_version:5.0.7\r\n", "redis_version:255.255.255\r\n", ""] {
            refuse_old(info).expect(info);
        }
    }
}
