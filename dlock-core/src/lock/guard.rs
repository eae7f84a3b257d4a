//! The guard: what a user holds. Over the usual length with its tests.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::{Locks, LostSignal, Ticket};
use crate::{
    engine::{Hold, HoldRef},
    model::{ClaimId, Error, LockName, LostReason, Result, Token},
};

/// A held lock. Dropping it releases the lock in the background; [`release`](Self::release) waits for the answer.
///
/// "In the background" is a task of the runtime that took the lock. If that runtime ends first, as at the end of `main`, nobody
/// releases the lock, and it stays taken for up to a ttl on stores that do not see the end of a connection. So the last thing a
/// program does is [`release`](Self::release) or [`Locks::close`]. A client [on a thread of its
/// own](Locks::on_own_thread) does so by itself.
///
/// The keeper renews the lock for as long as the guard lives, and marks the guard as lost when that no longer works.
/// [`is_lost`](Self::is_lost) compares the clocks itself, so it is right even when the runtime was stalled. A guard that is
/// leaked (`mem::forget`) keeps its lock for as long as the runtime lives.
#[must_use = "dropping a guard releases its lock; bind it to a name, not to `_`"]
pub struct Guard(Held);

enum Held {
    One(HoldRef),
    /// All the members of a [`MultiLock`](crate::MultiLock).
    All {
        name: LockName,
        guards: Vec<Guard>,
        /// Cancelled when any of them is lost.
        lost: Arc<CancellationToken>,
    },
}

impl Guard {
    /// The lock's name; of a [`MultiLock`](crate::MultiLock) those of its members, joined.
    pub fn name(&self) -> &LockName {
        match &self.0 {
            Held::One(stake) => &stake.hold.name,
            Held::All { name, .. } => name,
        }
    }

    /// The fencing token of this hold: greater than every token granted before for this name. `None` where the
    /// store has none, and for a [`MultiLock`](crate::MultiLock), which has [several](Self::tokens). Re-entering does
    /// not change it.
    pub fn token(&self) -> Option<Token> {
        match &self.0 {
            Held::One(stake) => stake.hold.token,
            Held::All { .. } => None,
        }
    }

    /// The fencing tokens of all that is held, each with the name it is for.
    pub fn tokens(&self) -> Vec<(&LockName, Token)> {
        match &self.0 {
            Held::One(stake) => stake.hold.token.map(|token| (&stake.hold.name, token)).into_iter().collect(),
            Held::All { guards, .. } => guards.iter().flat_map(Self::tokens).collect(),
        }
    }

    /// Which claim this is: no other hold, of whatever lock, has the same id. What a store shows as a holder
    /// ([`Contender::id`](crate::Contender::id)) begins with it. `None` for a [`MultiLock`](crate::MultiLock).
    pub fn id(&self) -> Option<ClaimId> {
        self.hold().map(|hold| hold.id)
    }

    /// How many guards this hold has: above 1 only where an [`Owner`](crate::Owner) re-entered.
    pub fn hold_count(&self) -> usize {
        match &self.0 {
            Held::One(stake) => stake.hold.count(),
            Held::All { guards, .. } => guards.iter().map(Self::hold_count).min().unwrap_or(1),
        }
    }

    /// Whether the lock, or one of several, is no longer known to be ours. Compares the clocks itself: right at
    /// once after a pause, before any other task ran.
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    pub(crate) fn loss(&self) -> Option<LostReason> {
        match &self.0 {
            Held::One(stake) => stake.hold.loss(),
            Held::All { guards, .. } => guards.iter().find_map(Self::loss),
        }
    }

    /// How long the lock is ours without another renewal; zero if it is lost.
    pub fn remaining(&self) -> Duration {
        match &self.0 {
            Held::One(stake) => stake.hold.remaining(),
            Held::All { guards, .. } => guards.iter().map(Self::remaining).min().unwrap_or_default(),
        }
    }

    /// Ends when the lock, or one of several, is lost, and says how. Never ends because of a normal release.
    ///
    /// After a suspend of the whole machine it may be late by a third of the ttl; `is_lost` is not.
    ///
    /// # Cancel safety
    /// Safe: dropping the future changes nothing.
    pub async fn lost(&self) -> LostReason {
        self.lost_token().cancelled().await;
        self.loss().unwrap_or(LostReason::Abandoned)
    }

