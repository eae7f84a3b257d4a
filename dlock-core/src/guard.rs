//! The guard: what a user holds.

use std::{fmt, sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    Claim, Error, Grant, LockName, LockOptions, Locks, LostReason, Request, Result, Token,
    clock::Moment,
    hold::{Hold, Side},
    keeper::Keeper,
};

/// A held lock. Dropping it releases the lock in the background; [`release`](Self::release) waits for the answer.
///
/// The keeper renews it for as long as it lives, and says so at once when that no longer works:
/// [`is_lost`](Self::is_lost) compares clocks itself, so it is right even when the runtime was stalled.
/// A guard that is leaked (`mem::forget`) keeps its lock for as long as the runtime lives.
#[must_use = "dropping a guard releases its lock; bind it to a name, not to `_`"]
pub struct Guard {
    hold: Arc<Hold>,
    side: Side,
    departed: bool,
}

impl Guard {
    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.hold.name
    }

    /// The fencing token of this hold: greater than every token granted before for this name. `None` where the
    /// store has none. Re-entering does not change it.
    pub fn token(&self) -> Option<Token> {
        self.hold.token
    }

    /// How many guards this hold has: above 1 only where an [`Owner`](crate::Owner) re-entered.
    pub fn hold_count(&self) -> usize {
        self.hold.count()
    }

    /// Whether the lock is no longer known to be ours. Compares the clocks itself: right at once after a pause,
    /// before any other task ran.
    pub fn is_lost(&self) -> bool {
        self.hold.loss().is_some()
    }

    /// How long the lock is ours without another renewal; zero if it is lost.
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// Ends when the lock is lost, and says how. Never ends because of a normal release.
    ///
    /// After a suspend of the whole machine it may be late by a third of the ttl; `is_lost` is not.
    ///
    /// # Cancel safety
    /// Safe: dropping the future changes nothing.
    pub async fn lost(&self) -> LostReason {
        self.hold.lost.cancelled().await;
        self.hold.loss().unwrap_or(LostReason::Abandoned)
    }

    /// A token that is cancelled when the lock is lost, to hand to other tasks. Never cancelled by a release.
    pub fn lost_token(&self) -> CancellationToken {
        self.hold.lost.child_token()
    }

    /// Releases the lock and waits until the store has confirmed it; asks again while it cannot be reached, at
    /// the longest until the hold's own deadline, after which the store has forgotten it anyway.
    ///
    /// While other guards of the same owner share the hold it only lowers the count, without I/O.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before; [`Error::Unavailable`] or [`Error::Store`] if the store did not
    /// confirm in time.
    ///
    /// # Cancel safety
    /// Safe: dropping the future leaves the release to the keeper, like dropping the guard.
    pub async fn release(mut self) -> Result<()> {
        if self.is_lost() {
            return Err(self.loss());
        }
        let (reply, answer) = oneshot::channel();
        self.departed = true;
        if !self.hold.depart(self.side, Some(reply)) {
            return Ok(());
        }
        answer.await.unwrap_or_else(|_| Err(self.loss()))
    }

    /// Turns an exclusive hold into a read hold, with no moment in which another writer could come between, and
    /// waits until the store has confirmed it and other readers may enter. Keeps the token.
    ///
    /// While other exclusive guards of the same owner share the hold, only this guard changes sides. A guard
    /// that already reads is returned as it is.
    ///
    /// # Errors
    /// [`Error::Lost`]; the guard is gone then. [`Error::Unsupported`] where the store cannot, and the lock is released.
    ///
    /// # Cancel safety
    /// Dropping the future drops the guard: the lock is released.
    pub async fn downgrade(mut self) -> Result<Self> {
        if self.is_lost() {
            return Err(self.loss());
        }
        if self.side == Side::Exclusive {
            if !self.hold.downgrades {
                let what = format!("turn the exclusive hold of lock `{}` into a read hold", self.hold.name);
                return Err(Error::Unsupported { store: self.hold.store, what });
            }
            self.side = Side::Shared;
            if let Some(answer) = self.hold.change_sides() {
                answer.await.map_err(|_| self.loss())?;
            }
        }
        Ok(self)
    }

    /// Hands a claim that holds already to a keeper of this client: for a store whose locks cannot be had by
    /// [`Claim::attempt`](crate::Claim::attempt) and that therefore implements
    /// [`DistributedLock`](crate::DistributedLock) by hand. `sent` is when the request was sent that was granted.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn keep(
        locks: &Locks,
        claim: Box<dyn Claim>,
        request: Request,
        grant: Grant,
        sent: Instant,
        options: &LockOptions,
    ) -> Self {
        let sent = Moment::of(sent);
        Keeper::new(locks.client(), request, options.terms(), None).start_held(claim, grant, sent)
    }

    /// The error of a guard that is lost, or whose keeper ended without an answer.
    fn loss(&self) -> Error {
        let reason = self.hold.loss().unwrap_or(LostReason::Abandoned);
        Error::Lost { name: self.hold.name.clone(), reason }
    }

    pub(crate) fn new(hold: Arc<Hold>, side: Side) -> Self {
        Self { hold, side, departed: false }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.hold.name)
            .field("token", &self.hold.token)
            .field("lost", &self.hold.loss())
            .finish()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.departed {
            self.hold.depart(self.side, None);
        }
    }
}
