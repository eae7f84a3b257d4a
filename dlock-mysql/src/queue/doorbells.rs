//! Doorbells of other clients, and the sessions that wait for them. These sessions are few. A
//! waiter that gets none polls.

use std::sync::Arc;

use dlock_core::Result;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use sqlx::{AssertSqlSafe, mysql::MySqlConnection};
use tokio::sync::Semaphore;

use crate::{connection::Dial, error, sql::AWAIT_BELL};

/// The sessions of one client that wait for doorbells.
pub(super) struct Doorbells {
    shared: Arc<Shared>,
    are_configured: bool,
}

struct Shared {
    dial: Dial,
    /// Sessions that wait for no doorbell.
    idle: Mutex<Vec<MySqlConnection>>,
    /// A permit for each session that may be opened. Closed while doorbells are not in use.
    free: Arc<Semaphore>,
}

impl Doorbells {
    /// Creates doorbells for which at most `sessions` sessions wait. With 0 they are not in use.
    pub(super) fn new(dial: Dial, sessions: usize) -> Self {
        let shared = Shared { dial, idle: Mutex::default(), free: Arc::new(Semaphore::new(sessions)) };
        let doorbells = Self { shared: Arc::new(shared), are_configured: sessions > 0 };
        if !doorbells.are_configured {
            doorbells.disable();
        }
        doorbells
    }

    /// Returns whether claims of this client may have doorbells, also if
    /// [`disable`](Self::disable) was called.
    pub(super) fn are_configured(&self) -> bool {
        self.are_configured
    }

    /// Returns whether claims take doorbells and waiters wait for them.
    pub(super) fn are_enabled(&self) -> bool {
        !self.shared.free.is_closed()
    }

    /// Returns whether one more waiter can wait for a doorbell.
    pub(super) fn has_free_session(&self) -> bool {
        self.are_enabled() && self.shared.free.available_permits() > 0
    }

    /// Makes claims take no further doorbells, and waiters wait for no further ones. Waits in
    /// progress continue.
    pub(super) fn disable(&self) {
        self.shared.free.close();
    }

    /// Takes all sessions that wait for no doorbell.
    pub(super) fn take_all_idle(&self) -> Vec<MySqlConnection> {
        std::mem::take(&mut *self.shared.idle.lock())
    }

    /// Returns a wait for a doorbell, or `None` if no session is free for it. The wait ends when
    /// the doorbell rings, and when its owner disconnects. Dropping the wait ends its session, and
    /// the server gives up the statement within a second.
    pub(super) fn wait_for(&self, bell: &str) -> Option<BoxFuture<'static, ()>> {
        let permit = Arc::clone(&self.shared.free).try_acquire_owned().ok()?;
        let (shared, batch) = (Arc::clone(&self.shared), AWAIT_BELL.with(&[("bell", bell)]));
        Some(Box::pin(async move {
            // A failure ends the wait like a ring. The waiter then queries the store, and polls.
            shared.wait(&batch).await.ok();
            drop(permit);
        }))
    }
}

impl Shared {
    /// Waits on an idle session. Opens a new session if no session is idle, or if the server has
    /// ended the idle one or has become read-only.
    async fn wait(&self, batch: &str) -> Result<()> {
        let idle = self.idle.lock().pop();
        if let Some(session) = idle {
            match self.wait_on(session, batch).await {
                Err(error) if error::ends_session(&error) => {}
                result => return result.map_err(error::explain),
            }
        }
        let (session, _) = self.dial.session(None).await?;
        self.wait_on(session, batch).await.map_err(error::explain)
    }

    async fn wait_on(&self, mut session: MySqlConnection, batch: &str) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(batch)).execute(&mut session).await?;
        self.idle.lock().push(session);
        Ok(())
    }
}
