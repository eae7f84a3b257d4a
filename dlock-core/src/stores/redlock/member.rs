//! The claims of a RedLock claim on one member: their calls, their releases and their ids.
//! `hold.rs` has the state of the hold on the member.

use std::{
    future::{pending, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use super::{
    call::{CallInFlight, Operation, Reply, member_failed, start_call},
    hold::MemberHold,
    ids,
    resuming::ResumingClaim,
};
use crate::{
    contract::{Backend, Claim, Release, Request},
    engine,
    kit::Moment,
    model::ClaimId,
};

/// The member claims of one RedLock claim: its claims on one member, one after another. At most one
/// of them is in use, and earlier ones are released in the background.
///
/// **Every member claim has a different id.** A member claim that was released, or that the member
/// has forgotten, is never attempted again. Otherwise a late release of it could remove the grant
/// of a later attempt. The next attempt is a new member claim with a new id, to which no late
/// request applies. The ids of the claims on different members differ too, because two members may
/// be one server under two names. With one id, that server would grant twice and count as two
/// members.
pub(super) struct MemberClaims {
    backend: Arc<dyn Backend>,
    request: Request,
    /// Index of the member. Part of the claim's id.
    index: u8,
    /// Number of claims created on this member so far. The number before its creation is a part of
    /// a claim's id.
    claims: u16,
    state: State,
    pub(super) hold: MemberHold,
    /// End of the time for which the member may keep the claim because of a detachment, if the
    /// claim has not been renewed since.
    detached_until: Option<Moment>,
    /// Background releases of earlier claims on this member. The tracker is closed, so that a wait
    /// for it can end.
    releases: TaskTracker,
    /// Background releases that [`Backend::close`] waits for. Each leaves the tracker with its
    /// first reply.
    unanswered_releases: TaskTracker,
}

enum State {
    /// A claim without a call in flight.
    Idle(Box<dyn Claim>),
    InFlight {
        operation: Operation,
        call: CallInFlight,
        /// Whether the round of the call has ended. The call then continues in the background.
        is_late: bool,
    },
    /// A claim that is never attempted again, because the member has forgotten it or has not
    /// confirmed its release.
    Ended(Box<dyn Claim>),
    /// No claim. A release waits until all earlier claims are released. This future may be dropped
    /// at any time.
    Draining(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// No claim. Earlier claims may still be being released in the background.
    None,
}

impl MemberClaims {
    pub(super) fn new(
        index: usize,
        backend: Arc<dyn Backend>,
        request: Request,
        unanswered_releases: TaskTracker,
    ) -> Self {
        let releases = closed_tracker();
        let index = index.to_le_bytes()[0];
        Self {
            backend,
            request,
            index,
            claims: 0,
            state: State::None,
            hold: MemberHold::default(),
            detached_until: None,
            releases,
            unanswered_releases,
        }
    }

    /// Returns the identity of the member's store.
    pub(super) fn identity(&self) -> &str {
        &self.backend.info().identity
    }

    /// Returns the next request to the member, which is a renewal if it holds, and otherwise an
    /// attempt.
    ///
    /// A member that holds never gets another attempt, because it may have lost the claim since its
    /// last reply. An attempt would then get a new grant, and without tokens the reply would not
    /// show the gap.
    pub(super) fn next_operation(&self) -> Operation {
        if self.hold.is_held() { Operation::Renew } else { Operation::Attempt }
    }

    /// Sends a request to the member. While a request other than a release is in flight, ignores
    /// every operation except a release. The release is sent after the reply to that request.
    pub(super) fn send(&mut self, operation: Operation) {
        match operation {
            Operation::Release => self.send_release(),
            Operation::Attempt | Operation::Renew | Operation::Detach(..) | Operation::Resume(_) => {
                self.send_operation(operation)
            }
        }
    }

    fn send_operation(&mut self, operation: Operation) {
        if matches!(self.state, State::Ended(_) | State::InFlight { operation: Operation::Release, .. }) {
            self.release_in_background();
        }
        self.state = match std::mem::replace(&mut self.state, State::None) {
            State::None | State::Draining(_) if operation == Operation::Attempt => {
                let request = self.fresh_request();
                let claim = self.backend.claim(request);
                State::InFlight { operation, call: start_call(claim, operation), is_late: false }
            }
            State::Idle(claim) => {
                if let Operation::Detach(lasting, _) = operation {
                    let until = Moment::now().after(lasting);
                    self.detached_until = Some(until);
                    // Even if the reply is lost, the member may keep the claim for no longer than
                    // this.
                    self.hold.shorten(until);
                }
                State::InFlight { operation, call: start_call(claim, operation), is_late: false }
            }
            other => other,
        };
    }

    fn send_release(&mut self) {
        self.hold.clear();
        let operation = Operation::Release;
        let release = match std::mem::replace(&mut self.state, State::None) {
            State::InFlight { operation: Operation::Release, call, is_late } => {
                self.state = State::InFlight { operation, call, is_late };
                return;
            }
            State::Idle(claim) | State::Ended(claim) => start_call(claim, operation),
            State::InFlight { call, .. } => Box::pin(async move {
                match call.await {
                    (Some(claim), _) => start_call(claim, operation).await,
                    no_claim => no_claim,
                }
            }),
            State::None | State::Draining(_) => {
                if !self.releases.is_empty() {
                    let others = self.releases.clone();
                    self.state = State::Draining(Box::pin(async move { others.wait().await }));
                }
                return;
            }
        };
        // Returns `Released` only after the earlier claims were released too, so that the member
        // has no entry of this RedLock claim any more.
        let others = self.releases.clone();
        let call = Box::pin(async move {
            let (claim, reply) = release.await;
            if matches!(reply, Reply::Released(_)) {
                others.wait().await;
            }
            (claim, reply)
        });
        self.state = State::InFlight { operation, call, is_late: false };
    }

    /// Announces the release of the claim, unless a call is in flight.
    pub(super) fn leave(&mut self) {
        if let State::Idle(claim) | State::Ended(claim) = &mut self.state {
            claim.leave();
        }
    }

    /// Releases the claim in a background task, which repeats the release until the member has
    /// confirmed it or has forgotten the claim by itself. The next attempt creates a new claim.
    pub(super) fn release_in_background(&mut self) {
        self.hold.clear();
        let state = std::mem::replace(&mut self.state, State::None);
        if matches!(state, State::Draining(_) | State::None) {
            return;
        }
        // A release in flight already waits for all tasks in `releases`. The task below continues
        // that release. In the same tracker it would wait for itself, so a new one tracks it.
        let is_release = matches!(state, State::InFlight { operation: Operation::Release, .. });
        let others = is_release.then(|| std::mem::replace(&mut self.releases, closed_tracker()));
        let detached = self.detached_until.take().map(Moment::remaining).unwrap_or_default();
        let (backend, forgotten_after) = (Arc::clone(&self.backend), self.request.ttl + detached);
        let request = self.request_of_claim();
        // `Backend::close` need not wait for a release that was in flight already, because its
        // round has waited for this member.
        let mut waited_for = (!is_release).then(|| self.unanswered_releases.token());
        let release = async move {
            let claim = match state {
                State::Draining(_) | State::None => return,
                State::Idle(claim) | State::Ended(claim) => Some(claim),
                State::InFlight { call, .. } => match call.await {
                    (claim, Reply::Released(_)) => {
                        let late_for = claim.map(|claim| claim.late_for()).unwrap_or_default();
                        return settle_in_background(backend, request, late_for);
                    }
                    (claim, _) => claim,
                },
            };
            if let Some(mut claim) = claim {
                let on_failure = |_| waited_for = None;
                engine::release_until_forgotten(claim.as_mut(), backend.info(), forgotten_after, on_failure)
                    .await;
                settle_in_background(backend, request, claim.late_for());
            }
            // If the release in flight failed, it has not waited for the earlier claims.
            if let Some(others) = others {
                others.wait().await;
            }
        };
        drop(engine::run_to_end(self.releases.track_future(release)));
    }

    /// Returns the request of the next claim, with an id that no claim on any member has had.
    fn fresh_request(&mut self) -> Request {
        let request = self.request.clone().id(ids::of_member(self.request.id, self.index, self.claims));
        self.claims = self.claims.wrapping_add(1);
        request
    }

    /// Returns the request of the last claim.
    fn request_of_claim(&self) -> Request {
        let claim = self.claims.wrapping_sub(1);
        self.request.clone().id(ids::of_member(self.request.id, self.index, claim))
    }

    /// Returns the member's part of the locator, for the client that resumes a detached hold. It
    /// says whether the hold is based on this member.
    pub(super) fn locator(&self) -> &'static str {
        if self.hold.vote_until().is_some() { "v" } else { "n" }
    }

    /// Creates the claim that will resume or release this member's part of a detached hold. Does
    /// nothing if the [`locator`](Self::locator) says that the hold is not based on this member.
    /// Sends no request.
    pub(super) fn claim_from_locator(&mut self, locator: &str) {
        if locator == "v" {
            let request = self.fresh_request();
            self.state = State::Idle(Box::new(ResumingClaim::new(self.backend.claim(request))));
        }
    }

    /// Returns the id under which this member keeps the hold that is detached as `ticket`. A
    /// release by ticket creates a RedLock claim with the ticket's id. This is the id of that
    /// claim's first claim on this member (number 0), so the release finds the hold.
    pub(super) fn ticket(&self, ticket: ClaimId) -> ClaimId {
        ids::of_member(ticket, self.index, 0)
    }

    /// Records that the member may keep the hold for its ticket until `until`. The release is
    /// repeated until then.
    pub(super) fn set_detached_until(&mut self, until: Moment) {
        self.detached_until = Some(until);
    }

    /// Returns whether the member's store may have an entry of this RedLock claim.
    pub(super) fn may_have_entry(&self) -> bool {
        !matches!(self.state, State::None) || !self.releases.is_empty()
    }

    /// Returns whether a reply is outstanding.
    pub(super) fn is_in_flight(&self) -> bool {
        matches!(self.state, State::InFlight { .. } | State::Draining(_))
    }

    /// Polls for the reply to the last request, and updates the state of the hold. May be called
    /// again after `Pending` or a reply.
    pub(super) fn poll_reply(&mut self, context: &mut Context<'_>) -> Poll<Reply> {
        if let State::Draining(others) = &mut self.state {
            std::task::ready!(others.as_mut().poll(context));
            self.state = State::None;
            return Poll::Ready(Reply::Released(Release::Done));
        }
        let State::InFlight { call, operation, .. } = &mut self.state else { return Poll::Pending };
        let Poll::Ready((claim, reply)) = call.as_mut().poll(context) else { return Poll::Pending };
        let is_end = *operation == Operation::Release || matches!(reply, Reply::Lost);
        if let (Some(claim), Reply::Released(_)) = (&claim, &reply) {
            let late_for = claim.late_for();
            settle_in_background(Arc::clone(&self.backend), self.request_of_claim(), late_for);
        }
        self.state = match (claim, &reply) {
            (None, _) | (_, Reply::Released(_)) => State::None,
            (Some(claim), _) if is_end => State::Ended(claim),
            (Some(claim), _) => State::Idle(claim),
        };
        if let Reply::Renewed { .. } | Reply::Resumed { .. } = reply {
            self.detached_until = None;
        }
        self.hold.record(&reply);
        Poll::Ready(reply)
    }

    /// Continues a call without a reply in time as a task, because a call to a driver is never
    /// dropped in flight.
    pub(super) fn finish_in_background(&mut self) {
        if let State::InFlight { call, is_late: is_late @ false, .. } = &mut self.state {
            let in_flight = std::mem::replace(call, Box::pin(pending()));
            let task = engine::run_to_end(in_flight);
            let reply = async move { task.await.unwrap_or_else(|_| (None, Reply::Unknown(member_failed()))) };
            *call = Box::pin(reply);
            *is_late = true;
        }
    }

    /// Reads a reply that arrived after its round, and begins a new round.
    pub(super) fn take_late_reply(&mut self) {
        if matches!(self.state, State::InFlight { is_late: true, .. }) {
            // Without a reply so far, the next `round` or `changed` polls for it with a real waker.
            let _ = self.poll_reply(&mut Context::from_waker(Waker::noop()));
        }
        self.hold.begin_round();
    }

    /// Returns when another attempt may have a new result, which is after a hint of the member or a
    /// late reply that grants.
    pub(super) async fn changed(&mut self) {
        match &mut self.state {
            State::Idle(claim) => claim.changed().await,
            State::InFlight { operation: Operation::Attempt, .. } => {
                let reply = poll_fn(|context| self.poll_reply(context)).await;
                if !matches!(reply, Reply::Granted { .. }) {
                    pending::<()>().await;
                }
            }
            State::InFlight { .. } | State::Ended(_) | State::Draining(_) | State::None => pending().await,
        }
    }
}

/// Creates a tracker that can be waited for while it is in use.
pub(super) fn closed_tracker() -> TaskTracker {
    let tasks = TaskTracker::new();
    tasks.close();
    tasks
}

/// Removes what late requests of a released claim create, `late_for` from now. Nothing waits for
/// this. A client that is closed before leaves the claim on this member for a ttl.
fn settle_in_background(backend: Arc<dyn Backend>, request: Request, late_for: Duration) {
    if late_for.is_zero() {
        return;
    }
    drop(engine::run_to_end(async move {
        sleep(late_for).await;
        let ttl = request.ttl;
        let mut claim = backend.claim(request);
        engine::release_until_forgotten(claim.as_mut(), backend.info(), ttl, |_| {}).await;
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{Kind, LockName},
        stores::memory::MemoryBackend,
    };

    fn member(index: usize, id: ClaimId) -> MemberClaims {
        let name = LockName::new("x").expect("legal");
        let request = Request::new(name, Kind::Mutex, Duration::from_secs(30)).id(id);
        MemberClaims::new(index, Arc::new(MemoryBackend::new()), request, TaskTracker::new())
    }

    #[test]
    fn claims_of_members_have_different_ids_that_identify_their_redlock_claim() {
        let id = ClaimId::random();
        let mut ids = Vec::new();
        for index in 0..5 {
            let mut member = member(index, id);
            ids.extend((0..300).map(|_| member.fresh_request().id));
        }
        assert!(ids.iter().all(|one| ids::is_same_claim(&one.to_string(), &id.to_string())));
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 1500);
    }
}
