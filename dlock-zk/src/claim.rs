//! One claim, which is a node in its lock's directory.
//!
//! `claim/attempt.rs` makes an attempt and sets the watches of a waiter, `claim/hold.rs` verifies a
//! hold for its renewal, and `claim/node.rs` creates, finds and downgrades the node.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Error, Result,
    driver::{Attempt, Claim, Moment, Release, Renewal, Request},
};
use futures_util::future::BoxFuture;
use tokio::time::timeout;

use self::hold::OwnNode;
use crate::{client::Client, error::STORE, queue::Queue, session::Session, wake::Watch};

mod attempt;
mod hold;
mod node;

pub(crate) use self::node::token_of;

/// Result of an attempt that needs no timed retry, because a watch reports the change or the caller
/// does not wait.
const BUSY_UNTIL_HINT: Attempt = Attempt::Busy { retry_in: Duration::MAX };

/// One claim of a client.
pub(crate) struct ZooKeeperClaim {
    client: Arc<Client>,
    request: Request,
    /// Session of the claim's node. A claim never spans two sessions.
    session: Option<Arc<Session>>,
    /// Snapshot of the queue. Kept while the claim waits, so that other claims of the client share
    /// it.
    queue: Option<Arc<Queue>>,
    /// Number of listings of `queue` that were sent before the claim created its node. They may show
    /// an older node of the same name.
    lists_before_node: u64,
    /// Watches on nodes ahead. At least one of these nodes must be deleted before the claim can
    /// hold the lock.
    ahead: Vec<Watch>,
    /// Whether the session had no room for some of the watches.
    lacks_watches: bool,
    /// Watch on the claim's own node while it holds the lock.
    own: Option<Watch>,
    /// Name of the claim's own node, and a read of it that was still in flight when its renewal
    /// ended.
    pending_read: Option<(String, BoxFuture<'static, Result<OwnNode>>)>,
}

impl ZooKeeperClaim {
    pub(crate) fn new(client: Arc<Client>, request: Request) -> Self {
        Self {
            client,
            request,
            session: None,
            queue: None,
            lists_before_node: 0,
            ahead: Vec::new(),
            lacks_watches: false,
            own: None,
            pending_read: None,
        }
    }

    /// Returns the time limit of an attempt.
    ///
    /// It is generous, because the session may be reconnecting. But the next attempt of a waiting
    /// claim must begin before the ttl has passed. Otherwise the reaper deletes the claim.
    fn attempt_timeout(&self) -> Duration {
        self.client.config.timeout.min(self.request.ttl * 3 / 4)
    }

    /// Returns the session of the claim, with room for its node.
    ///
    /// If the claim's session is over, the claim starts again in another session. A read claim that
    /// downgrades a hold uses the session of the hold.
    async fn choose_session(&mut self, directory: &Arc<str>) -> Result<Arc<Session>> {
        let id = self.request.id;
        if let Some(session) = self.session.take_if(|session| session.end_if_silent()) {
            session.forget(id);
            self.leave_session();
        }
        let bytes = self.client.path_bytes(directory, &self.request);
        if let Some(session) = &self.session {
            if session.paths.reserve(id, bytes) {
                return Ok(Arc::clone(session));
            }
            // The claim has no node in the session any more, and other claims have taken its room.
            self.leave_session();
        }
        let session = match self.client.connection.session_of(id) {
            Some(session) => session,
            None => self.client.connection.session_for(id, bytes, self.attempt_timeout()).await?,
        };
        Ok(Arc::clone(self.session.insert(session)))
    }

    /// Drops the claim's watches and its session.
    fn leave_session(&mut self) {
        self.stop_waiting();
        (self.session, self.own, self.pending_read) = (None, None, None);
    }
}

/// The error of a claim that the reaper is deleting.
fn being_deleted() -> Error {
    STORE.unavailable("the claim gave no sign of life for its ttl, and is being deleted")
}

#[async_trait]
impl Claim for ZooKeeperClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let limit = self.attempt_timeout();
        let attempt = timeout(limit, pin!(self.try_acquire())).await;
        let result = match attempt {
            Ok(result) => result,
            Err(_) if self.session.is_none() => Err(self.client.no_session_within(limit)),
            Err(_) => Err(STORE.timed_out(limit)),
        };
        let Some(session) = self.session.as_ref().filter(|session| session.record(self.request.id).is_some())
        else {
            return result;
        };
        // The hold, the wait, or the pause before the next attempt begins now, and so does its ttl.
        // If the attempt took longer than the ttl, the reaper may have found no node of the claim
        // and forgotten it.
        if session.touch(self.request.id, self.request.ttl) {
            result
        } else {
            result.and(Err(being_deleted()))
        }
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let Some(session) = self.session.clone().filter(|session| !session.end_if_silent()) else {
            return Ok(Renewal::Lost);
        };
        let began = Moment::now();
        // With a third of the ttl for each renewal, the keeper can try several times before the
        // deadline.
        let verified = STORE
            .with_timeout(self.request.time_limit(self.client.config.timeout), self.verify_hold(&session))
            .await;
        match verified {
            // The node could not be read. The heartbeats still prove that the session is alive.
            Err(error)
                if error.is_transient() && session.is_healthy() && session.has_node(self.request.id) =>
            {
                let remaining = session.valid_for().map_err(|_| error)?;
                // The keeper counts `valid_for` from the start of the call.
                let valid_for = (remaining + began.elapsed()).min(self.request.ttl);
                Ok(Renewal::Renewed { valid_for })
            }
            verified => verified,
        }
    }

    async fn release(&mut self) -> Result<Release> {
        let id = self.request.id;
        let Some(session) = self.session.clone().filter(|session| !session.end_if_silent()) else {
            return Ok(Release::Gone);
        };
        // If the outcome of a request is unknown, an earlier release may have deleted the node.
        let is_known = session.record(id).is_none_or(|record| record.node.is_some());
        // The time limit does not depend on the ttl, because the keeper repeats the release until a
        // server has confirmed it.
        let existed = STORE.with_timeout(self.client.config.timeout, session.delete_claim(id)).await?;
        // Dropped only now, because dropping a watch whose node still exists costs a request.
        (self.own, self.pending_read) = (None, None);
        self.stop_waiting();
        Ok(if existed || !is_known { Release::Done } else { Release::Gone })
    }

    async fn changed(&mut self) {
        poll_fn(|context| {
            let watches = self.ahead.iter_mut().chain(&mut self.own);
            // Polls all watches, so that each of them wakes this task.
            let fired = watches.filter_map(|watch| watch.poll(context)).count();
            if fired > 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}
