//! A hold: what the guards of one grant and their keeper share. Over the usual length: all that may touch its state.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use crate::driver::{ClaimId, Error, Info, Kind, LockName, LostReason, Moment, Request, Result, Token};

/// A hold as its guards and its keeper share it.
pub(crate) struct Hold {
    pub(crate) name: LockName,
    pub(crate) id: ClaimId,
    pub(crate) store: &'static str,
    pub(crate) token: Option<Token>,
    /// The kind that it was granted as.
    pub(crate) kind: Kind,
    /// When the hold ends however often it is renewed: at the end of its lease or of its `max_hold`.
    end: Option<Moment>,
    /// Cancelled when the hold is lost.
    pub(crate) lost: CancellationToken,
    /// Wakes the keeper when a guard asks for something.
    knock: Notify,
    state: Mutex<State>,
}

struct State {
    /// The kind that it has in the store, or that the store was asked to turn it into.
    kind: Kind,
    deadline: Moment,
    /// The last renewal reaches beyond the hold's end: it need not be renewed any more.
    outlasts_end: bool,
    lost: Option<LostReason>,
    /// The MultiLock guards that are told of the loss, as long as they live.
    audience: Vec<Weak<CancellationToken>>,
    exclusive: usize,
    shared: usize,
    /// The last guard has left.
    left: bool,
    /// Where the last guard waits for the answer to its release, until the keeper takes it.
    farewell: Option<oneshot::Sender<Result<()>>>,
    /// Whether the store can turn it into a read hold: it lists the kind, and has not refused so far.
    downgradable: bool,
    /// Set while only shared guards are left, and the store still has the exclusive hold.
    downgrade: Option<Downgrade>,
}

/// A hold that is to become a read hold.
struct Downgrade {
    from: Kind,
    /// Where a guard waits for the answer; `None` if an owner's last exclusive guard was released instead.
    reply: Option<oneshot::Sender<Result<()>>>,
}

/// What the guards ask of the keeper.
pub(crate) enum Wish {
    /// Let go, and tell whoever waits for the answer.
    Leave(Option<oneshot::Sender<Result<()>>>),
    /// Turn the hold into a read hold.
    Downgrade,
}

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

/// How a second `lock()` by the same owner fares.
pub(crate) enum Reentry {
    /// One guard more is counted on this side.
    Entered(Side),
    /// This hold is over or lost: a new claim must take the lock.
    Over,
    /// The owner only reads, and would wait for itself.
    Deadlock,
}

impl Hold {
    /// A hold with its one guard not yet made: granted until `deadline`, and to last until `end` at the longest.
    pub(crate) fn new(
        Request { name, kind, id, .. }: &Request,
        info: &Info,
        token: Option<Token>,
        deadline: Moment,
        end: Option<Moment>,
    ) -> Self {
        let kind = *kind;
        let (exclusive, shared) = match Side::of(kind) {
            Side::Exclusive => (1, 0),
            Side::Shared => (0, 1),
        };
        let state = State {
            kind,
            deadline,
            outlasts_end: false,
            lost: None,
            audience: Vec::new(),
            exclusive,
            shared,
            left: false,
            farewell: None,
            downgradable: info.downgrades.contains(&kind),
            downgrade: None,
        };
        let hold = Self {
            name: name.clone(),
            id: *id,
            store: info.store,
            token,
            kind,
            end,
            lost: CancellationToken::new(),
            knock: Notify::new(),
            state: Mutex::new(state),
        };
        hold.set_deadline(&mut hold.state(), deadline);
        hold
    }

    /// How many guards it has.
    pub(crate) fn count(&self) -> usize {
        let state = self.state();
        state.exclusive + state.shared
    }

    /// How long the lock is held without another renewal.
    pub(crate) fn remaining(&self) -> Duration {
        if self.loss().is_some() { Duration::ZERO } else { self.deadline().remaining() }
    }

