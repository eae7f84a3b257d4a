//! The sessions of one client, and the choice of a session for each claim.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use dlock_core::{
    ClaimId, Result,
    driver::{Connect as _, Link},
};
use futures_util::future::join_all;

use self::dial::{Opener, Sessions};
use crate::{
    config::ZooKeeperConfig,
    error::{self, STORE},
    session::Session,
};

mod dial;
mod runtime;
#[cfg(feature = "tls")]
mod tls;

/// The sessions of one client.
///
/// All claims share a session until it has no room for another path. Claims that start when the
/// session is full, over or without a connection share another one. The first session may
/// reconnect, and keeps its claims. A session is opened only if no session with a connection has
/// room, because the servers limit the connections of an address.
pub(crate) struct Connection {
    link: Link<Opener>,
    opened: Sessions,
}

impl Connection {
    /// Opens the first session.
    ///
    /// # Errors
    /// [`InvalidConfig`](dlock_core::Error::InvalidConfig) for a chroot that does not exist, or a
    /// session timeout that the server does not grant.
    pub(crate) async fn open(config: &ZooKeeperConfig) -> Result<(Self, Arc<Session>)> {
        // Files that cannot be read are a configuration error only for the first session. Later
        // they may be in the middle of a replacement.
        config.login.password.as_ref().map(|password| password.read()).transpose()?;
        #[cfg(feature = "tls")]
        config.tls.as_ref().map(|tls| tls::options(tls, &config.hosts)).transpose()?;
        let opened = Sessions::default();
        let opener = Opener { config: config.clone(), opened: Arc::clone(&opened) };
        let session = opener.connect().await?;
        STORE.with_timeout(config.timeout, session.check_chroot()).await?;
        let link = Link::with_connection(STORE, config.timeout, opener, Arc::clone(&session));
        link.note_reply();
        Ok((Self { link, opened }, session))
    }

    /// Returns the session with a record of the claim, unless that session is over.
    pub(crate) fn session_of(&self, id: ClaimId) -> Option<Arc<Session>> {
        self.opened().into_iter().find(|session| session.record(id).is_some() && !session.end_if_silent())
    }

    /// Returns a session for a new claim, with room for its node, whose path has at most `bytes`
    /// bytes. `limit` is the time limit of the caller's whole call.
    pub(crate) async fn session_for(
        &self,
        id: ClaimId,
        bytes: usize,
        limit: Duration,
    ) -> Result<Arc<Session>> {
        loop {
            // Before the link is used. It may have no session because the servers refuse another
            // one.
            let reserve = |session: &Arc<Session>| session.paths.reserve(id, bytes);
            if let Some(session) = self.healthy().find(|session| !session.is_avoided() && reserve(session)) {
                return Ok(session);
            }
            let session = match self.linked(limit).await {
                Ok(session) => session,
                // A session that is avoided, because it had no connection, is better than none.
                Err(error) => return self.healthy().find(reserve).ok_or(error),
            };
            if session.paths.reserve(id, bytes) {
                return Ok(session);
            }
            // Only the first of many callers gives up the full session. The other callers find the
            // new session.
            let live = self.link.live().await?;
            if Arc::ptr_eq(&live.connection, &session) {
                self.link.note_reply();
                self.link.give_up(&live, error::session_is_over());
            }
        }
    }

    /// Returns a session for requests that leave nothing at the servers. `limit` is the time limit
    /// of the caller's whole call.
    pub(crate) async fn session(&self, limit: Duration) -> Result<Arc<Session>> {
        match self.healthy().next() {
            Some(session) => Ok(session),
            None => self.linked(limit).await,
        }
    }

    /// Returns the link's session, and opens another one if it is over or has no connection.
    async fn linked(&self, limit: Duration) -> Result<Arc<Session>> {
        let live = self.link.live().await?;
        if !live.connection.end_if_silent() && live.connection.is_connected(limit).await {
            return Ok(live.connection);
        }
        live.connection.avoid();
        self.link.give_up(&live, error::session_is_over());
        let live = self.link.live().await?;
        self.link.note_reply();
        Ok(live.connection)
    }

    /// Returns the sessions on whose connections heartbeats are confirmed, the newest first.
    fn healthy(&self) -> impl Iterator<Item = Arc<Session>> {
        self.opened().into_iter().rev().filter(|session| session.is_healthy())
    }

    /// Returns the sessions that are still in use, the oldest first.
    fn opened(&self) -> Vec<Arc<Session>> {
        self.opened.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Ends all sessions, and waits for the servers' confirmations, for a bounded time.
    pub(crate) async fn close(&self) {
        let opened = std::mem::take(&mut *self.opened.lock());
        join_all(opened.iter().filter_map(Weak::upgrade).map(|session| async move { session.close().await }))
            .await;
    }
}
