//! The choice among several hosts of which one accepts writes.

use std::time::Duration;

use super::{Address, StoreErrors};
use crate::model::{Error, Result};

/// Connects to the first of `hosts` that accepts the connection. Each host gets an equal share of
/// `limit`, so that a host that does not reply leaves time for the others. Without hosts, as for a
/// Unix socket, calls `connect` once with `None`.
///
/// # Errors
/// The last error that is permanent or [`Error::Unwritable`]. Such an error names the cause, for
/// example a wrong URL, a missing right or a read-only server. If every host was only unreachable,
/// the error of the first host.
pub async fn connect_to_first<'a, T, F>(
    errors: StoreErrors,
    hosts: &'a [Address],
    limit: Duration,
    connect: impl Fn(Option<&'a Address>) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    if hosts.is_empty() {
        return errors.with_timeout(limit, connect(None)).await;
    }
    let share = limit / u32::try_from(hosts.len()).unwrap_or(u32::MAX);
    let mut failure = None;
    for host in hosts {
        match errors.with_timeout(share, connect(Some(host))).await {
            Ok(connection) => return Ok(connection),
            Err(error) => {
                let says_more = !error.is_transient() || matches!(error, Error::Unwritable { .. });
                if failure.is_none() || says_more {
                    failure = Some(errors.at_host(host, error));
                }
            }
        }
    }
    Err(failure.expect("there is a host"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: StoreErrors = StoreErrors::new("table");
    const LIMIT: Duration = Duration::from_secs(3);

    fn hosts(names: &[&str]) -> Vec<Address> {
        names.iter().map(|name| Address { host: (*name).to_owned(), port: 1 }).collect()
    }

    /// Connects to a host whose name says how it behaves.
    async fn connect(host: Option<&Address>) -> Result<String> {
        match host.map_or("socket", |host| &host.host) {
            "hung" => std::future::pending().await,
            "down" => Err(STORE.unavailable("down")),
            "full" => Err(STORE.unwritable("full")),
            "wrong" => Err(STORE.refused("wrong")),
            name => Ok(name.to_owned()),
        }
    }

    async fn connected(names: &[&str]) -> Result<String> {
        connect_to_first(STORE, &hosts(names), LIMIT, connect).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_does_not_reply_leaves_time_for_the_others() {
        let start = tokio::time::Instant::now();
        assert_eq!(connected(&["hung", "down", "up"]).await.unwrap(), "up");
        assert_eq!(start.elapsed(), LIMIT / 3);
        assert_eq!(connected(&[]).await.unwrap(), "socket");
    }

    #[tokio::test(start_paused = true)]
    async fn the_error_is_that_of_the_host_that_says_most() {
        for (names, host) in [
            (&["down", "hung"][..], "down:1"),
            (&["down", "wrong", "hung"], "wrong:1"),
            (&["down", "full"], "full:1"),
        ] {
            let error = connected(names).await.expect_err("no host is up");
            let text = format!("{error:?}");
            assert!(text.contains(host), "{names:?}: {text}");
        }
    }
}
