//! A hold: the state that the guards of one grant and their keeper share. All code that changes
//! this state is in this file.

use std::{
    any::Any,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    Terms,
    detached::{DetachRequest, Detached},
    limits::{GrantTimes, Limits},
};
use crate::{
    contract::{Grant, Info, Request},
    kit::Moment,
    model::{ClaimId, Error, Kind, LockName, LostReason, Result, Token},
};

/// A hold, shared by its guards and its keeper.
pub(crate) struct Hold {
    pub(crate) name: LockName,
    pub(crate) id: ClaimId,
    pub(crate) store: &'static str,
    pub(crate) token: Option<Token>,
    /// The kind that the store granted. A downgrade does not change this field.
    pub(crate) kind: Kind,
    /// Time at which the reply with the grant had arrived.
    pub(crate) granted_at: Moment,
    /// See [`Info::driver_data`].
    pub(crate) driver_data: Option<Arc<dyn Any + Send + Sync>>,
    /// Cancelled when the hold is lost. Created on demand, because most holds need none.
    lost_token: OnceLock<CancellationToken>,
    /// Wakes the keeper when a guard has a request for it.
    keeper_wake: Notify,
    state: Mutex<State>,
}

struct State {
    /// The kind of the hold in the store. While a downgrade is in progress, the new kind.
    kind: Kind,
    limits: Limits,
    /// Time until which the store keeps the lock taken, even if the last guard is dropped earlier.
    taken_until: Option<Moment>,
    /// Set while the caller of a resumption has not received its hold. If the caller gives up, the
    /// hold returns to its ticket until this time. This field and others are boxed, because few
    /// holds have them and every held lock would reserve their memory.
    offered_until: Option<Box<Moment>>,
    lost: Option<LostReason>,
    /// Tokens of MultiLock guards, which are cancelled when the hold is lost. Weak, because such a
    /// guard may end before the hold does.
    loss_listeners: Vec<Weak<CancellationToken>>,
    /// Number of guards that hold exclusively.
    exclusive: u32,
    /// Number of guards that read.
    shared: u32,
    /// Whether the last guard was dropped or released, or was given the ticket of a detachment.
    is_unguarded: bool,
    /// Sends the last guard the result of its release. The keeper takes this sender when it begins
    /// to release.
    release_reply: Option<oneshot::Sender<Result<()>>>,
    /// Whether the store can turn the hold into a read hold. This is the case if it lists the kind
    /// and has not refused so far.
    is_downgradable: bool,
    /// Set while only shared guards are left but the store still has the exclusive hold.
    downgrade: Option<Box<Downgrade>>,
    /// Set while the only guard waits for its detachment.
    detach: Option<Box<DetachRequest>>,
}

/// A hold that is to become a read hold.
struct Downgrade {
    from: Kind,
    /// Sends the result to the guard that requested the downgrade. `None` if no guard requested it,
    /// because an owner released its last exclusive guard and keeps a shared one.
    reply: Option<oneshot::Sender<Result<()>>>,
}

/// A request of a guard to the keeper.
pub(crate) enum GuardRequest {
    /// Release the hold, and send the result to the guard that waits for it, if there is one.
    Release(Option<oneshot::Sender<Result<()>>>),
    /// Turn the hold into a read hold.
    Downgrade,
    /// Detach the hold for this time.
    Detach(Duration),
}

/// One of the two guard counts of a hold.
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

/// Result of a second `lock()` by the same owner.
pub(crate) enum Reentry {
    /// The hold counts one more guard on this side.
    Entered(Side),
    /// This hold has ended or is lost. A new claim must acquire the lock.
    Over,
    /// The owner holds a read lock and requests an exclusive one. The new claim would wait for the
    /// owner's own read hold.
    Deadlock,
}

impl Hold {
    /// Creates a hold that counts one guard already; the caller creates that guard.
    pub(super) fn new(
        Request { name, kind, id, .. }: &Request,
        info: &Info,
        terms: &Terms,
        grant: &Grant,
        times: GrantTimes,
    ) -> Self {
        let kind = *kind;
        let (exclusive, shared) = match Side::of(kind) {
            Side::Exclusive => (1, 0),
            Side::Shared => (0, 1),
        };
        let state = State {
            kind,
            limits: Limits::new(terms, grant, times.sent),
            taken_until: None,
            offered_until: None,
            lost: None,
            loss_listeners: Vec::new(),
            exclusive,
            shared,
            is_unguarded: false,
            release_reply: None,
            is_downgradable: info.downgrades.contains(&kind),
            downgrade: None,
            detach: None,
        };
        Self {
            name: name.clone(),
            id: *id,
            store: info.store,
            token: grant.token,
            kind,
            granted_at: times.arrived,
            driver_data: info.driver_data.clone(),
            lost_token: OnceLock::new(),
            keeper_wake: Notify::new(),
            state: Mutex::new(state),
        }
    }

