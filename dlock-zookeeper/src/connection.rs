//! Opening sessions. The session itself is in `connection/session.rs`, the thread of all sessions in `connection/thread.rs`, the
//! task that keeps a session alive in `connection/pump.rs`, and how long it may be relied on in `connection/answers.rs`.

mod answers;
mod pump;
mod session;
mod thread;
#[cfg(feature = "tls")]
mod tls;

use std::{
    io,
    sync::{Arc, LazyLock, Mutex, Weak},
    time::Duration,
};

use dlock_core::{
    ClaimId, Error, Result,
    driver::{Connect, Link, Moment},
};
use futures_util::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use tokio::{
    runtime::{Builder, Runtime},
    time::{sleep, timeout},
};
use zookeeper_client::Client as ZkClient;

use crate::{
    config::{SESSION, ZooKeeperConfig},
    error::{self, STORE},
};

use session::lock;
pub(crate) use session::{Record, Session, WatchedPath};

/// The pumps of all sessions run here, on one thread of their own. So they go on when the runtime that opened a session ends, or
/// is blocked.
static PUMPS: LazyLock<io::Result<Runtime>> = LazyLock::new(|| {
    Builder::new_multi_thread().worker_threads(1).thread_name("dlock-zookeeper-pump").enable_time().build()
});

/// How much longer or shorter a session's timeout may be than the one asked for: it travels in whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);

/// How a client reaches its servers. All claims share a session until it has no room for another path. Those that come when it
/// is full or over, or has had no connection for a while, share another. The first may come back: claims that it has stay with
/// it.
pub(crate) struct Connection {
    link: Link<Opener>,
    opened: Sessions,
}

struct Opener {
    config: ZooKeeperConfig,
    opened: Sessions,
}

/// The sessions that were opened and that somebody still has.
type Sessions = Arc<Mutex<Vec<Weak<Session>>>>;

impl Connection {
    /// Opens the first session.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a chroot that does not exist, or a session timeout that the server does not grant.
    pub(crate) async fn open(config: &ZooKeeperConfig) -> Result<(Self, Arc<Session>)> {
        // Later, a password file that cannot be read may be one that somebody is replacing.
        config.login.password.as_ref().map(|password| password.read()).transpose()?;
        #[cfg(feature = "tls")]
        config.tls.as_ref().map(|tls| tls::options(tls, &config.hosts)).transpose()?;
        let opened = Sessions::default();
        let opener = Opener { config: config.clone(), opened: Arc::clone(&opened) };
        let session = opener.connect().await?;
        STORE.in_time(config.timeout, session.check_chroot()).await?;
        let link = Link::open(STORE, config.timeout, opener, Arc::clone(&session));
        link.note_answer();
        Ok((Self { link, opened }, session))
    }

    /// The session that has something of this claim in the store, if that session is not over.
    pub(crate) fn session_of(&self, id: ClaimId) -> Option<Arc<Session>> {
        self.opened().into_iter().find(|session| session.record(id).is_some() && !session.end_if_silent())
    }

    /// A session for a new claim whose node's path has so many bytes, with room for it. The caller has this much time for its
    /// whole call.
    pub(crate) async fn session_for(
        &self,
        id: ClaimId,
        bytes: usize,
        limit: Duration,
    ) -> Result<Arc<Session>> {
        loop {
            let session = self.session(limit).await?;
            if session.paths.reserve(id, bytes) {
                return Ok(session);
            }
            let mut others = self.opened().into_iter().filter(|other| other.is_well());
            if let Some(other) = others.find(|other| other.paths.reserve(id, bytes)) {
                return Ok(other);
            }
            // Only the first of many callers gives up the full session. The others find the new one.
            let live = self.link.live().await?;
            if Arc::ptr_eq(&live.connection, &session) {
                self.link.note_answer();
                self.link.give_up(&live, error::session_is_over());
            }
        }
    }

    /// A session for requests that leave nothing at the servers. The caller has this much time for its whole call.
    pub(crate) async fn session(&self, limit: Duration) -> Result<Arc<Session>> {
        let live = self.link.live().await?;
        if !live.connection.end_if_silent() && live.connection.is_connected(limit).await {
            return Ok(live.connection);
        }
        self.link.give_up(&live, error::session_is_over());
        let live = self.link.live().await?;
        self.link.note_answer();
        Ok(live.connection)
    }

    /// The sessions that somebody still has, the oldest first.
    fn opened(&self) -> Vec<Arc<Session>> {
        lock(&self.opened).iter().filter_map(Weak::upgrade).collect()
    }

    /// Ends all sessions, and waits until the server has confirmed that.
    pub(crate) async fn close(&self) {
        let opened = std::mem::take(&mut *lock(&self.opened));
        join_all(opened.iter().filter_map(Weak::upgrade).map(|session| async move { session.close().await }))
            .await;
    }
}

/// How many connections an opening session tries at once, if it has several servers, and when it tries the next, in parts of
/// the time of a call. Each begins with another server at random, so it takes many silent ones to keep a client out.
const AT_ONCE: u32 = 6;
const STEP: u32 = 8;

impl Opener {
    /// Opens a session through the server that answers first, and tells whether the servers have containers.
    async fn open_first(&self) -> Result<(ZkClient, bool)> {
        let limit = self.config.timeout;
        timeout(limit, self.race()).await.unwrap_or_else(|_| Err(self.no_session_within(limit)))
    }

