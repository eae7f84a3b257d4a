//! Joint attempts: several claims of one client in one request. Each granted claim then has its own
//! keeper, like any other claim.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt as _;
use tokio::sync::oneshot;

use super::{
    HoldRef, Keeper, Outcome, client::Admitted, keeper::start, limits::GrantTimes, observe,
    observe::StartTime,
};
use crate::{
    contract::AttemptAll,
    kit::Moment,
    model::{Error, Result},
};

/// Outcome of a joint attempt.
pub(crate) enum JointOutcome {
    /// Every claim holds its lock.
    Granted(Vec<HoldRef>),
    /// The claim with this index would have to wait. The store has no entry of any of the claims.
    Busy(usize),
    /// The outcome of the request is unknown. Each claim now sends its own attempt, and these
    /// receivers get the results. If the store did grant a claim, the claim gets the same grant
    /// again.
    Separate(Vec<oneshot::Receiver<Outcome>>),
}

impl Keeper {
    /// Starts a task that requests all these claims in one step, and then starts a keeper for each
    /// granted claim. The claims must be single tries of one client. If `reply` is closed, all
    /// granted claims are released.
    pub(crate) fn start_together(keepers: Vec<Self>, reply: oneshot::Sender<JointOutcome>) {
        if let Some(first) = keepers.first() {
            let client = Arc::clone(&first.client);
            start(&client.tasks, attempt_together(keepers, reply));
        }
    }
}

async fn attempt_together(mut keepers: Vec<Keeper>, mut reply: oneshot::Sender<JointOutcome>) {
    let first = &keepers[0];
    let client = Arc::clone(&first.client);
    // The client may have been closed between the call and the start of this task. Each keeper then
    // reports it.
    if client.closing.is_cancelled() {
        reply.send(separate(keepers, Keeper::start)).ok();
        return;
    }
    let start_time = StartTime::now();
    // One admission for one request.
    let permit = tokio::select! {
        biased;
        permit = client.admit(Admitted::FirstAttempt) => permit,
        () = reply.closed() => return,
        () = client.closing.cancelled() => {
            reply.send(separate(keepers, Keeper::start)).ok();
            return;
        }
    };
    let (sent, call_start) = (Moment::now(), StartTime::now());
    let requests = keepers.iter().map(|keeper| keeper.request.clone()).collect();
    // This call is never dropped in flight, because its outcome decides what to release.
    let attempt = AssertUnwindSafe(client.store.backend.attempt_all(requests)).catch_unwind().await;
    drop(permit);
    let attempt = attempt.unwrap_or_else(|_| Err(first.panicked()));
    observe::called(first.info(), "attempt", call_start, &attempt);
    let times = GrantTimes::since(sent);
    let outcome = match attempt.and_then(|attempt| in_time(attempt, &keepers, times)) {
        Ok(AttemptAll::Busy(at)) => {
            let at = at.min(keepers.len() - 1);
            observe::acquisition_ended(&keepers[at], start_time, "busy");
            JointOutcome::Busy(at)
        }
        Ok(AttemptAll::Granted(claims)) => {
            let kept = keepers.into_iter().zip(claims).map(|(keeper, (claim, grant))| {
                observe::acquisition_ended(&keeper, start_time, "granted");
                Box::new(keeper).start_granted(claim, grant, times)
            });
            JointOutcome::Granted(kept.collect())
        }
        Err(error) => {
            // A permanent error occurs again, and is reported, when each claim sends its attempt.
            if error.is_transient() {
                observe::failed(first, "attempt", &error);
            }
            // No claim reports whether the connection of the joint attempt broke. If it did, the
            // store may execute the attempt until this time.
            let late_until = Some(sent.after(first.info().late_for));
            keepers.iter_mut().for_each(|keeper| keeper.late_until = late_until);
            separate(keepers, Keeper::start_retry)
        }
    };
    // If the caller has given up, this drops the references, which releases the holds like any
    // dropped guard.
    reply.send(outcome).ok();
}

/// Returns an error if a keeper has no grant, or a grant that arrived too late.
fn in_time(attempt: AttemptAll, keepers: &[Keeper], times: GrantTimes) -> Result<AttemptAll> {
    let AttemptAll::Granted(claims) = &attempt else { return Ok(attempt) };
    if claims.len() != keepers.len() {
        let source = format!("its driver granted {} locks instead of {}", claims.len(), keepers.len());
        return Err(Error::Unavailable { store: keepers[0].info().store, source: source.into() });
    }
    let mut pairs = keepers.iter().zip(claims);
    pairs.try_for_each(|(keeper, (_, grant))| keeper.check_in_time(grant, times))?;
    Ok(attempt)
}

fn separate(keepers: Vec<Keeper>, start: fn(Box<Keeper>, oneshot::Sender<Outcome>)) -> JointOutcome {
    let results = keepers.into_iter().map(|keeper| {
        let (reply, result) = oneshot::channel();
        start(Box::new(keeper), reply);
        result
    });
    JointOutcome::Separate(results.collect())
}
