//! A reference to a hold: the part of one guard in it.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{Hold, Thread, hold::Side};
use crate::{
    contract::Request,
    model::{Error, Result},
};

/// A guard's reference to its hold. The hold counts these references, and dropping the last one
/// releases the lock.
pub(crate) struct HoldRef {
    pub(crate) hold: Arc<Hold>,
    side: Side,
    /// Whether the hold no longer counts this reference.
    has_left: bool,
    /// Thread of the client, if it has one. Declared last so that it drops last: the thread must
    /// run until the hold no longer counts this reference.
    thread: Option<Arc<Thread>>,
}

impl HoldRef {
    /// Creates the reference of a guard that the hold already counts on this side.
    pub(crate) fn new(hold: Arc<Hold>, side: Side) -> Self {
        Self { hold, side, has_left: false, thread: None }
    }

    /// Keeps the client's thread alive until this reference is dropped.
    pub(crate) fn with_thread(mut self, thread: Option<Arc<Thread>>) -> Self {
        self.thread = thread;
        self
    }

    /// See [`Guard::release`](crate::Guard::release).
    pub(crate) async fn release(mut self) -> Result<()> {
        if self.hold.loss().is_some() {
            return Err(self.hold.lost_error());
        }
        let (reply, result) = oneshot::channel();
        self.has_left = true;
        if !self.hold.remove_guard(self.side, Some(reply)) {
            return Ok(());
        }
        result.await.unwrap_or_else(|_| Err(self.hold.lost_error()))
    }

    /// See [`Guard::downgrade`](crate::Guard::downgrade).
    pub(crate) async fn downgrade(mut self) -> Result<Self, (Self, Error)> {
        if self.hold.loss().is_some() {
            let lost = self.hold.lost_error();
            return Err((self, lost));
        }
        if self.side == Side::Shared {
            return Ok(self);
        }
        if !self.hold.is_downgradable() {
            let Hold { name, kind, store, .. } = &*self.hold;
            let what = format!("turn lock `{name}`, which is held as {kind}, into a read hold");
            let error = Error::Unsupported { store, what };
            return Err((self, error));
        }
        self.side = Side::Shared;
        let Some(result) = self.hold.begin_downgrade() else { return Ok(self) };
        match result.await {
            Ok(Ok(())) => Ok(self),
            Ok(Err(error)) => {
                self.hold.undo_downgrade();
                self.side = Side::Exclusive;
                Err((self, error))
            }
            Err(_) => {
                let lost = self.hold.lost_error();
                Err((self, lost))
            }
        }
    }

    /// See [`Guard::detach`](crate::Guard::detach).
    pub(crate) async fn detach(mut self, lasting: Duration) -> Result<Request, (Self, Error)> {
        if self.hold.loss().is_some() {
            let lost = self.hold.lost_error();
            return Err((self, lost));
        }
        let Some(result) = self.hold.request_detach(lasting) else {
            let Hold { name, store, .. } = &*self.hold;
            let what = format!(
                "detach lock `{name}` while other guards of its owner share the hold; release them first"
            );
            let error = Error::Unsupported { store, what };
            return Err((self, error));
        };
        match result.await {
            Ok(Ok(detached)) => {
                self.has_left = true;
                Ok(detached.take())
            }
            Ok(Err(error)) => Err((self, error)),
            Err(_) => {
                let lost = self.hold.lost_error();
                Err((self, lost))
            }
        }
    }
}

impl Drop for HoldRef {
    fn drop(&mut self) {
        if !self.has_left {
            self.hold.remove_guard(self.side, None);
        }
    }
}
