//! A hold: what the guards of one grant and their keeper share. Over the usual length, so that all code that changes its
//! state is in one file.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::detached::{Detach, Detached};
use crate::{
    contract::{Info, Request},
    kit::Moment,
    model::{ClaimId, Error, Kind, LockName, LostReason, Result, Token},
};

/// A hold as its guards and its keeper share it.
pub(crate) struct Hold {
    pub(crate) name: LockName,
    pub(crate) id: ClaimId,
    pub(crate) store: &'static str,
    pub(crate) token: Option<Token>,
    /// The kind that the store granted. A downgrade does not change this field.
    pub(crate) kind: Kind,
    /// The end of its lease or of its `max_hold`: renewals do not prolong the hold beyond this.
    end: Option<Moment>,
    /// Cancelled when the hold is lost.
    pub(crate) lost: CancellationToken,
    /// Wakes the keeper when a guard asks for something.
    knock: Notify,
    state: Mutex<State>,
}

struct State {
    /// The kind that the hold has in the store; during a downgrade already the new kind.
    kind: Kind,
    deadline: Moment,
    /// The last renewal reaches beyond the hold's end, so no other renewal is needed.
    outlasts_end: bool,
    /// Until when the lock stays taken, although it is released before.
    stays_until: Option<Moment>,
    /// Set while a hold that was taken over by ticket has not reached its caller: end of the time for which the hold goes back
    /// to the ticket if the caller has given up.
    offered_until: Option<Moment>,
    lost: Option<LostReason>,
    /// The MultiLock guards to tell of the loss. Weak, because such a guard may go before the hold does.
    audience: Vec<Weak<CancellationToken>>,
    exclusive: usize,
    shared: usize,
    /// The last guard has left.
    left: bool,
    /// Sends the last guard the answer to its release. The keeper takes this when it begins to release.
    farewell: Option<oneshot::Sender<Result<()>>>,
    /// Whether the store can turn it into a read hold: it lists the kind, and has not refused so far.
    downgradable: bool,
    /// Set while only shared guards are left but the store still has the exclusive hold.
    downgrade: Option<Downgrade>,
    /// Set while the only guard asks to be detached.
    detach: Option<Detach>,
}

/// A hold that is to become a read hold.
struct Downgrade {
    from: Kind,
    /// Sends the answer to the guard that asked for the downgrade. `None` if no guard asked: an owner released its last
    /// exclusive guard and keeps a shared one.
    reply: Option<oneshot::Sender<Result<()>>>,
}

/// What the guards ask of the keeper.
pub(crate) enum Wish {
    /// Release the hold, and send the answer to the guard that waits for it, if one does.
    Leave(Option<oneshot::Sender<Result<()>>>),
    /// Turn the hold into a read hold.
    Downgrade,
    /// Let the hold go on by itself for so long.
    Detach(Duration),
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

/// The result of a second `lock()` by the same owner.
pub(crate) enum Reentry {
    /// The hold counts one more guard on this side.
    Entered(Side),
    /// This hold is over or lost: a new claim must take the lock.
    Over,
    /// The owner only reads and wants to write: the write claim would wait for the owner's own read hold.
    Deadlock,
}

impl Hold {
    /// A new hold, which counts one guard already; the caller makes that guard. It is granted until `deadline`, and
    /// renewals prolong it until `end` at the longest.
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
            stays_until: None,
            offered_until: None,
            lost: None,
            audience: Vec::new(),
            exclusive,
            shared,
            left: false,
            farewell: None,
            downgradable: info.downgrades.contains(&kind),
            downgrade: None,
            detach: None,
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

    /// How many guards share the hold.
    pub(crate) fn count(&self) -> usize {
        let state = self.state();
        state.exclusive + state.shared
    }

    /// How long the lock is held without another renewal.
    pub(crate) fn remaining(&self) -> Duration {
        if self.loss().is_some() { Duration::ZERO } else { self.deadline().remaining() }
    }

