//! The guard: what a user holds, and the hold it shares with the keeper.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Claim, Error, Grant, Kind, LockName, LockOptions, Locks, LostReason, Request, Result, Token,
    clock::Moment, keeper::Keeper,
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

/// Which of an owner's two counts a guard is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Exclusive,
    Shared,
}

impl Side {
    fn of(kind: Kind) -> Self {
        if kind == Kind::Read { Self::Shared } else { Self::Exclusive }
    }
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
        let state = self.hold.state();
        state.exclusive + state.shared
    }

    /// Whether the lock is no longer known to be ours. Compares the clocks itself: right at once after a pause,
    /// before any other task ran.
    pub fn is_lost(&self) -> bool {
        self.hold.loss().is_some()
    }

    /// How long the lock is ours without another renewal; zero if it is lost.
    pub fn remaining(&self) -> Duration {
        let state = self.hold.state();
        if state.lost.is_some() { Duration::ZERO } else { state.deadline.remaining() }
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
        if let Some(reason) = self.hold.loss() {
            return Err(Error::Lost { name: self.hold.name.clone(), reason });
        }
        let (reply, answer) = oneshot::channel();
        self.departed = true;
        if !self.hold.depart(self.side, Some(reply)) {
            return Ok(());
        }
        let abandoned = || Error::Lost { name: self.hold.name.clone(), reason: LostReason::Abandoned };
        answer.await.unwrap_or_else(|_| Err(abandoned()))
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
        if let Some(reason) = self.hold.loss() {
            return Err(Error::Lost { name: self.hold.name.clone(), reason });
        }
        if self.side == Side::Exclusive {
            if !self.hold.downgrades {
                let what = format!("turn the exclusive hold of lock `{}` into a read hold", self.hold.name);
                return Err(Error::Unsupported { store: self.hold.store, what });
            }
            self.side = Side::Shared;
            if let Some(answer) = self.hold.change_sides() {
                let lost = |reason| Error::Lost { name: self.hold.name.clone(), reason };
                answer.await.map_err(|_| lost(self.hold.loss().unwrap_or(LostReason::Abandoned)))?;
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

    pub(crate) fn new(hold: Arc<Hold>) -> Self {
        let side = Side::of(hold.state().kind);
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

/// A hold as its guards and its keeper share it.
pub(crate) struct Hold {
    name: LockName,
    store: &'static str,
    token: Option<Token>,
    downgrades: bool,
    /// Cancelled when the hold is lost.
    lost: CancellationToken,
    /// Wakes the keeper when a guard asks for something.
    knock: Notify,
    state: Mutex<State>,
}

struct State {
    kind: Kind,
    deadline: Moment,
    lost: Option<LostReason>,
    exclusive: usize,
    shared: usize,
    /// The last guard has left; its answer, if it waits for one, is taken by the keeper.
    left: bool,
    farewell: Option<oneshot::Sender<Result<()>>>,
    /// The store still has an exclusive hold where only readers are left.
    downgrade: Option<Option<oneshot::Sender<()>>>,
}

/// What the guards ask of the keeper.
pub(crate) enum Wish {
    /// Let go, and tell whoever waits for the answer.
    Leave(Option<oneshot::Sender<Result<()>>>),
    /// Turn the hold into a read hold.
    Downgrade,
}

/// How a second `lock()` by the same owner fares.
pub(crate) enum Entry {
    Entered(Guard),
    /// This hold is over or lost: take the lock anew.
    Over,
    /// Would wait for itself.
    Deadlock,
}

impl Hold {
    /// A hold with its one guard not yet made.
    pub(crate) fn new(
        name: LockName,
        store: &'static str,
        downgrades: bool,
        kind: Kind,
        token: Option<Token>,
        deadline: Moment,
    ) -> Self {
        let (exclusive, shared) = match Side::of(kind) {
            Side::Exclusive => (1, 0),
            Side::Shared => (0, 1),
        };
        let state = State {
            kind,
            deadline,
            lost: None,
            exclusive,
            shared,
            left: false,
            farewell: None,
            downgrade: None,
        };
        Self {
            name,
            store,
            token,
            downgrades,
            lost: CancellationToken::new(),
            knock: Notify::new(),
            state: Mutex::new(state),
        }
    }

    /// Enters a second time, for the same owner.
    pub(crate) fn enter(self: &Arc<Self>, kind: Kind) -> Entry {
        let mut state = self.state();
        if state.left || state.lost.is_some() || state.deadline.has_passed() {
            return Entry::Over;
        }
        let side = Side::of(kind);
        match side {
            Side::Shared => state.shared += 1,
            Side::Exclusive if state.kind == Kind::Read => return Entry::Deadlock,
            Side::Exclusive => state.exclusive += 1,
        }
        drop(state);
        Entry::Entered(Guard { hold: Arc::clone(self), side, departed: false })
    }

    /// One guard fewer; `true` if it was the last and the keeper will answer.
    fn depart(&self, side: Side, farewell: Option<oneshot::Sender<Result<()>>>) -> bool {
        let mut state = self.state();
        match side {
            Side::Exclusive => state.exclusive -= 1,
            Side::Shared => state.shared -= 1,
        }
        state.left = state.exclusive + state.shared == 0;
        let left = state.left;
        if left {
            state.farewell = farewell;
        } else if self.downgrades && state.exclusive == 0 && state.kind != Kind::Read {
            state.kind = Kind::Read;
            state.downgrade = Some(None);
        } else {
            return false;
        }
        drop(state);
        self.knock.notify_one();
        left
    }

    /// An exclusive guard becomes a shared one. The answer ends when the store has followed; `None` if it need not.
    fn change_sides(&self) -> Option<oneshot::Receiver<()>> {
        let mut state = self.state();
        state.exclusive -= 1;
        state.shared += 1;
        if state.exclusive > 0 {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        state.kind = Kind::Read;
        state.downgrade = Some(Some(reply));
        drop(state);
        self.knock.notify_one();
        Some(answer)
    }

    /// Waits until a guard wishes something of the keeper. Dropping it loses no wish.
    pub(crate) async fn wish(&self) -> Wish {
        loop {
            {
                let mut state = self.state();
                if state.left {
                    return Wish::Leave(state.farewell.take());
                }
                if state.downgrade.is_some() {
                    return Wish::Downgrade;
                }
            }
            self.knock.notified().await;
        }
    }

    /// The store has made it a read hold.
    pub(crate) fn downgraded(&self) {
        if let Some(Some(reply)) = self.state().downgrade.take() {
            reply.send(()).ok();
        }
    }

    pub(crate) fn token(&self) -> Option<Token> {
        self.token
    }

    pub(crate) fn deadline(&self) -> Moment {
        self.state().deadline
    }

    /// Moves the deadline; `false` if it has passed already: what was once said to be lost stays lost.
    pub(crate) fn extend(&self, deadline: Moment) -> bool {
        if self.loss().is_some() {
            return false;
        }
        self.state().deadline = deadline;
        true
    }

    /// Marks the hold as lost and tells everybody. The first reason stays.
    pub(crate) fn lose(&self, reason: LostReason) {
        let mut state = self.state();
        state.lost.get_or_insert(reason);
        state.downgrade = None;
        drop(state);
        self.lost.cancel();
    }

    /// Whether and how the hold is lost. A deadline that has passed is a loss from then on, whoever notices it first.
    pub(crate) fn loss(&self) -> Option<LostReason> {
        let state = self.state();
        if state.lost.is_none() && state.deadline.has_passed() {
            drop(state);
            self.lose(LostReason::Expired);
            return Some(LostReason::Expired);
        }
        state.lost
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing below panics while it holds the lock, and a half-made state cannot be seen.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
