//! Several claims of one client that are asked for in one request. Each then has a keeper of its own, like any other claim.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt as _;
use tokio::sync::oneshot;

use super::{Keeper, Outcome, Stake, keeper::start, observe, observe::Begun};
use crate::{contract::AttemptAll, kit::Moment};

/// What became of claims that were asked for together.
pub(crate) enum Joint {
    /// Every claim holds its lock.
    Granted(Vec<Stake>),
    /// The claim at this place would have to wait. Nothing of the claims is in the store.
    Busy(usize),
    /// What the store did is unknown. Each claim now asks by itself, and here come the answers. A claim that the store did
    /// grant gets the same grant again.
    Apart(Vec<oneshot::Receiver<Outcome>>),
}

impl Keeper {
    /// Starts a task that asks for all these claims in one request, and then a keeper for each claim that is granted. The
    /// claims are those of single tries, and of one client. If `reply` is closed, everything that was granted is released.
    pub(crate) fn start_together(keepers: Vec<Self>, reply: oneshot::Sender<Joint>) {
        if let Some(first) = keepers.first() {
            let client = Arc::clone(&first.client);
            start(&client.tasks, ask_together(keepers, reply));
        }
    }
}

async fn ask_together(keepers: Vec<Keeper>, mut reply: oneshot::Sender<Joint>) {
    let first = &keepers[0];
    let client = Arc::clone(&first.client);
    // The client may have been closed between the call and the start of this task. Each keeper then says so.
    if client.closing.is_cancelled() {
        reply.send(apart(keepers, Keeper::start)).ok();
        return;
    }
    let begun = Begun::now();
    // One request, and one admission.
    let permit = tokio::select! {
        biased;
        permit = client.admit() => permit,
        () = reply.closed() => return,
        () = client.closing.cancelled() => {
            reply.send(apart(keepers, Keeper::start)).ok();
            return;
        }
    };
    let sent = Moment::now();
    let requests = keepers.iter().map(|keeper| keeper.request.clone()).collect();
    // This call is never dropped in flight, because its outcome decides what there is to release.
    let asked = AssertUnwindSafe(client.store.backend.attempt_all(requests)).catch_unwind().await;
    drop(permit);
    let joint = match asked.unwrap_or_else(|_| Err(first.panicked())) {
        Ok(AttemptAll::Busy(at)) => {
            let at = at.min(keepers.len() - 1);
            observe::contest_over(&keepers[at].request, keepers[at].info(), begun, "busy");
            Joint::Busy(at)
        }
        Ok(AttemptAll::Granted(claims))
            if claims.len() == keepers.len()
                && claims.iter().all(|(_, grant)| !sent.after(grant.valid_for).has_passed()) =>
        {
            let kept = keepers.into_iter().zip(claims).map(|(keeper, (claim, grant))| {
                observe::contest_over(&keeper.request, keeper.info(), begun, "granted");
                Box::new(keeper).start_to_keep(claim, grant, sent)
            });
            Joint::Granted(kept.collect())
        }
        failed => {
            // An `Ok` here is a grant that had expired before its answer came.
            let error = failed.err().unwrap_or_else(|| first.too_late(sent));
            // Another error comes again when the claims ask by themselves.
            if error.is_transient() {
                observe::failed(&first.request, first.info(), "attempt", &error);
            }
            apart(keepers, Keeper::start_again)
        }
    };
    // If the caller is gone, this drops the stakes, which releases the holds like any dropped guard.
    reply.send(joint).ok();
}

fn apart(keepers: Vec<Keeper>, start: fn(Box<Keeper>, oneshot::Sender<Outcome>)) -> Joint {
    let answers = keepers.into_iter().map(|keeper| {
        let (reply, answer) = oneshot::channel();
        start(Box::new(keeper), reply);
        answer
    });
    Joint::Apart(answers.collect())
}
