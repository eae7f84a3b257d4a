//! State that the named-lock claims of one client share.

use std::{sync::Arc, time::Duration};

use dlock_core::Result;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use tokio::time::sleep;

use crate::{
    config::{MysqlConfig, Names},
    connection::{Call, Connection, Dial},
    error, keys, session,
    sql::{NAMED_IS_ALIVE, NAMED_OWNS, expect, flag},
};

/// Maximum number of idle sessions that are kept for the next claims.
const MAX_IDLE: usize = 16;

/// Interval between two queries whether the server has released the locks of a killed session.
const FREED_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The sessions of one client. Some are idle and wait for the next claim; others execute all calls
/// that belong to no single claim.
pub(super) struct NamedClient {
    dial: Dial,
    /// Sessions that own no user's lock. They own the anchors of watches, and inspect the server.
    pub(super) connection: Arc<Connection>,
    pub(super) names: Names,
    /// The table that draws the tokens.
    pub(super) fence: String,
    idle: Mutex<Vec<(MySqlConnection, SessionId)>>,
}

/// Identifies a session of the server while the session executes a statement.
#[derive(Clone, Default)]
pub(super) struct SessionId {
    /// The server's connection id. After a restart of the server another session may have it.
    pub(super) connection_id: u64,
    /// A named lock that only this session owns, as an SQL literal.
    pub(super) tag: String,
}

/// A session after its statement, with the first row of the reply. The session is `None` if its
/// connection broke.
pub(super) type SessionReply = (Option<MySqlConnection>, Result<Option<MySqlRow>>);

/// A statement that a session executes. Dropping it ends the session.
pub(super) type PendingStatement = BoxFuture<'static, SessionReply>;

impl NamedClient {
    pub(super) fn new(config: MysqlConfig, names: Names, connection: Arc<Connection>) -> Result<Self> {
        let fence = config.tables().fence;
        Ok(Self { dial: Dial::new(config)?, connection, names, fence, idle: Mutex::default() })
    }

    /// Returns the time limit of a call.
    pub(super) fn timeout(&self) -> Duration {
        self.dial.timeout()
    }

    /// Takes an idle session, if there is one. The server may have ended it.
    pub(super) fn take_idle(&self) -> Option<(MySqlConnection, SessionId)> {
        self.idle.lock().pop()
    }

    /// Takes all idle sessions.
    pub(super) fn take_all_idle(&self) -> Vec<MySqlConnection> {
        self.idle.lock().drain(..).map(|(session, _)| session).collect()
    }

    /// Opens a session.
    pub(super) async fn open(&self) -> Result<(MySqlConnection, SessionId)> {
        let tag = keys::session_tag();
        let (session, connection_id) = self.dial.session(Some(&tag)).await?;
        Ok((session, SessionId { connection_id, tag }))
    }

    /// Keeps a session that owns no user's lock for the next claim.
    pub(super) fn keep_idle(&self, session: MySqlConnection, id: SessionId) {
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push((session, id));
        }
    }

    /// Ends a session, or its statement. Returns `false` if the session had ended before.
    pub(super) async fn kill(&self, kill: String) -> Result<bool> {
        match self.connection.call_without_tables(Call::new(kill, self.timeout())).await {
            Err(error) if error::code_of(&error) == Some(error::NO_SUCH_THREAD) => Ok(false),
            result => result.map(|_| true),
        }
    }

    /// Asks the server on another session whether a session is alive.
    pub(super) async fn is_alive(&self, session: &SessionId) -> Result<bool> {
        let query = NAMED_IS_ALIVE.with(&[("tag", &session.tag), ("id", &session.connection_id.to_string())]);
        let reply = self.connection.call(Call::new(query, self.timeout())).await?;
        flag(expect(reply.rows.first(), "a named lock")?, "is_alive")
    }

    /// Waits until a killed session no longer owns a lock. The server ends the session some time
    /// after the `KILL`, and sends no notification. `lock` is an SQL literal.
    pub(super) async fn until_freed(&self, lock: &str, connection_id: u64) -> Result<()> {
        let query = NAMED_OWNS.with(&[("lock", lock), ("id", &connection_id.to_string())]);
        loop {
            let reply = self.connection.call(Call::new(query.clone(), self.timeout())).await?;
            if !flag(expect(reply.rows.first(), "a named lock")?, "has_lock")? {
                return Ok(());
            }
            sleep(FREED_POLL_INTERVAL).await;
        }
    }
}

/// Executes a batch on a session that no other call uses. A session that replies with an error is
/// returned, because it may be alive.
pub(super) async fn execute(mut session: MySqlConnection, batch: String) -> SessionReply {
    match session::run(&mut session, &batch).await {
        Ok(rows) => (Some(session), Ok(rows.into_iter().next())),
        Err(error) => (error::code(&error).map(|_| session), Err(error::explain(error))),
    }
}
