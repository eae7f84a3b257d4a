//! The watch of a session that owns a lock. The watch reports the end of the session at once, and
//! not only at the next renewal.
//!
//! A watched session executes a statement that waits for another named lock, the anchor, which the
//! client owns on one of its shared sessions. If the watched session ends, the client is notified
//! by the end of the connection. If the client has a request for the session, it first releases the
//! anchor, so that the waiting statement returns. If the client dies, the server releases its
//! anchors. The waiting statements then return, and their sessions end.

use std::{sync::Arc, time::Duration};

use dlock_core::{ClaimId, Token, driver::Moment};
use futures_util::future::BoxFuture;
use sqlx::mysql::MySqlConnection;
use tokio::time::{Instant, sleep_until};

use super::client::{NamedClient, PendingStatement, execute};
use crate::{
    connection::Call,
    keys,
    session::Session,
    sql::{NAMED_RELEASE_ANCHOR, NAMED_TAKE_ANCHOR, flag},
};

/// Time before a new hold is watched. A watch costs two calls at its beginning and one at its end,
/// which a short hold should not pay.
const UNWATCHED: Duration = Duration::from_millis(20);

/// A hold, and the watch of its session.
pub(super) struct Hold {
    pub(super) token: Option<Token>,
    granted_at: Instant,
    anchor: Anchor,
}

enum Anchor {
    None,
    Taking(BoxFuture<'static, Option<Arc<Session>>>),
    Taken(Arc<Session>),
    /// The server did not grant the anchor. The next renewal tries again.
    Refused,
}

impl Hold {
    pub(super) fn new(token: Option<Token>) -> Self {
        Self { token, granted_at: Instant::now(), anchor: Anchor::None }
    }

    /// Waits until the client owns the anchor, so that the session can be watched.
    ///
    /// # Cancel safety
    /// Safe. The next call continues where this one was dropped.
    pub(super) async fn until_watchable(&mut self, client: &Arc<NamedClient>, id: ClaimId) {
        loop {
            match &mut self.anchor {
                Anchor::Taken(session) if !session.is_ending() => return,
                Anchor::None | Anchor::Taken(_) => {
                    sleep_until(self.granted_at + UNWATCHED).await;
                    self.anchor = Anchor::Taking(Box::pin(take_anchor(Arc::clone(client), id)));
                }
                Anchor::Taking(_) => self.until_anchored().await,
                Anchor::Refused => std::future::pending().await,
            }
        }
    }

    /// Waits for the reply to a request for the anchor. Never returns if there is no such request.
    ///
    /// # Cancel safety
    /// Safe. The next call continues where this one was dropped.
    pub(super) async fn until_anchored(&mut self) {
        match &mut self.anchor {
            Anchor::Taking(taking) => self.anchor = taking.await.map_or(Anchor::Refused, Anchor::Taken),
            _ => std::future::pending().await,
        }
    }

    /// Records that the server has confirmed the hold. An anchor that was refused is requested
    /// again.
    pub(super) fn record_confirmation(&mut self) {
        if matches!(self.anchor, Anchor::Refused) {
            self.anchor = Anchor::None;
        }
    }

    /// Records that the anchor was released, or that its session has ended.
    pub(super) fn clear_anchor(&mut self) {
        self.anchor = Anchor::None;
    }

    /// Releases the anchor, if the client owns it, so that the watch replies. Returns `true` if the
    /// watch waited until the release.
    ///
    /// # Cancel safety
    /// Safe. The next call continues where this one was dropped.
    pub(super) async fn release_anchor(&mut self, client: &NamedClient, id: ClaimId) -> bool {
        if let Anchor::Taking(taking) = &mut self.anchor {
            self.anchor = taking.await.map_or(Anchor::None, Anchor::Taken);
        }
        let Anchor::Taken(session) = &self.anchor else { return false };
        let batch = NAMED_RELEASE_ANCHOR.with(&[("anchor", &keys::bell_literal(id))]);
        let mut call = Call::new(batch, client.timeout());
        call.session = Some(session);
        let Ok(reply) = client.connection.call(call).await else {
            self.anchor.end_session();
            return false;
        };
        self.anchor = Anchor::None;
        reply.rows.first().is_some_and(|row| flag(row, "is_released").unwrap_or(false))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.anchor.end_session();
    }
}

impl Anchor {
    /// Ends the session that owns the anchor, if the anchor was not released. Otherwise the anchor
    /// would stay taken.
    fn end_session(&mut self) {
        if let Self::Taken(session) = std::mem::replace(self, Self::None) {
            session.end();
        }
    }
}

async fn take_anchor(client: Arc<NamedClient>, id: ClaimId) -> Option<Arc<Session>> {
    let batch = NAMED_TAKE_ANCHOR.with(&[("anchor", &keys::bell_literal(id))]);
    let reply = client.connection.call(Call::new(batch, client.timeout())).await.ok()?;
    let is_taken = reply.rows.first().is_some_and(|row| flag(row, "is_taken").unwrap_or(false));
    is_taken.then_some(reply.session)
}

/// A statement in flight that checks whether its session owns the lock: a watch or a renewal.
pub(super) struct Check {
    pub(super) statement: PendingStatement,
    pub(super) sent: Moment,
}

impl Check {
    pub(super) fn new(session: MySqlConnection, batch: String) -> Self {
        Self { sent: Moment::now(), statement: Box::pin(execute(session, batch)) }
    }
}

/// Returns the time after which a watch ends by itself, so that the server does not count the
/// session as silent. In whole seconds, because MySQL counts no others.
pub(super) fn watch_seconds(ttl: Duration) -> u32 {
    u32::try_from(ttl.as_secs() / 4).unwrap_or(u32::MAX).clamp(1, 3600)
}