    /// Returns the number of guards that share the hold.
    pub(crate) fn count(&self) -> usize {
        let state = self.state.lock();
        (state.exclusive + state.shared) as usize
    }

    /// Returns the time for which the lock is held without a further renewal.
    pub(crate) fn remaining(&self) -> Duration {
        if self.loss().is_some() { Duration::ZERO } else { self.deadline().remaining() }
    }

    /// Adds a guard for the same owner, without I/O.
    pub(crate) fn enter(&self, kind: Kind) -> Reentry {
        let mut state = self.state.lock();
        if state.is_unguarded
            || state.detach.is_some()
            || state.lost.is_some()
            || state.limits.deadline().has_passed()
        {
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

    /// Removes one guard, and wakes the keeper if there is a claim to release or to downgrade.
    /// Returns `true` if this was the last guard. The keeper then releases the claim and sends the
    /// result to `reply`.
    pub(crate) fn remove_guard(&self, side: Side, reply: Option<oneshot::Sender<Result<()>>>) -> bool {
        let mut state = self.state.lock();
        match side {
            Side::Exclusive => state.exclusive -= 1,
            Side::Shared => state.shared -= 1,
        }
        state.is_unguarded = state.exclusive + state.shared == 0;
        let is_unguarded = state.is_unguarded;
        if is_unguarded {
            state.release_reply = reply.filter(|_| state.lost.is_none());
        } else if state.is_downgradable && state.exclusive == 0 && state.kind != Kind::Read {
            state.request_downgrade(None);
        } else {
            return false;
        }
        drop(state);
        self.keeper_wake.notify_one();
        is_unguarded
    }

    /// Returns whether the store can turn the hold into a read hold. This is the case if it lists
    /// the kind and has not refused so far.
    pub(crate) fn is_downgradable(&self) -> bool {
        self.state.lock().is_downgradable
    }

    /// Counts an exclusive guard as a shared one. The receiver gets the result of the downgrade. If
    /// the hold is lost first, the receiver is closed without a result. Returns `None` if no
    /// request to the store is needed, because other guards are still exclusive.
    pub(crate) fn begin_downgrade(&self) -> Option<oneshot::Receiver<Result<()>>> {
        let mut state = self.state.lock();
        state.exclusive -= 1;
        state.shared += 1;
        if state.exclusive > 0 {
            return None;
        }
        let (reply, result) = oneshot::channel();
        if state.lost.is_some() {
            return Some(result);
        }
        state.request_downgrade(Some(reply));
        drop(state);
        self.keeper_wake.notify_one();
        Some(result)
    }

    /// Undoes [`begin_downgrade`](Self::begin_downgrade) after the store has refused.
    pub(crate) fn undo_downgrade(&self) {
        let mut state = self.state.lock();
        state.shared -= 1;
        state.exclusive += 1;
    }

    /// Requests that the keeper detach the hold. The receiver gets the result. If the hold is lost
    /// first, the receiver is closed without a result. Returns `None` if other guards share the
    /// hold.
    pub(crate) fn request_detach(&self, lasting: Duration) -> Option<oneshot::Receiver<Result<Detached>>> {
        let mut state = self.state.lock();
        if state.exclusive + state.shared > 1 {
            return None;
        }
        let (reply, result) = oneshot::channel();
        if state.lost.is_none() {
            state.detach = Some(Box::new(DetachRequest { lasting, reply }));
        }
        drop(state);
        self.keeper_wake.notify_one();
        Some(result)
    }

    /// Sends the guard the request with which the hold can be resumed. From then on the hold counts
    /// no guard, so that its owner can no longer enter it. Returns whether the guard has taken the
    /// request. If not, the guard was dropped.
    pub(crate) async fn confirm_detach(&self, request: Request) -> bool {
        let detach = {
            let mut state = self.state.lock();
            let detach = state.detach.take();
            state.is_unguarded |= detach.is_some();
            detach
        };
        let Some(detach) = detach else { return false };
        let (taken, is_taken) = oneshot::channel();
        detach.reply.send(Ok(Detached { request, taken })).is_ok() && is_taken.await.is_ok()
    }

    /// Reports to the guard that the store refuses to detach the hold.
    pub(crate) fn refuse_detach(&self, error: Error) {
        if let Some(detach) = self.state.lock().detach.take() {
            detach.reply.send(Err(error)).ok();
        }
    }

    /// Waits for the next request of a guard to the keeper. Without `may_change`, only a release is
    /// returned.
    ///
    /// # Cancel safety
    /// Dropping the future loses no request.
    pub(crate) async fn next_request(&self, may_change: bool) -> GuardRequest {
        loop {
            {
                let mut state = self.state.lock();
                if state.is_unguarded {
                    return GuardRequest::Release(state.release_reply.take());
                }
                if may_change && state.downgrade.is_some() {
                    return GuardRequest::Downgrade;
                }
                if let Some(detach) = state.detach.as_ref().filter(|_| may_change) {
                    return GuardRequest::Detach(detach.lasting);
                }
            }
            self.keeper_wake.notified().await;
        }
    }

    /// Reports to the guard that the store has turned the hold into a read hold.
    pub(crate) fn confirm_downgrade(&self) {
        if let Some(reply) = self.state.lock().downgrade.take().and_then(|downgrade| downgrade.reply) {
            reply.send(Ok(())).ok();
        }
    }

    /// Reports to the guard that the store refuses the downgrade. No further downgrade of this hold
    /// is requested. Otherwise each guard of an owner would request one when it leaves.
    pub(crate) fn refuse_downgrade(&self, error: Error) {
        let mut state = self.state.lock();
        state.is_downgradable = false;
        let Some(downgrade) = state.downgrade.take() else { return };
        state.kind = downgrade.from;
        drop(state);
        if let Some(reply) = downgrade.reply {
            reply.send(Err(error)).ok();
        }
    }

    /// Returns the deadline of the guards, which are lost when it passes.
    pub(crate) fn deadline(&self) -> Moment {
        self.state.lock().limits.deadline()
    }

    /// Returns the time until which the store keeps the claim without a renewal. It is later than
    /// the deadline by the margin. Before this time no other client can be granted the lock, unless
    /// the claim is released.
    pub(crate) fn kept_until(&self) -> Moment {
        self.state.lock().limits.kept_until()
    }

    /// Returns whether the deadline is earlier than the time until which the store keeps the claim.
    pub(crate) fn has_margin(&self) -> bool {
        self.state.lock().limits.has_margin()
    }

    /// Records that the store keeps the claim until `kept_until`, and moves the deadline
    /// accordingly. Returns `false` if the hold is lost or its deadline has passed, because a loss
    /// that was reported is final.
    pub(crate) fn extend(&self, kept_until: Moment) -> bool {
        let mut state = self.state.lock();
        if state.has_expired() {
            drop(state);
            self.lose(LostReason::Expired);
            return false;
        }
        if state.lost.is_some() {
            return false;
        }
        state.limits.extend(kept_until);
        true
    }

    /// Ends the hold at `end` if that is earlier than its deadline, without a margin.
    pub(crate) fn shorten(&self, end: Moment) {
        self.state.lock().limits.shorten(end);
    }

    /// Keeps the lock taken for at least this time from now, even if it is released earlier.
    pub(crate) fn keep_taken_for(&self, least: Duration) {
        let taken_until = &mut self.state.lock().taken_until;
        if taken_until.is_none_or(|until| until.remaining() < least) {
            *taken_until = Some(Moment::now().after(least));
        }
    }

    /// Lets the next release free the lock at once, whatever its minimum time.
    pub(crate) fn clear_taken_until(&self) {
        self.state.lock().taken_until = None;
    }

    /// Marks a hold that was taken over by ticket as not yet received by its caller. If the caller
    /// gives up, the hold returns to its ticket until `until`.
    pub(crate) fn offer_until(&self, until: Moment) {
        self.state.lock().offered_until = Some(Box::new(until));
    }

    /// Records that the caller has received the hold that it took over by ticket.
    pub(crate) fn accept(&self) {
        self.state.lock().offered_until = None;
    }

    /// Returns whether the caller of a resumption has not received the hold.
    pub(crate) fn is_offered(&self) -> bool {
        self.state.lock().offered_until.is_some()
    }

    /// Returns the end of the time for which the hold returns to its ticket. `None` if the caller
    /// of the resumption has received the hold, or if the hold was lost.
    pub(crate) fn offered_until(&self) -> Option<Moment> {
        let offered_until = self.state.lock().offered_until.as_deref().copied();
        offered_until.filter(|_| self.loss().is_none())
    }

    /// Returns the time until which the lock stays taken, even if it is released earlier. `None` if
    /// the hold was lost, because another claim may hold the lock.
    pub(crate) fn taken_until(&self) -> Option<Moment> {
        let taken_until = self.state.lock().taken_until;
        taken_until.filter(|_| self.loss().is_none())
    }

    /// Returns whether the last renewal reaches beyond the hold's end, so that no further renewal
    /// is needed.
    pub(crate) fn covers_end(&self) -> bool {
        self.state.lock().limits.covers_end()
    }

    /// Marks the hold as lost, and reports the loss to all its guards. Returns the reason that the
    /// guards report, which is the first one if the hold was already lost.
    ///
    /// After the deadline `Deleted` becomes `Expired`, because the store was then right to delete
    /// the claim.
    pub(crate) fn lose(&self, reason: LostReason) -> LostReason {
        let mut state = self.state.lock();
        let reason = match reason {
            LostReason::Deleted if state.limits.deadline().has_passed() => LostReason::Expired,
            reason => reason,
        };
        let reason = *state.lost.get_or_insert(reason);
        // The keeper sends no more replies. Dropping the senders wakes the guards that wait for
        // one.
        state.downgrade = None;
        state.detach = None;
        state.release_reply = None;
        let listeners = std::mem::take(&mut state.loss_listeners);
        drop(state);
        if let Some(token) = self.lost_token.get() {
            token.cancel();
        }
        listeners.iter().filter_map(Weak::upgrade).for_each(|token| token.cancel());
        reason
    }

    /// Ends the hold when its deadline passes during a call to the store. The hold is then lost,
    /// unless it has no guard any more. In that case the waiting release gets the error
    /// [`release_timeout`](Self::release_timeout).
    pub(crate) fn expire(&self) {
        let mut state = self.state.lock();
        if !state.is_unguarded {
            drop(state);
            self.lose(LostReason::Expired);
            return;
        }
        let reply = state.release_reply.take();
        drop(state);
        if let Some(reply) = reply {
            reply.send(Err(self.release_timeout())).ok();
        }
    }

    /// Returns the error of a release that the store has not confirmed in time.
    pub(crate) fn release_timeout(&self) -> Error {
        let source = "the store did not confirm the release before the time of the lock had ended".into();
        Error::Unavailable { store: self.store, source }
    }

    /// Ends the hold of a keeper that ends without a release of the claim. The hold is then lost,
    /// unless it has no guard any more.
    pub(crate) fn abandon(&self) {
        let is_unguarded = self.state.lock().is_unguarded;
        if is_unguarded {
            self.state.lock().release_reply = None;
        } else {
            self.lose(LostReason::Abandoned);
        }
    }

    /// Marks the hold as lost, because its first release found no claim in the store. Returns
    /// `false` if it was already lost, or if the store need not keep the claim any more.
    pub(crate) fn lose_before_release(&self) -> bool {
        let state = self.state.lock();
        if state.lost.is_some() || state.limits.kept_until().has_passed() {
            return false;
        }
        drop(state);
        self.lose(LostReason::Deleted);
        true
    }

    /// Returns the token that is cancelled when the hold is lost.
    pub(crate) fn lost_token(&self) -> &CancellationToken {
        let token = self.lost_token.get_or_init(CancellationToken::new);
        // A loss that was recorded before the token existed has not cancelled it. A later loss
        // does.
        if self.state.lock().lost.is_some() {
            token.cancel();
        }
        token
    }

    /// Cancels `token` when the hold is lost. Keeps only a weak reference to it.
    pub(crate) fn announce_loss_to(&self, token: &Arc<CancellationToken>) {
        let mut state = self.state.lock();
        if state.lost.is_some() {
            drop(state);
            token.cancel();
        } else {
            // Many MultiLock guards may begin and end during one hold.
            state.loss_listeners.retain(|listener| listener.strong_count() > 0);
            state.loss_listeners.push(Arc::downgrade(token));
        }
    }

    /// Returns the error of a hold that is lost, or whose keeper has ended without a reply.
    pub(crate) fn lost_error(&self) -> Error {
        let reason = self.loss().unwrap_or(LostReason::Abandoned);
        Error::Lost { name: self.name.clone(), reason }
    }

    /// Returns the reason if the hold is lost. If the deadline has passed, this call marks the hold
    /// as lost, unless it has no guard any more. A hold without a guard does not expire.
    pub(crate) fn loss(&self) -> Option<LostReason> {
        let state = self.state.lock();
        if state.has_expired() {
            drop(state);
            return Some(self.lose(LostReason::Expired));
        }
        state.lost
    }

    #[cfg(test)]
    pub(crate) fn loss_listeners(&self) -> usize {
        self.state.lock().loss_listeners.len()
    }
}

impl State {
    /// Returns whether the deadline has passed for a guard that has not reported a loss yet.
    fn has_expired(&self) -> bool {
        self.lost.is_none() && !self.is_unguarded && self.limits.deadline().has_passed()
    }

    fn request_downgrade(&mut self, reply: Option<oneshot::Sender<Result<()>>>) {
        let from = std::mem::replace(&mut self.kind, Kind::Read);
        self.downgrade = Some(Box::new(Downgrade { from, reply }));
    }
}
