//! The guard: the value that represents a hold in the program.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::{Locks, LostSignal, Ticket};
use crate::{
    engine::{Hold, HoldRef},
    model::{ClaimId, Error, LockName, LostReason, Result, Token},
};

/// A held lock, or all members of a [`MultiLock`](crate::MultiLock).
///
/// While the guard exists, the keeper renews the lock. If the renewals fail until the deadline, the
/// guard is lost. [`is_lost`](Self::is_lost) compares the clocks itself, so its result is correct
/// even if the runtime was stalled.
///
/// Dropping the guard releases the lock in the background, without blocking. The drop of the
/// client's last guard blocks if the client runs [on a thread of its own](Locks::on_own_thread).
/// [`release`](Self::release) waits for the store's reply.
///
/// # Limits
/// - The release in the background is a task of the runtime that took the lock. If that runtime
///   ends first, as at the end of `main`, the lock is not released. In a store that does not detect
///   the end of a connection, the lock then stays taken for up to a ttl. A program should therefore
///   await [`release`](Self::release) or [`Locks::close`] before it ends. A client on a thread of
///   its own does this itself.
/// - A guard that is leaked with `mem::forget` keeps its lock until the runtime ends.
/// - After a loss, another contender may hold the lock while the work of this guard still runs. A
///   resource that compares [tokens](Self::token) can refuse the late writes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
/// let guard = dlock_core::Locks::memory().mutex("invoice/42").lock().await?;
/// tokio::select! {
///     reason = guard.lost() => eprintln!("stopped: {reason}"),
///     () = async { /* the work */ } => guard.release().await?,
/// }
/// # Ok(()) }
/// ```
#[must_use = "dropping a guard releases its lock; bind it to a name, not to `_`"]
pub struct Guard(Inner);

enum Inner {
    Single(HoldRef),
    /// All members of a [`MultiLock`](crate::MultiLock).
    Multi {
        name: LockName,
        guards: Vec<Guard>,
        /// Cancelled when a member is lost.
        lost: Arc<CancellationToken>,
    },
}

impl Guard {
    /// Returns the lock's name. For a [`MultiLock`](crate::MultiLock) these are the names of its
    /// members, joined with ` + `.
    pub fn name(&self) -> &LockName {
        match &self.0 {
            Inner::Single(hold_ref) => &hold_ref.hold.name,
            Inner::Multi { name, .. } => name,
        }
    }

    /// Returns the fencing token of this hold. It is greater than every token granted before for
    /// this name. Tokens may decrease on ZooKeeper and etcd after a loss of all data or the restore
    /// of an old snapshot. On other stores they may decrease if the last token is lost, by a loss
    /// of data or on Redis by `token_ttl`, and the store's wall clock is then behind that token.
    /// Re-entering and downgrading do not change it. Returns `None` if the store has no tokens, and
    /// for a [`MultiLock`](crate::MultiLock), which has one [for each member](Self::tokens).
    pub fn token(&self) -> Option<Token> {
        match &self.0 {
            Inner::Single(hold_ref) => hold_ref.hold.token,
            Inner::Multi { .. } => None,
        }
    }

    /// Returns the fencing tokens of all locks of the guard, each with the lock's name. Locks in
    /// stores without tokens are left out.
    pub fn tokens(&self) -> Vec<(&LockName, Token)> {
        match &self.0 {
            Inner::Single(hold_ref) => {
                hold_ref.hold.token.map(|token| (&hold_ref.hold.name, token)).into_iter().collect()
            }
            Inner::Multi { guards, .. } => guards.iter().flat_map(Self::tokens).collect(),
        }
    }

    /// Returns the id of the claim. It is unique among all holds of all locks. The [id of a
    /// holder](crate::Contender::id) that a store reports begins with it. On a RedLock only a part
    /// of it agrees, see [`ClaimId::is_reported_as`]. Returns `None` for a
    /// [`MultiLock`](crate::MultiLock).
    pub fn id(&self) -> Option<ClaimId> {
        self.hold().map(|hold| hold.id)
    }

