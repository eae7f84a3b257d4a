//! State that the claims of one client share in session mode.

use std::{sync::Arc, time::Duration};

use dlock_core::{ClaimId, LockName, Result, driver::WeakMap};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::session::{AdvisorySession, ConfiguredSession, SessionId};
use crate::{
    config::{KeyRule, PostgresConfig},
    connection::{Connection, Dial, Opened, drive, first_row, listen, text_column},
    error::{self, STORE},
    sql::{self, advisory},
};

/// Maximum number of idle sessions that are kept for the next claims.
const MAX_IDLE: usize = 16;

/// Interval between two queries whether a terminated session has ended.
const END_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The sessions of one client. Some are idle and wait for the next claim; others execute all calls
/// that belong to no single claim.
pub(super) struct AdvisoryClient {
    dial: Dial,
    /// Sessions that own no user's lock.
    pub(super) connection: Arc<Connection>,
    pub(super) key_rule: KeyRule,
    /// Names of claims by id, if they are too long for the server's list of sessions.
    pub(super) long_names: WeakMap<String, LockName>,
    idle: Mutex<Vec<Arc<AdvisorySession>>>,
}

impl AdvisoryClient {
    /// Opens a session, and checks that no other client uses it. The next claim uses the session.
    pub(super) async fn open(
        config: &PostgresConfig,
        key_rule: KeyRule,
        connection: Arc<Connection>,
    ) -> Result<Self> {
        let dial = Dial::new(config.clone())?;
        let limit = dial.timeout();
        // The check comes before the settings of a session. A pooler would lend the session to other
        // clients, with these settings.
        let mut opened = STORE.with_timeout(limit, dial.open()).await?;
        // An id consists of hexadecimal digits and hyphens.
        let channel = format!("dlock_{}", ClaimId::random().to_string().replace('-', ""));
        if !listen(&connection, &mut opened, &channel, limit, |_| {}).await? {
            return Err(STORE.refused(error::SHARED_SESSIONS));
        }
        let Opened { client, messages, .. } = &mut opened;
        let unlisten = format!("UNLISTEN {channel}; SELECT true");
        let unlistening = drive(messages, first_row(client, &unlisten), |_| {});
        STORE.with_timeout(limit, unlistening).await?;
        let session = STORE.with_timeout(limit, ConfiguredSession::new(opened)).await?;
        let idle = Mutex::new(vec![AdvisorySession::new(session)]);
        Ok(Self { dial, connection, key_rule, long_names: WeakMap::new(), idle })
    }

    /// Returns the time limit of a call.
    pub(super) fn timeout(&self) -> Duration {
        self.dial.timeout()
    }

    /// Takes an idle session, if there is one.
    pub(super) fn take_idle(&self) -> Option<Arc<AdvisorySession>> {
        let mut idle = self.idle.lock();
        // The server ends a session that was idle for the ttl of its last claim.
        std::iter::from_fn(|| idle.pop()).find(|session| !session.has_ended())
    }

    /// Opens a session.
    pub(super) async fn open_session(&self) -> Result<Arc<AdvisorySession>> {
        let configured = ConfiguredSession::new(self.dial.open().await?).await?;
        Ok(AdvisorySession::new(configured))
    }

    /// Keeps a session that owns no lock for the next claim.
    pub(super) fn keep_idle(&self, session: Arc<AdvisorySession>) {
        let mut idle = self.idle.lock();
        idle.retain(|session| !session.has_ended());
        if idle.len() < MAX_IDLE {
            idle.push(session);
        }
    }

    /// Ends the statement of a session. The statement may succeed nevertheless.
    pub(super) async fn cancel(&self, session: &SessionId, limit: Duration) -> Result<()> {
        self.sessions(advisory::CANCEL, session, limit).await.map(|_| ())
    }

    /// Returns whether a session is alive.
    pub(super) async fn is_alive(&self, session: &SessionId, limit: Duration) -> Result<bool> {
        Ok(self.sessions(advisory::IS_ALIVE, session, limit).await? > 0)
    }

    /// Ends a session, and waits until the session has released its locks. The last query of the wait may
    /// take `limit` too.
    pub(super) async fn terminate(&self, session: &SessionId, limit: Duration) -> Result<()> {
        let began = Instant::now();
        while self.sessions(advisory::TERMINATE, session, limit).await? > 0 {
            if began.elapsed() >= limit {
                return Err(STORE.timed_out(limit));
            }
            sleep(END_POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Executes a statement about a session. Returns 0 if the session has ended.
    async fn sessions(&self, statement: &str, session: &SessionId, limit: Duration) -> Result<u32> {
        let query = sql::fill(statement, &[("pid", &session.pid), ("started", &session.started)]);
        let rows = self.connection.rows(&query, limit).await?;
        let count = rows.first().and_then(|row| text_column(row, "sessions").parse().ok());
        count.ok_or_else(|| STORE.unexpected_reply("a query about a session"))
    }
}
