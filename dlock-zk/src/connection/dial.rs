//! Opening sessions, through the first of several servers that replies.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use dlock_core::{
    Error, Result,
    driver::{Connect, Moment, duration},
};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};
use zookeeper_client::{Acls, Client as ZkClient, CreateMode, Error as ZkError};

use super::runtime;
#[cfg(feature = "tls")]
use super::tls;
use crate::{
    config::{DEFAULT_SESSION, ZooKeeperConfig},
    error::{self, STORE},
    keys,
    session::Session,
};

/// Maximum difference between the requested and the granted session timeout. The protocol has whole
/// milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);

/// Opens the sessions of one client.
pub(super) struct Opener {
    pub(super) config: ZooKeeperConfig,
    pub(super) opened: Sessions,
}

/// Sessions that were opened and may still be in use, the oldest first.
pub(super) type Sessions = Arc<Mutex<Vec<Weak<Session>>>>;

/// Maximum number of parallel attempts to open a session, if the URL names several servers. Each
/// attempt begins with a random server, so an attempt to connect fails only if most servers are
/// silent.
const MAX_PARALLEL_DIALS: u32 = 6;

/// Divisor of the time limit of a call: interval between the starts of two attempts while no
/// attempt has failed.
const DIAL_STAGGER_DIVISOR: u32 = 8;

impl Opener {
    /// Opens a session through the first server that replies. Also returns whether the servers
    /// support container nodes.
    async fn open_first(&self) -> Result<(ZkClient, bool)> {
        let limit = self.config.timeout;
        timeout(limit, self.race())
            .await
            .unwrap_or_else(|_| Err(error::no_session_within(limit, self.config.tls.is_some())))
    }

    /// Races several attempts to open a session. The next attempt starts when another one fails,
    /// and at the latest after `timeout / DIAL_STAGGER_DIVISOR`.
    ///
    /// # Errors
    /// An error that is not transient at once. Otherwise the last error, when all attempts have
    /// failed.
    async fn race(&self) -> Result<(ZkClient, bool)> {
        let most = if self.config.hosts.len() > 1 { MAX_PARALLEL_DIALS } else { 1 };
        let (mut attempts, mut started) = (FuturesUnordered::from_iter([self.open()]), 1);
        loop {
            let failed = tokio::select! {
                Some(opened) = attempts.next() => match opened {
                    Ok(opened) => return Ok(opened),
                    Err(error) => Some(error),
                },
                () = sleep(self.config.timeout / DIAL_STAGGER_DIVISOR), if started < most => None,
            };
            match failed {
                Some(error) if !error.is_transient() || (attempts.is_empty() && started == most) => {
                    return Err(error);
                }
                _ if started < most => {
                    attempts.push(self.open());
                    started += 1;
                }
                _ => {}
            }
        }
    }

    /// Makes one attempt. Dropping the future ends the session that it may have opened.
    async fn open(&self) -> Result<(ZkClient, bool)> {
        let mut connector =
            ZkClient::connector().with_session_timeout(self.config.session.unwrap_or(DEFAULT_SESSION));
        if let Some(timeout) = self.config.connection_timeout() {
            connector = connector.with_connection_timeout(timeout);
        }
        if let Some(password) = &self.config.login.password {
            let user = self.config.login.user.as_deref().unwrap_or_default();
            let password = password.read().map_err(|error| STORE.as_transient(&error))?;
            connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.config.tls {
            let options =
                tls::options(tls, &self.config.hosts).map_err(|error| STORE.as_transient(&error))?;
            connector = connector.with_tls(options);
        }
        let cluster = self.config.cluster();
        let opened = runtime::run_io(async move {
            let client = connector.connect(&cluster).await?;
            let has_containers = has_containers(&client).await?;
            Ok((client, has_containers))
        });
        opened.await?.map_err(error::explain)
    }
}

impl Connect for Opener {
    type Connection = Arc<Session>;