    /// Returns the number of guards that share this hold. It is more than 1 only after an
    /// [`Owner`](crate::Owner) has re-entered. For a [`MultiLock`](crate::MultiLock) it is the
    /// smallest number of its members.
    pub fn hold_count(&self) -> usize {
        match &self.0 {
            Inner::Single(hold_ref) => hold_ref.hold.count(),
            Inner::Multi { guards, .. } => guards.iter().map(Self::hold_count).min().unwrap_or(1),
        }
    }

    /// Returns whether the lock, or a member of a [`MultiLock`](crate::MultiLock), is lost.
    /// Compares the clocks itself, so after a pause the result is correct even before any other
    /// task has run. Does no I/O.
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    pub(crate) fn loss(&self) -> Option<LostReason> {
        match &self.0 {
            Inner::Single(hold_ref) => hold_ref.hold.loss(),
            Inner::Multi { guards, .. } => guards.iter().find_map(Self::loss),
        }
    }

    /// Returns the time for which the lock is held without a further renewal, counted from this
    /// call. Zero if it is lost. For a [`MultiLock`](crate::MultiLock) it is the shortest time of
    /// its members.
    pub fn remaining(&self) -> Duration {
        match &self.0 {
            Inner::Single(hold_ref) => hold_ref.hold.remaining(),
            Inner::Multi { guards, .. } => guards.iter().map(Self::remaining).min().unwrap_or_default(),
        }
    }

    /// Waits until the lock, or a member of a [`MultiLock`](crate::MultiLock), is lost, and returns
    /// the reason. A normal release is not a loss.
    ///
    /// After a suspend of the machine it may return late, by up to the keeper's sleep until the
    /// next renewal, which is a third of the ttl by default. [`is_lost`](Self::is_lost) is not
    /// late.
    ///
    /// # Cancel safety
    /// Safe. Dropping the future changes nothing.
    pub async fn lost(&self) -> LostReason {
        self.lost_token().cancelled().await;
        self.loss().unwrap_or(LostReason::Abandoned)
    }

    /// Returns a signal that reports the loss of the lock, or of a member of a
    /// [`MultiLock`](crate::MultiLock), to other tasks. A normal release does not set it.
    pub fn lost_signal(&self) -> LostSignal {
        LostSignal::of(self.lost_token())
    }

    fn lost_token(&self) -> &CancellationToken {
        match &self.0 {
            Inner::Single(hold_ref) => hold_ref.hold.lost_token(),
            Inner::Multi { lost, .. } => lost,
        }
    }

    /// Releases the lock, and waits until the store has confirmed the release.
    ///
    /// While the store is unreachable, the keeper repeats the release, and this call waits at most
    /// until the end of the margin after the deadline. After an error the keeper continues to
    /// repeat the release, until the store has confirmed it or has deleted the claim by itself. The
    /// keeper runs on the runtime that took the lock, so this call also waits while that runtime is
    /// blocked.
    ///
    /// While other guards of the same owner share the hold, this call only reduces the
    /// [count](Self::hold_count), without I/O. The members of a [`MultiLock`](crate::MultiLock) are
    /// released concurrently. If releases fail, the call returns the first loss, or else the first
    /// other error, after all members have been released.
    ///
    /// # Errors
    /// - [`Error::Lost`] if the lock was lost before, even if only this release reveals it because
    ///   the store has no such claim. If the keeper had to send the release more than once, a
    ///   missing claim is not a loss, because an earlier release may have deleted it.
    /// - [`Error::Unavailable`], [`Error::Unwritable`] or [`Error::Refused`] if the store did not
    ///   confirm the release in time.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the release to the keeper, as dropping the guard does.
    pub async fn release(self) -> Result<()> {
        match self.0 {
            Inner::Single(hold_ref) => hold_ref.release().await,
            Inner::Multi { guards, .. } => Box::pin(release_all(guards)).await,
        }
    }