    /// A signal that tells other tasks when the lock, or one of several, is lost. A normal release does not send it.
    pub fn lost_signal(&self) -> LostSignal {
        LostSignal::of(self.lost_token())
    }

    fn lost_token(&self) -> &CancellationToken {
        match &self.0 {
            Held::One(stake) => &stake.hold.lost,
            Held::All { lost, .. } => lost,
        }
    }

    /// Releases the lock and waits until the store has confirmed it. While the store cannot be reached, the keeper repeats
    /// the release, and this waits until the hold's deadline at the longest. After an error the keeper goes on repeating
    /// it, until the store has confirmed it or has forgotten the lock by itself.
    ///
    /// While other guards of the same owner share the hold, this only lowers the count, without I/O. Of several locks all are
    /// released at once, also if one fails. The error is the first loss, or else the first other error.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before, even if only this release finds it gone from the store. If the release
    /// had to be sent more than once, a missing lock is no loss: the release itself may have removed it.
    /// [`Error::Unavailable`], [`Error::Unwritable`] or [`Error::Refused`] if the store did not confirm in time.
    ///
    /// The answer comes from the keeper, on the runtime that took the lock. While that runtime is blocked, this call waits.
    ///
    /// # Cancel safety
    /// Safe: dropping the future leaves the release to the keeper, like dropping the guard.
    pub async fn release(self) -> Result<()> {
        match self.0 {
            Held::One(stake) => stake.release().await,
            Held::All { guards, .. } => Box::pin(release_all(guards)).await,
        }
    }

    /// Turns an exclusive hold into a read hold, with no moment in which another writer could get the lock. Waits until the
    /// store has confirmed it, so that other readers may enter. Keeps the token. While the store cannot be reached, the
    /// keeper asks it again, and renews the lock meanwhile.
    ///
    /// While other exclusive guards of the same owner share the hold, only this guard changes sides. A guard
    /// that already reads is returned as it is.
    ///
    /// # Errors
    /// A [`GuardError`], which has this guard, exclusive as before. Its error is [`Error::Unsupported`], before any I/O, if
    /// the store cannot downgrade this kind ([`Info::downgrades`](crate::driver::Info::downgrades)), or for several locks at
    /// once; the store's own error if the store refuses; or [`Error::Lost`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the guard: the lock is released.
    pub async fn downgrade(self) -> Result<Self, GuardError> {
        let (guard, error) = match self.0 {
            Held::One(stake) => match stake.downgrade().await {
                Ok(stake) => return Ok(Self(Held::One(stake))),
                Err((stake, error)) => (Self(Held::One(stake)), error),
            },
            Held::All { ref name, .. } => {
                let what =
                    format!("turn the exclusive hold of `{name}` into a read hold: take its members singly");
                (self, Error::Unsupported { store: "multilock", what })
            }
        };
        Err(GuardError(Box::new((guard, error))))
    }

    /// Lets the lock go on without this guard for `lasting` from now, in whole milliseconds: it is not renewed, and stays
    /// taken although this process ends. The ticket stands for the hold: with it, [`Locks::resume`](crate::Locks::resume)
    /// takes the lock back and [`Locks::release`](crate::Locks::release) releases it, in any process. Waits until the store has
    /// confirmed it; while the store cannot be reached, the keeper asks it again, and renews the lock meanwhile.
    ///
    /// # Errors
    /// A [`GuardError`], which has this guard, held as before. Its error is [`Error::Unsupported`] before any I/O if the store
    /// cannot keep a lock without its holder ([`Info::detaches`](crate::driver::Info::detaches)), for several locks at
    /// once, and while other guards of its owner share the hold; [`Error::InvalidOptions`] for a time that the store
    /// cannot keep; the store's own error if the store refuses; or [`Error::Lost`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the guard: the lock is released, after [`at_least`](crate::LockOptions::at_least) if that
    /// was asked for.
    pub async fn detach(self, lasting: Duration) -> Result<Ticket, GuardError> {
        let token = self.token();
        let (guard, error) = match self.0 {
            Held::One(stake) => match stake.detach(lasting).await {
                Ok(request) => return Ok(Ticket::new(request, token)),
                Err((stake, error)) => (Self(Held::One(stake)), error),
            },
            Held::All { ref name, .. } => {
                let what = format!("detach `{name}` as one: take its members singly");
                (self, Error::Unsupported { store: "multilock", what })
            }
        };
        Err(GuardError(Box::new((guard, error))))
    }