    /// Enters a second time, for the same owner.
    pub(crate) fn enter(&self, kind: Kind) -> Reentry {
        let mut state = self.state();
        if state.left || state.lost.is_some() || state.deadline.has_passed() {
            return Reentry::Over;
        }
        let side = Side::of(kind);
        match side {
            Side::Shared => state.shared += 1,
            Side::Exclusive if state.kind == Kind::Read => return Reentry::Deadlock,
            Side::Exclusive => state.exclusive += 1,
        }
        Reentry::Entered(side)
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
        } else if state.downgradable && state.exclusive == 0 && state.kind != Kind::Read {
            state.wish_to_read(None);
        } else {
            return false;
        }
        drop(state);
        self.knock.notify_one();
        left
    }

    /// Whether the store can turn it into a read hold: it lists the kind, and has not refused so far.
    pub(crate) fn is_downgradable(&self) -> bool {
        self.state().downgradable
    }

    /// Counts an exclusive guard as a shared one. The receiver gets the store's answer, or is closed without one if the
    /// hold is lost before. `None` if the store need not be asked, because other guards are still exclusive.
    pub(crate) fn change_sides(&self) -> Option<oneshot::Receiver<Result<()>>> {
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
        state.wish_to_read(Some(reply));
        drop(state);
        self.knock.notify_one();
        Some(answer)
    }

    /// Undoes [`change_sides`](Self::change_sides) after the store has refused.
    pub(crate) fn change_back(&self) {
        let mut state = self.state();
        state.shared -= 1;
        state.exclusive += 1;
    }

    /// Waits until a guard asks the keeper for something; for a downgrade only if `may_downgrade`. Dropping the future loses
    /// no wish.
    pub(crate) async fn wish(&self, may_downgrade: bool) -> Wish {
        loop {
            {
                let mut state = self.state();
                if state.left {
                    return Wish::Leave(state.farewell.take());
                }
                if may_downgrade && state.downgrade.is_some() {
                    return Wish::Downgrade;
                }
            }
            self.knock.notified().await;
        }
    }

    /// Tells the guard that the store has made it a read hold.
    pub(crate) fn confirm_downgrade(&self) {
        if let Some(reply) = self.state().downgrade.take().and_then(|downgrade| downgrade.reply) {
            reply.send(Ok(())).ok();
        }
    }

    /// Tells the guard that the store refuses to make it a read hold. The store is not asked again for this hold: otherwise
    /// each of an owner's guards would ask when it leaves.
    pub(crate) fn refuse_downgrade(&self, error: Error) {
        let mut state = self.state();
        state.downgradable = false;
        let Some(Downgrade { from, reply }) = state.downgrade.take() else { return };
        state.kind = from;
        drop(state);
        if let Some(reply) = reply {
            reply.send(Err(error)).ok();
        }
    }

    pub(crate) fn deadline(&self) -> Moment {
        self.state().deadline
    }

    /// Moves the deadline. `false` if the hold is lost or the deadline has passed: what was once said to be lost stays lost.
    pub(crate) fn extend(&self, deadline: Moment) -> bool {
        if self.loss().is_some() {
            return false;
        }
        self.set_deadline(&mut self.state(), deadline);
        true
    }

    /// Whether the last renewal reaches beyond the hold's end, so that no other is needed.
    pub(crate) fn outlasts_its_end(&self) -> bool {
        self.state().outlasts_end
    }

    fn set_deadline(&self, state: &mut State, deadline: Moment) {
        state.deadline = self.end.map_or(deadline, |end| end.min(deadline));
        state.outlasts_end = self.end.is_some_and(|end| end.since(deadline).is_zero());
    }

    /// Marks the hold as lost and tells everybody. The first reason stays.
    pub(crate) fn lose(&self, reason: LostReason) {
        let mut state = self.state();
        state.lost.get_or_insert(reason);
        // The keeper gives no answer any more. Dropping the senders tells the guards that wait for one.
        state.downgrade = None;
        state.farewell = None;
        let audience = std::mem::take(&mut state.audience);
        drop(state);
        self.lost.cancel();
        audience.iter().filter_map(Weak::upgrade).for_each(|token| token.cancel());
    }

    /// Reports that the deadline has passed while a call to the store was under way. No loss if the last guard has left
    /// already: its release is then told that the store has not confirmed.
    pub(crate) fn expire(&self) {
        let mut state = self.state();
        if !state.left {
            drop(state);
            return self.lose(LostReason::Expired);
        }
        let farewell = state.farewell.take();
        drop(state);
        if let Some(reply) = farewell {
            reply.send(Err(self.unanswered())).ok();
        }
    }

    /// The error of a release that the store has not confirmed in time.
    pub(crate) fn unanswered(&self) -> Error {
        let source = "the store did not answer before the lock's time was over".into();
        Error::Unavailable { store: self.store, source }
    }

    /// Reports that the keeper ends without having released. No loss if the last guard has left already.
    pub(crate) fn abandon(&self) {
        let left = self.state().left;
        if left {
            self.state().farewell = None;
        } else {
            self.lose(LostReason::Abandoned);
        }
    }

    /// Marks the hold as taken, because its first release found nothing in the store. `false` if it was lost already, or is
    /// past its deadline: then the store has rightly forgotten it.
    pub(crate) fn found_gone(&self) -> bool {
        let state = self.state();
        if state.lost.is_some() || state.deadline.has_passed() {
            return false;
        }
        drop(state);
        self.lose(LostReason::Taken);
        true
    }

    /// Cancels `token` when the hold is lost. Keeps it only as long as somebody else does.
    pub(crate) fn announce_loss_to(&self, token: &Arc<CancellationToken>) {
        let mut state = self.state();
        if state.lost.is_some() {
            drop(state);
            token.cancel();
        } else {
            // MultiLock guards come and go while the hold stays.
            state.audience.retain(|one| one.strong_count() > 0);
            state.audience.push(Arc::downgrade(token));
        }
    }

    /// The error of a hold that is lost, or whose keeper ended without an answer.
    pub(crate) fn lost_error(&self) -> Error {
        let reason = self.loss().unwrap_or(LostReason::Abandoned);
        Error::Lost { name: self.name.clone(), reason }
    }

    /// Whether and how the hold is lost. A deadline that has passed is a loss from then on, whoever notices it first; but not
    /// once the last guard has left, since what was let go is not lost.
    pub(crate) fn loss(&self) -> Option<LostReason> {
        let state = self.state();
        if state.lost.is_none() && !state.left && state.deadline.has_passed() {
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

impl State {
    fn wish_to_read(&mut self, reply: Option<oneshot::Sender<Result<()>>>) {
        let from = std::mem::replace(&mut self.kind, Kind::Read);
        self.downgrade = Some(Downgrade { from, reply });
    }
}