    /// Turns an exclusive hold into a read hold, and waits until the store has confirmed it. No
    /// other writer gets the lock in between, and other readers may enter afterwards. The token
    /// stays the same. While the store is unreachable, the keeper repeats the request, and renews
    /// the lock at the same time.
    ///
    /// While other exclusive guards of the same owner share the hold, only this guard becomes
    /// shared, without I/O. A guard of a read hold is returned unchanged.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
    /// let stock = dlock_core::Locks::memory().rwlock("stock");
    /// let guard = stock.write().lock().await?;
    /// assert!(stock.read().try_lock().await?.is_none());
    /// let guard = guard.downgrade().await?;
    /// assert!(stock.read().try_lock().await?.is_some());
    /// # guard.release().await }
    /// ```
    ///
    /// # Errors
    /// A [`GuardError`], which contains this guard, still exclusive unless the lock is lost. Its error
    /// is:
    ///
    /// - [`Error::Unsupported`], before any I/O, if the store cannot downgrade this kind
    ///   ([`Info::downgrades`](crate::driver::Info::downgrades)), and for a
    ///   [`MultiLock`](crate::MultiLock).
    /// - The store's error if the store refuses.
    /// - [`Error::Lost`] if the lock is lost.
    ///
    /// # Cancel safety
    /// Dropping the future drops the guard, which releases the lock.
    pub async fn downgrade(self) -> Result<Self, GuardError> {
        let (guard, error) = match self.0 {
            Inner::Single(hold_ref) => match hold_ref.downgrade().await {
                Ok(hold_ref) => return Ok(Self(Inner::Single(hold_ref))),
                Err((hold_ref, error)) => (Self(Inner::Single(hold_ref)), error),
            },
            Inner::Multi { ref name, .. } => {
                let what =
                    format!("turn the exclusive hold of `{name}` into a read hold: take its members singly");
                (self, Error::Unsupported { store: "multilock", what })
            }
        };
        Err(GuardError(Box::new((guard, error))))
    }

    /// Detaches the hold from this guard, and waits until the store has confirmed it. The store
    /// then keeps the lock for `lasting`, in whole milliseconds, counted from the execution of the
    /// request. The lock is not renewed, and stays taken even if this process ends.
    ///
    /// The ticket identifies the detached hold. With it any client of the store, in any process,
    /// can take the lock over ([`Locks::resume`](crate::Locks::resume)) or release it
    /// ([`Locks::release`](crate::Locks::release)). The time replaces
    /// [`at_least`](crate::LockOptions::at_least), whether it is longer or shorter.
    ///
    /// While the store is unreachable, the keeper repeats the request, and renews the lock at the
    /// same time.
    ///
    /// # Errors
    /// A [`GuardError`], which contains this guard, held as before unless the lock is lost. Its error
    /// is:
    ///
    /// - [`Error::Unsupported`], before any I/O, if the store cannot keep a lock without its holder
    ///   ([`Info::detaches`](crate::driver::Info::detaches)), for a
    ///   [`MultiLock`](crate::MultiLock), and while other guards of the same owner share the hold.
    /// - [`Error::InvalidOptions`] if the store cannot keep a lock for this time.
    /// - The store's error if the store refuses.
    /// - [`Error::Lost`] if the lock is lost.
    ///
    /// # Cancel safety
    /// Dropping the future drops the guard. The lock is then released, or stays taken until the end
    /// of its [`at_least`](crate::LockOptions::at_least).
    pub async fn detach(self, lasting: Duration) -> Result<Ticket, GuardError> {
        let token = self.token();
        let (guard, error) = match self.0 {
            Inner::Single(hold_ref) => match hold_ref.detach(lasting).await {
                Ok(request) => return Ok(Ticket::new(request, token)),
                Err((hold_ref, error)) => (Self(Inner::Single(hold_ref)), error),
            },
            Inner::Multi { ref name, .. } => {
                let what = format!("detach `{name}` as one: take its members singly");
                (self, Error::Unsupported { store: "multilock", what })
            }
        };
        Err(GuardError(Box::new((guard, error))))
    }

    /// Keeps the lock, or each member, taken for at least this time from now, even if it is
    /// released earlier.
    pub(super) fn keep_taken_for(&self, min: Duration) {
        match &self.0 {
            Inner::Single(hold_ref) => hold_ref.hold.keep_taken_for(min),
            Inner::Multi { guards, .. } => guards.iter().for_each(|guard| guard.keep_taken_for(min)),
        }
    }