    /// Leaves the lock, or each of several, taken for so long from now, although it is released before.
    pub(super) fn stay_for(&self, least: Duration) {
        match &self.0 {
            Held::One(stake) => stake.hold.keep_taken_for(least),
            Held::All { guards, .. } => guards.iter().for_each(|guard| guard.stay_for(least)),
        }
    }

    /// The guard of a caller of `locks`.
    pub(crate) fn of(stake: HoldRef, locks: &Locks) -> Self {
        Self(Held::One(stake.with_thread(locks.thread().cloned())))
    }

    /// One guard for several.
    pub(crate) fn all(name: LockName, guards: Vec<Self>) -> Self {
        let lost = Arc::new(CancellationToken::new());
        for guard in &guards {
            guard.announce_loss_to(&lost);
        }
        Self(Held::All { name, guards, lost })
    }

    fn announce_loss_to(&self, token: &Arc<CancellationToken>) {
        match &self.0 {
            Held::One(stake) => stake.hold.announce_loss_to(token),
            Held::All { guards, .. } => guards.iter().for_each(|guard| guard.announce_loss_to(token)),
        }
    }

    /// The hold, of a guard of one lock.
    pub(crate) fn hold(&self) -> Option<&Arc<Hold>> {
        match &self.0 {
            Held::One(stake) => Some(&stake.hold),
            Held::All { .. } => None,
        }
    }
}

/// Why [`Guard::downgrade`] or [`Guard::detach`] failed, with the guard as it was.
///
/// In a function that returns [`Error`], `?` drops the guard, which releases the lock. To go on holding, take
/// [`into_guard`](Self::into_guard).
#[must_use = "it has the guard, and dropping it releases the lock"]
pub struct GuardError(Box<(Guard, Error)>);

impl GuardError {
    /// Why it failed.
    pub fn error(&self) -> &Error {
        &self.0.1
    }

    /// The guard, held as before, unless the error is [`Error::Lost`].
    pub fn into_guard(self) -> Guard {
        self.0.0
    }
}

impl From<GuardError> for Error {
    fn from(error: GuardError) -> Self {
        error.0.1
    }
}

impl std::error::Error for GuardError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error().source()
    }
}

impl fmt::Display for GuardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl fmt::Debug for GuardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GuardError").field(self.error()).finish()
    }
}

/// Releases all at once. Answers the first loss, in the order of the guards, or else the first other error.
pub(crate) async fn release_all(guards: Vec<Guard>) -> Result<()> {
    let told = join_all(guards.into_iter().map(Guard::release)).await;
    let (lost, others): (Vec<_>, _) =
        told.into_iter().partition(|told| matches!(told, Err(Error::Lost { .. })));
    lost.into_iter().chain(others).collect()
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("tokens", &self.tokens().into_iter().map(|(_, token)| token).collect::<Vec<_>>())
            .field("lost", &self.loss())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::{DistributedLock, LockOptions, Locks, MultiLock, Owner};

    #[tokio::test(start_paused = true)]
    async fn a_long_hold_forgets_the_multilocks_that_have_been_released() {
        let (locks, me) = (Locks::memory(), Owner::new());
        let long = locks.mutex("long").owned_by(&me).lock().await.expect("free");
        let members: [Arc<dyn DistributedLock>; 2] =
            [Arc::new(locks.mutex("long").owned_by(&me)), Arc::new(locks.mutex("short"))];
        let both = MultiLock::new(members).expect("two members");
        for _ in 0..100 {
            let guard = both.lock(&LockOptions::new()).await.expect("free");
            guard.release().await.expect("held until now");
        }
        let told = long.hold().expect("one lock").loss_listeners();
        assert!(told <= 1, "{told} guards are told of the loss, and at most one of them is left");
    }
}
