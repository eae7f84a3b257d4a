//! A hold: what the guards of one grant and their keeper share. A few lines over: all that may touch its state.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{
    ClaimId, Error, Guard, Info, Kind, LockName, LostReason, Request, Result, Token, clock::Moment,
    stake::Side,
};

/// A hold as its guards and its keeper share it.
pub(crate) struct Hold {
    pub(crate) name: LockName,
    pub(crate) id: ClaimId,
    pub(crate) store: &'static str,
    pub(crate) token: Option<Token>,
    /// Whether the store can turn it into a read hold.
    pub(crate) downgrades: bool,
    /// Cancelled when the hold is lost.
    pub(crate) lost: CancellationToken,
    /// Wakes the keeper when a guard asks for something.
    knock: Notify,
    state: Mutex<State>,
}

struct State {
    kind: Kind,
    deadline: Moment,
    lost: Option<LostReason>,
    /// Who else is told of the loss, if they still care.
    audience: Vec<Weak<CancellationToken>>,
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
        Request { name, kind, id, .. }: &Request,
        info: &Info,
        token: Option<Token>,
        deadline: Moment,
    ) -> Self {
        let kind = *kind;
        let (exclusive, shared) = match Side::of(kind) {
            Side::Exclusive => (1, 0),
            Side::Shared => (0, 1),
        };
        let state = State {
            kind,
            deadline,
            lost: None,
            audience: Vec::new(),
            exclusive,
            shared,
            left: false,
            farewell: None,
            downgrade: None,
        };
        Self {
            name: name.clone(),
            id: *id,
            store: info.store,
            token,
            downgrades: info.downgrades,
            lost: CancellationToken::new(),
            knock: Notify::new(),
            state: Mutex::new(state),
        }
    }

    /// How many guards it has.
    pub(crate) fn count(&self) -> usize {
        let state = self.state();
        state.exclusive + state.shared
    }

    /// How long it is ours without another renewal.
    pub(crate) fn remaining(&self) -> Duration {
        if self.loss().is_some() { Duration::ZERO } else { self.deadline().remaining() }
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
        Entry::Entered(Guard::new(Arc::clone(self), side))
    }

    /// One guard fewer; `true` if it was the last and the keeper will answer.
    pub(crate) fn depart(&self, side: Side, farewell: Option<oneshot::Sender<Result<()>>>) -> bool {
        let mut state = self.state();
        match side {
            Side::Exclusive => state.exclusive -= 1,
            Side::Shared => state.shared -= 1,
        }
        state.left = state.exclusive + state.shared == 0;
        let left = state.left;
        if left {
            state.farewell = farewell.filter(|_| state.lost.is_none());
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
    pub(crate) fn change_sides(&self) -> Option<oneshot::Receiver<()>> {
        let mut state = self.state();
        state.exclusive -= 1;
        state.shared += 1;
        if state.exclusive > 0 {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        if state.lost.is_some() {
            return Some(answer);
        }
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
        // Whoever waits for an answer is told by its end: the keeper will not give one.
        state.downgrade = None;
        state.farewell = None;
        let audience = std::mem::take(&mut state.audience);
        drop(state);
        self.lost.cancel();
        audience.iter().filter_map(Weak::upgrade).for_each(|token| token.cancel());
    }

    /// Marks the hold as taken, because the store did not know it when it was to let go; `false` if that is no loss, or no
    /// news: after its deadline the store forgets it by itself.
    pub(crate) fn found_gone(&self) -> bool {
        let state = self.state();
        if state.lost.is_some() || state.deadline.has_passed() {
            return false;
        }
        drop(state);
        self.lose(LostReason::Taken);
        true
    }

    /// Has `token` cancelled when the hold is lost, as long as anybody else has it.
    pub(crate) fn announce_loss_to(&self, token: &Arc<CancellationToken>) {
        let mut state = self.state();
        if state.lost.is_some() {
            drop(state);
            token.cancel();
        } else {
            // They come and go while the hold stays.
            state.audience.retain(|one| one.strong_count() > 0);
            state.audience.push(Arc::downgrade(token));
        }
    }

    /// The error of a hold that is lost, or whose keeper ended without an answer.
    pub(crate) fn lost_error(&self) -> Error {
        let reason = self.loss().unwrap_or(LostReason::Abandoned);
        Error::Lost { name: self.name.clone(), reason }
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

    #[cfg(test)]
    pub(crate) fn audience(&self) -> usize {
        self.state().audience.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing below panics while it holds the lock, and a half-made state cannot be seen.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