    /// Cancels the minimum time of [`at_least`](crate::LockOptions::at_least), so that the lock is
    /// free as soon as this guard is released or dropped. For a holder that finds that it has
    /// nothing to do. Sends no request. Other guards of the same owner share the minimum time.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
    /// use std::time::Duration;
    /// let report = dlock_core::Locks::memory().mutex("report");
    /// let guard = report.lock().at_least(Duration::from_secs(3600)).await?;
    /// guard.clear_at_least(); // the report exists already
    /// guard.release().await?;
    /// assert!(report.try_lock().await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn clear_at_least(&self) {
        match &self.0 {
            Inner::Single(hold_ref) => hold_ref.hold.clear_taken_until(),
            Inner::Multi { guards, .. } => guards.iter().for_each(Self::clear_at_least),
        }
    }

    /// Creates the guard of a caller of `locks`.
    pub(crate) fn of(hold_ref: HoldRef, locks: &Locks) -> Self {
        Self(Inner::Single(hold_ref.with_thread(locks.thread().cloned())))
    }

    /// Creates one guard of several locks.
    pub(crate) fn all(name: LockName, guards: Vec<Self>) -> Self {
        let lost = Arc::new(CancellationToken::new());
        for guard in &guards {
            guard.announce_loss_to(&lost);
        }
        Self(Inner::Multi { name, guards, lost })
    }

    fn announce_loss_to(&self, token: &Arc<CancellationToken>) {
        match &self.0 {
            Inner::Single(hold_ref) => hold_ref.hold.announce_loss_to(token),
            Inner::Multi { guards, .. } => guards.iter().for_each(|guard| guard.announce_loss_to(token)),
        }
    }

    /// Returns the holds of all locks of the guard.
    pub(super) fn holds(&self) -> Vec<&Arc<Hold>> {
        match &self.0 {
            Inner::Single(hold_ref) => vec![&hold_ref.hold],
            Inner::Multi { guards, .. } => guards.iter().flat_map(Self::holds).collect(),
        }
    }

    /// Returns the hold. `None` for a guard of several locks.
    pub(crate) fn hold(&self) -> Option<&Arc<Hold>> {
        match &self.0 {
            Inner::Single(hold_ref) => Some(&hold_ref.hold),
            Inner::Multi { .. } => None,
        }
    }
}

/// The error of [`Guard::downgrade`] and [`Guard::detach`], which also contains the guard.
///
/// In a function that returns [`Error`], the operator `?` drops the guard, which releases the lock.
/// To keep the lock, take the guard with [`into_guard`](Self::into_guard).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
/// use std::time::Duration;
/// let guard = dlock_core::Locks::memory().mutex("deploy").lock().await?;
/// let error = guard.detach(Duration::MAX).await.unwrap_err(); // longer than the store can keep it
/// let guard = error.into_guard();
/// assert!(!guard.is_lost());
/// # guard.release().await }
/// ```
#[must_use = "it has the guard, and dropping it releases the lock"]
pub struct GuardError(Box<(Guard, Error)>);

impl GuardError {
    /// Returns the reason of the failure.
    pub fn error(&self) -> &Error {
        &self.0.1
    }

    /// Returns the guard. It holds the lock as before, unless the error is [`Error::Lost`].
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

/// Releases all guards concurrently. Returns the first loss, in the order of the guards, or else
/// the first other error.
pub(crate) async fn release_all(guards: Vec<Guard>) -> Result<()> {
    let results = join_all(guards.into_iter().map(Guard::release)).await;
    let (losses, others): (Vec<_>, _) =
        results.into_iter().partition(|result| matches!(result, Err(Error::Lost { .. })));
    losses.into_iter().chain(others).collect()
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
        let listeners = long.hold().expect("one lock").loss_listeners();
        assert!(
            listeners <= 1,
            "{listeners} guards would be notified of a loss, and at most one still exists"
        );
    }
}