    /// Races several attempts: the next starts when one fails, and at the latest after a `STEP`th of the time.
    async fn race(&self) -> Result<(ZkClient, bool)> {
        let most = if self.config.hosts.len() > 1 { AT_ONCE } else { 1 };
        let (mut opening, mut started) = (FuturesUnordered::from_iter([self.open()]), 1);
        loop {
            let failed = tokio::select! {
                Some(opened) = opening.next() => match opened {
                    Ok(opened) => return Ok(opened),
                    Err(error) => Some(error),
                },
                () = sleep(self.config.timeout / STEP), if started < most => None,
            };
            match failed {
                Some(error) if !error.is_transient() || (opening.is_empty() && started == most) => {
                    return Err(error);
                }
                _ if started < most => {
                    opening.push(self.open());
                    started += 1;
                }
                _ => {}
            }
        }
    }

    fn no_session_within(&self, limit: Duration) -> Error {
        match self.config.tls {
            None => STORE.late(limit),
            Some(_) => STORE.unavailable(format!(
                "no session within {limit:?}; it is the same where the client or a server refuses the other's certificate"
            )),
        }
    }

    /// Dropped unfinished, which ends the session, if nobody waits for it any more.
    async fn open(&self) -> Result<(ZkClient, bool)> {
        let mut connector =
            ZkClient::connector().with_session_timeout(self.config.session.unwrap_or(SESSION));
        if let Some(timeout) = self.config.connection_timeout() {
            connector = connector.with_connection_timeout(timeout);
        }
        if let Some(password) = &self.config.login.password {
            let user = self.config.login.user.as_deref().unwrap_or_default();
            let password = password.read().map_err(|error| STORE.not_now(&error))?;
            connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.config.tls {
            let options = tls::options(tls, &self.config.hosts).map_err(|error| STORE.not_now(&error))?;
            connector = connector.with_tls(options);
        }
        let cluster = self.config.cluster();
        let opened = thread::run(async move {
            let client = connector.connect(&cluster).await?;
            let has_containers = session::has_containers(&client).await?;
            Ok((client, has_containers))
        });
        opened.await?.map_err(error::explain)
    }
}

impl Connect for Opener {
    type Connection = Arc<Session>;

    async fn connect(&self) -> Result<Arc<Session>> {
        let runtime = PUMPS.as_ref().map_err(|error| STORE.unavailable(error.to_string()))?;
        let began = Moment::now();
        let (client, has_containers) = self.open_first().await?;
        check_timeout(&self.config, client.session_timeout())?;
        let session = Arc::new(Session::new(client, has_containers, began));
        let pump = pump::run(Arc::downgrade(&session), session.states(), session.knock());
        #[expect(clippy::disallowed_methods, reason = "the session's one pump; it ends with the session")]
        runtime.handle().spawn(pump);
        let mut opened = lock(&self.opened);
        opened.retain(|session| session.strong_count() > 0);
        // The servers grant less than before. A session that has reconnected to them may be shorter than the client knows.
        let is_suspect = |older: &Arc<Session>| older.timeout > session.timeout + ROUNDING;
        opened.iter().filter_map(Weak::upgrade).filter(is_suspect).for_each(|older| older.end());
        opened.push(Arc::downgrade(&session));
        drop(opened);
        Ok(session)
    }
}

/// A server may grant another timeout than the one asked for. One that stands in the URL must not be changed silently.
fn check_timeout(config: &ZooKeeperConfig, granted: Duration) -> Result<()> {
    let Some(asked) = config.session.filter(|asked| asked.abs_diff(granted) > ROUNDING) else {
        return Ok(());
    };
    let reason = format!(
        "`session={asked:?}` is not what the server grants: it grants {granted:?}, and its `minSessionTimeout` and \
         `maxSessionTimeout` say what it can; write `session={granted:?}`"
    );
    Err(Error::InvalidConfig { reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_file_that_is_being_replaced_is_no_lasting_error_of_a_later_session() {
        let file = std::env::temp_dir().join(format!("dlock-zookeeper-{}", ClaimId::random()));
        let url = format!("zk://app@127.0.0.1:1/x?timeout=100ms&password_file={}", file.display());
        std::fs::write(&file, "pw").expect("a folder for temporary files");
        let config = ZooKeeperConfig::from_url(&url.parse().expect("a URL")).expect("a configuration");
        std::fs::remove_file(&file).expect("it is there");
        let first = Connection::open(&config).await.map(drop).expect_err("no password");
        assert!(!first.is_transient(), "{first:?}");
        let opener = Opener { config, opened: Sessions::default() };
        let later = opener.connect().await.map(drop).expect_err("no password");
        assert!(later.is_transient() && later.to_string().contains("zk"), "{later:?}");
    }

    #[tokio::test]
    async fn every_session_is_compared_with_the_url() {
        let config = ZooKeeperConfig::from_url(&"zk://h?session=20s".parse().expect("a URL")).expect("legal");
        check_timeout(&config, Duration::from_millis(20_001)).expect("whole milliseconds");
        let refused = check_timeout(&config, Duration::from_secs(10)).expect_err("half as long");
        assert!(!refused.is_transient() && refused.to_string().contains("session=10s"), "{refused}");
    }
}
