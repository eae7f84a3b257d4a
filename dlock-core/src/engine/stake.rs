//! A stake: one guard's part in a hold.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{Hold, Thread, hold::Side};
use crate::{
    contract::Request,
    model::{Error, Result},
};

/// One guard's part in a hold.
pub(crate) struct Stake {
    pub(crate) hold: Arc<Hold>,
    side: Side,
    departed: bool,
    /// The thread of the client, which must not end before the stake has departed: so this field is the last.
    thread: Option<Arc<Thread>>,
}

impl Stake {
    /// Makes the stake of a guard that the hold counts on this side already.
    pub(crate) fn new(hold: Arc<Hold>, side: Side) -> Self {
        Self { hold, side, departed: false, thread: None }
    }

    /// The same stake in the hands of a caller, on whose side the client's thread is kept alive.
    pub(crate) fn held_with(mut self, thread: Option<Arc<Thread>>) -> Self {
        self.thread = thread;
        self
    }

    /// See [`Guard::release`](crate::Guard::release).
    pub(crate) async fn release(mut self) -> Result<()> {
        if self.hold.loss().is_some() {
            return Err(self.hold.lost_error());
        }
        let (reply, answer) = oneshot::channel();
        self.departed = true;
        if !self.hold.depart(self.side, Some(reply)) {
            return Ok(());
        }
        answer.await.unwrap_or_else(|_| Err(self.hold.lost_error()))
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
        let Some(answer) = self.hold.change_sides() else { return Ok(self) };
        match answer.await {
            Ok(Ok(())) => Ok(self),
            Ok(Err(error)) => {
                self.hold.change_back();
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
        let Some(answer) = self.hold.ask_to_detach(lasting) else {
            let Hold { name, store, .. } = &*self.hold;
            let what = format!(
                "detach lock `{name}` while other guards of its owner share the hold; release them first"
            );
            let error = Error::Unsupported { store, what };
            return Err((self, error));
        };
        match answer.await {
            Ok(Ok(detached)) => {
                self.departed = true;
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

impl Drop for Stake {
    fn drop(&mut self) {
        if !self.departed {
            self.hold.depart(self.side, None);
        }
    }
}
