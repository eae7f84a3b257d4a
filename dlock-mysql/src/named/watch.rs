//! A session that has a lock, and is watched: its end is heard of at once, not only at the next renewal.
//!
//! The session is at a statement that waits: for a named lock that the client keeps with another session, the anchor. When the
//! session ends, the client reads the end of its connection. When the client wants an answer, it releases the anchor. When the
//! client dies, its anchors go with it, the statements end, and so do their sessions.

use std::{sync::Arc, time::Duration};

use dlock_core::{ClaimId, Token, driver::Moment};
use futures_util::future::BoxFuture;
use sqlx::mysql::MySqlConnection;
use tokio::time::{Instant, sleep_until};

use super::{Calling, Named, call, number};
use crate::{
    connection::{Call, Line},
    keys,
    sql::{NAMED_ASK, NAMED_KEEP},
};

/// How long a hold is not watched at first. A watch costs two calls at its beginning and another at its end, which a short hold
/// shall not pay.
const SETTLE: Duration = Duration::from_millis(20);

/// A hold, and how its session is watched.
pub(super) struct Held {
    pub(super) token: Option<Token>,
    /// When the last statement was sent that the server has answered. It counts the session's silence from then on at the earliest.
    pub(super) heard: Moment,
    begun: Instant,
    anchor: Anchor,
}

enum Anchor {
    None,
    Taking(BoxFuture<'static, Option<Arc<Line>>>),
    Taken(Arc<Line>),
    /// It was not to be had. The next renewal tries again.
    Refused,
}

impl Held {
    pub(super) fn new(token: Option<Token>, heard: Moment) -> Self {
        Self { token, heard, begun: Instant::now(), anchor: Anchor::None }
    }

    /// Waits until the session can be watched, which then has an anchor.
    ///
    /// # Cancel safety
    /// Goes on where it was.
    pub(super) async fn settle(&mut self, named: &Arc<Named>, id: ClaimId) {
        loop {
            match &mut self.anchor {
                Anchor::Taken(line) if !line.is_over() => return,
                Anchor::None | Anchor::Taken(_) => {
                    sleep_until(self.begun + SETTLE).await;
                    self.anchor = Anchor::Taking(Box::pin(take(Arc::clone(named), id)));
                }
                Anchor::Taking(_) => self.anchored().await,
                Anchor::Refused => std::future::pending().await,
            }
        }
    }

    /// Waits until an anchor that is being taken is taken, or refused. For ever if none is.
    ///
    /// # Cancel safety
    /// Goes on where it was.
    pub(super) async fn anchored(&mut self) {
        match &mut self.anchor {
            Anchor::Taking(taking) => self.anchor = taking.await.map_or(Anchor::Refused, Anchor::Taken),
            _ => std::future::pending().await,
        }
    }

    /// Notes that the server has answered.
    pub(super) fn hear(&mut self, sent: Moment) {
        self.heard = sent;
        if matches!(self.anchor, Anchor::Refused) {
            self.anchor = Anchor::None;
        }
    }

    /// The anchor was released, or is gone with its session.
    pub(super) fn lose_anchor(&mut self) {
        self.anchor = Anchor::None;
    }

    /// Releases the anchor, if there is one: a watch then answers. `true` if the watch did wait until now.
    ///
    /// # Cancel safety
    /// Goes on where it was.
    pub(super) async fn ask(&mut self, named: &Named, id: ClaimId) -> bool {
        if let Anchor::Taking(taking) = &mut self.anchor {
            self.anchor = taking.await.map_or(Anchor::None, Anchor::Taken);
        }
        let Anchor::Taken(line) = &self.anchor else { return false };
        let mut call = Call::new(NAMED_ASK.with(&[("watch", &keys::bell(id))]), named.limit());
        call.home = Some(line);
        let Ok(answer) = named.connection.call(call).await else {
            self.anchor.end();
            return false;
        };
        self.anchor = Anchor::None;
        number::<i64>(answer.rows.first(), 0).is_ok_and(|released| released == 1)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.anchor.end();
    }
}

impl Anchor {
    /// Ends the session that has the anchor, if it was not released: nothing else would free it.
    fn end(&mut self) {
        if let Self::Taken(line) = std::mem::replace(self, Self::None) {
            line.end();
        }
    }
}

async fn take(named: Arc<Named>, id: ClaimId) -> Option<Arc<Line>> {
    let call = Call::new(NAMED_KEEP.with(&[("watch", &keys::bell(id))]), named.limit());
    let answer = named.connection.call(call).await.ok()?;
    let is_taken = number::<i64>(answer.rows.first(), 0).is_ok_and(|taken| taken == 1);
    is_taken.then_some(answer.line)
}

/// A call under way of a session that has the lock.
pub(super) struct Asked {
    pub(super) calling: Calling,
    pub(super) sent: Moment,
}

impl Asked {
    pub(super) fn new(session: MySqlConnection, batch: String) -> Self {
        Self { sent: Moment::now(), calling: Box::pin(call(session, batch)) }
    }
}

/// How long a watch goes on until the session gives a sign of life by itself. In whole seconds, since MySQL counts no others.
pub(super) fn rhythm(ttl: Duration) -> u32 {
    u32::try_from(ttl.as_secs() / 4).unwrap_or(u32::MAX).clamp(1, 3600)
}
