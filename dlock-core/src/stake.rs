//! A stake: one guard's part in a hold.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::{Error, Kind, Result, hold::Hold};

/// Which of an owner's two counts a guard is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Exclusive,
    Shared,
}

impl Side {
    pub(crate) fn of(kind: Kind) -> Self {
        if kind == Kind::Read { Self::Shared } else { Self::Exclusive }
    }
}

/// One guard's part in a hold.
pub(crate) struct Stake {
    pub(crate) hold: Arc<Hold>,
    side: Side,
    departed: bool,
}

impl Stake {
    pub(crate) fn new(hold: Arc<Hold>, side: Side) -> Self {
        Self { hold, side, departed: false }
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
    pub(crate) async fn downgrade(mut self) -> Result<Self> {
        if self.hold.loss().is_some() {
            return Err(self.hold.lost_error());
        }
        if self.side == Side::Exclusive {
            if !self.hold.downgrades {
                let what = format!("turn the exclusive hold of lock `{}` into a read hold", self.hold.name);
                return Err(Error::Unsupported { store: self.hold.store, what });
            }
            self.side = Side::Shared;
            if let Some(answer) = self.hold.change_sides() {
                answer.await.map_err(|_| self.hold.lost_error())?;
            }
        }
        Ok(self)
    }
}

impl Drop for Stake {
    fn drop(&mut self) {
        if !self.departed {
            self.hold.depart(self.side, None);
        }
    }
}