    /// Adds a guard for the same owner, without asking the store.
    pub(crate) fn enter(&self, kind: Kind) -> Reentry {
        let mut state = self.state();
        if state.left || state.detach.is_some() || state.lost.is_some() || state.deadline.has_passed() {
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

    /// Removes one guard, and wakes the keeper if there is something to release or to downgrade. `true` if this was the
    /// last guard: the keeper then releases and answers through `farewell`.
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

    /// Counts an exclusive guard as a shared one. The receiver gets the store's answer. If the hold is lost before, the
    /// receiver is closed without an answer. `None` if the store need not be asked, because other guards are still
    /// exclusive.
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

    /// Asks the keeper to let the hold go on by itself. The receiver gets the answer. If the hold is lost before, it is closed
    /// without one. `None` if other guards share the hold.
    pub(crate) fn ask_to_detach(&self, lasting: Duration) -> Option<oneshot::Receiver<Result<Detached>>> {
        let mut state = self.state();
        if state.exclusive + state.shared > 1 {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        if state.lost.is_none() {
            state.detach = Some(Detach { lasting, reply });
        }
        drop(state);
        self.knock.notify_one();
        Some(answer)
    }

    /// Gives the guard what it needs to take the hold back later. From then on the guard counts as gone, so that its owner
    /// cannot enter the hold any more. Returns whether the guard has taken what it was given: if not, it was dropped.
    pub(crate) async fn confirm_detach(&self, request: Request) -> bool {
        let detach = {
            let mut state = self.state();
            let detach = state.detach.take();
            state.left |= detach.is_some();
            detach
        };
        let Some(detach) = detach else { return false };
        let (taken, is_taken) = oneshot::channel();
        detach.reply.send(Ok(Detached { request, taken })).is_ok() && is_taken.await.is_ok()
    }

    /// Tells the guard that the store refuses to let the hold go on by itself.
    pub(crate) fn refuse_detach(&self, error: Error) {
        if let Some(detach) = self.state().detach.take() {
            detach.reply.send(Err(error)).ok();
        }
    }

    /// Waits until a guard asks the keeper for something. If not `may_change`, only a guard that leaves is heard. Dropping the
    /// future loses no wish.
    pub(crate) async fn wish(&self, may_change: bool) -> Wish {
        loop {
            {
                let mut state = self.state();
                if state.left {
                    return Wish::Leave(state.farewell.take());
                }
                if may_change && state.downgrade.is_some() {
                    return Wish::Downgrade;
                }
                if let Some(detach) = state.detach.as_ref().filter(|_| may_change) {
                    return Wish::Detach(detach.lasting);
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

    /// Moves the deadline. `false` if the hold is lost or its deadline has passed: a hold that was reported lost never
    /// comes back.
    pub(crate) fn extend(&self, deadline: Moment) -> bool {
        if self.loss().is_some() {
            return false;
        }
        self.set_deadline(&mut self.state(), deadline);
        true
    }

    /// Moves the deadline nearer, if it is later than this.
    pub(crate) fn shorten(&self, deadline: Moment) {
        let mut state = self.state();
        let earlier = state.deadline.min(deadline);
        self.set_deadline(&mut state, earlier);
    }

    /// Leaves the lock taken for so long from now, although it is released before.
    pub(crate) fn stay_for(&self, least: Duration) {
        let stays_until = &mut self.state().stays_until;
        if stays_until.is_none_or(|until| until.remaining() < least) {
            *stays_until = Some(Moment::now().after(least));
        }
    }

    /// Marks a hold that was taken over by ticket as not yet received by its caller.
    pub(crate) fn offer_until(&self, until: Moment) {
        self.state().offered_until = Some(until);
    }

    /// The caller has received the hold that it took over by ticket.
    pub(crate) fn accept(&self) {
        self.state().offered_until = None;
    }

    /// Whether its caller has not received it.
    pub(crate) fn is_offered(&self) -> bool {
        self.state().offered_until.is_some()
    }

    /// End of the time for which the hold goes back to its ticket. `None` if its caller has received it, or it was lost.
    pub(crate) fn offered_until(&self) -> Option<Moment> {
        let offered_until = self.state().offered_until;
        offered_until.filter(|_| self.loss().is_none())
    }

    /// Until when the lock stays taken although it is released. `None` for a hold that was lost, which somebody else may have.
    pub(crate) fn stays_until(&self) -> Option<Moment> {
        let stays_until = self.state().stays_until;
        stays_until.filter(|_| self.loss().is_none())
    }

    /// Whether the last renewal reaches beyond the hold's end, so that no other is needed.
    pub(crate) fn outlasts_its_end(&self) -> bool {
        self.state().outlasts_end
    }

    fn set_deadline(&self, state: &mut State, deadline: Moment) {
        state.deadline = self.end.map_or(deadline, |end| end.min(deadline));
        state.outlasts_end = self.end.is_some_and(|end| end.since(deadline).is_zero());
    }

    /// Marks the hold as lost and tells all its guards. If the hold was lost already, the first reason stays.
    ///
    /// A hold past its deadline has expired, whatever a late answer says: the store has rightly forgotten it.
    pub(crate) fn lose(&self, reason: LostReason) {
        let mut state = self.state();
        let reason = match reason {
            LostReason::Taken if state.deadline.has_passed() => LostReason::Expired,
            reason => reason,
        };
        state.lost.get_or_insert(reason);
        // The keeper gives no answer any more. Dropping the senders tells the guards that wait for one.
        state.downgrade = None;
        state.detach = None;
        state.farewell = None;
        let audience = std::mem::take(&mut state.audience);
        drop(state);
        self.lost.cancel();
        audience.iter().filter_map(Weak::upgrade).for_each(|token| token.cancel());
    }

    /// Reports that the deadline has passed while a call to the store was under way. This is a loss unless the last guard
    /// has left already. In that case the release that waits gets the error [`unanswered`](Self::unanswered).
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

    /// Reports that the keeper ends without having released the claim. This is a loss unless the last guard has left
    /// already.
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

    /// Cancels `token` when the hold is lost. Keeps only a weak reference to it.
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

    /// Whether and how the hold is lost. If the deadline has passed, this call marks the hold as lost, unless the last
    /// guard has left already: a hold that was let go cannot be lost.
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
        // A poisoned mutex is no danger: no code of this file panics between two changes of the state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wish_to_read(&mut self, reply: Option<oneshot::Sender<Result<()>>>) {
        let from = std::mem::replace(&mut self.kind, Kind::Read);
        self.downgrade = Some(Downgrade { from, reply });
    }
}