    async fn connect(&self) -> Result<Arc<Session>> {
        let runtime = runtime::maintenance()?;
        let began = Moment::now();
        let (client, has_containers) = self.open_first().await?;
        check_timeout(&self.config, client.session_timeout())?;
        let session = Arc::new(Session::new(client, has_containers, began));
        let maintenance = session.maintain();
        #[expect(
            clippy::disallowed_methods,
            reason = "the session's one background task, which ends with the session"
        )]
        runtime.spawn(maintenance);
        let mut opened = self.opened.lock();
        opened.retain(|session| session.strong_count() > 0);
        // The servers grant a shorter timeout than before. They may have shortened an older session
        // when it reconnected, which `zookeeper-client` does not report.
        let may_be_shorter = |older: &Arc<Session>| older.timeout > session.timeout + ROUNDING;
        opened.iter().filter_map(Weak::upgrade).filter(may_be_shorter).for_each(|older| older.end());
        opened.push(Arc::downgrade(&session));
        drop(opened);
        Ok(session)
    }
}

/// Returns whether the servers support container nodes, which they delete when they are empty.
/// Sends a request that can create no node.
async fn has_containers(client: &ZkClient) -> std::result::Result<bool, ZkError> {
    let container = CreateMode::Container.with_acls(Acls::anyone_all());
    match client.create(keys::CONTAINER_PROBE_PATH, b"", &container).await {
        Err(ZkError::Unimplemented) => Ok(false),
        Err(error) if !error::is_confirmed(&error) => Err(error),
        _ => Ok(true),
    }
}

/// Checks that the server has granted the session timeout that the URL requests. A server may grant
/// another timeout.
///
/// # Errors
/// [`Error::InvalidConfig`] if it has granted another timeout.
fn check_timeout(config: &ZooKeeperConfig, granted: Duration) -> Result<()> {
    let Some(requested) = config.session.filter(|requested| requested.abs_diff(granted) > ROUNDING) else {
        return Ok(());
    };
    let [requested, granted] = [requested, granted].map(duration::text);
    let reason = format!(
        "the URL has `session={requested}`, but the server grants {granted}; write `session={granted}`, or change \
         `minSessionTimeout` or `maxSessionTimeout` of the servers"
    );
    Err(Error::InvalidConfig { reason })
}

#[cfg(test)]
mod tests {
    use dlock_core::ClaimId;

    use super::*;
    use crate::connection::Connection;

    #[tokio::test]
    async fn a_password_file_that_is_being_replaced_is_no_lasting_error_of_a_later_session() {
        let file = std::env::temp_dir().join(format!("dlock-zk-{}", ClaimId::random()));
        let url = format!("zk://app@127.0.0.1:1/x?timeout=100ms&password_file={}", file.display());
        std::fs::write(&file, "pw").expect("a folder for temporary files");
        let config = ZooKeeperConfig::from_url(&url.parse().expect("a URL")).expect("a configuration");
        std::fs::remove_file(&file).expect("the file exists");
        let first = Connection::open(&config).await.map(drop).expect_err("the password file is missing");
        assert!(!first.is_transient(), "{first:?}");
        let opener = Opener { config, opened: Sessions::default() };
        let later = opener.connect().await.map(drop).expect_err("the password file is missing");
        assert!(later.is_transient() && later.to_string().contains("zk"), "{later:?}");
    }

    #[tokio::test]
    async fn every_session_is_compared_with_the_url() {
        let config = ZooKeeperConfig::from_url(&"zk://h?session=20s".parse().expect("a URL"))
            .expect("a configuration");
        check_timeout(&config, Duration::from_millis(20_001))
            .expect("a difference of one millisecond is rounding");
        let refused =
            check_timeout(&config, Duration::from_secs(10)).expect_err("the granted timeout is half as long");
        assert!(!refused.is_transient() && refused.to_string().contains("session=10s"), "{refused}");
    }

    #[test]
    fn the_session_timeout_in_an_error_can_be_written_in_the_url() {
        let config = |session: &str| {
            ZooKeeperConfig::from_url(&format!("zk://h?session={session}").parse().expect("a URL"))
        };
        let refused = check_timeout(&config("20s").expect("a configuration"), Duration::from_millis(4500))
            .expect_err("the granted timeout is shorter")
            .to_string();
        let (_, advice) = refused.split_once("write `session=").expect("the error has advice");
        let (granted, _) = advice.split_once('`').expect("the advice ends");
        config(granted).expect("the advice is accepted");
    }
}
