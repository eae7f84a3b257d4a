//! The requests to one member of a RedLock, and its replies.

use std::{panic::AssertUnwindSafe, pin::Pin, time::Duration};

use futures_util::FutureExt as _;
use tokio::time::Instant;

use crate::{
    contract::{Attempt, Claim, Grant, Release, Renewal, Resumption},
    kit::Moment,
    model::{ClaimId, Error, Result},
};

/// A call to the driver in flight. Returns the claim with the reply, or no claim if the runtime has
/// ended.
pub(super) type CallInFlight = Pin<Box<dyn Future<Output = (Option<Box<dyn Claim>>, Reply)> + Send>>;

/// A request to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Attempt,
    Renew,
    /// Keep the claim for this time without its client, under this id.
    Detach(Duration, ClaimId),
    /// Take over the claim that was detached as this id.
    Resume(ClaimId),
    Release,
}

/// The reply of a member.
#[derive(Debug)]
pub(super) enum Reply {
    /// The member holds until `until`. It has held since the arrival of the reply, at `at`, or
    /// longer.
    Granted { at: Instant, until: Moment },
    /// The member holds until `until`, and had held without a gap until the renewal was sent, at
    /// `sent`.
    Renewed { sent: Moment, until: Moment },
    /// The member keeps the claim without its client. This extends no deadline, because the next
    /// renewal may shorten the time again, even if its reply is lost. The member had held without a
    /// gap until the request was sent, at `sent`.
    Detached { sent: Moment },
    /// The member has handed over a detached claim in reply to the request sent at `sent`, and
    /// holds until `until`. It would have kept the detached claim for `remaining`.
    Resumed { sent: Moment, until: Moment, remaining: Option<Duration> },
    /// Another claim is ahead on this member. The time is the pause before the next attempt.
    Busy(Duration),
    /// The member has forgotten the claim.
    Lost,
    /// The member has released the claim.
    Released(Release),
    /// The outcome of the request is unknown.
    Unknown(Error),
}

/// Sends a request to the member. The request is sent when the call is first polled.
pub(super) fn start_call(mut claim: Box<dyn Claim>, operation: Operation) -> CallInFlight {
    Box::pin(async move {
        let sent = Moment::now();
        // After a panic of a member's driver the outcome is unknown, and a later round sends
        // another request.
        let reply = AssertUnwindSafe(execute(claim.as_mut(), operation, sent)).catch_unwind().await;
        let reply = reply.unwrap_or_else(|_| Err(member_failed()));
        (Some(claim), reply.unwrap_or_else(Reply::Unknown))
    })
}

async fn execute(claim: &mut dyn Claim, operation: Operation, sent: Moment) -> Result<Reply> {
    match operation {
        Operation::Attempt => claim.attempt().await.map(|attempt| match attempt {
            Attempt::Granted(Grant { valid_for, .. }) => {
                Reply::Granted { at: Instant::now(), until: sent.after(valid_for) }
            }
            Attempt::Busy { retry_in } => Reply::Busy(retry_in),
        }),
        Operation::Renew => claim.renew().await.map(|renewal| match renewal {
            Renewal::Renewed { valid_for } => Reply::Renewed { sent, until: sent.after(valid_for) },
            Renewal::Lost => Reply::Lost,
        }),
        Operation::Detach(lasting, ticket) => {
            claim.detach(lasting, ticket).await.map(|renewal| match renewal {
                Renewal::Renewed { .. } => Reply::Detached { sent },
                Renewal::Lost => Reply::Lost,
            })
        }
        Operation::Resume(ticket) => claim.resume(ticket).await.map(|resumption| match resumption {
            Resumption::Resumed { grant: Grant { valid_for, .. }, remaining } => {
                Reply::Resumed { sent, until: sent.after(valid_for), remaining }
            }
            Resumption::Gone => Reply::Lost,
        }),
        Operation::Release => claim.release().await.map(Reply::Released),
    }
}

pub(super) fn member_failed() -> Error {
    Error::Unavailable { store: "redlock", source: "a member's driver panicked, or the runtime ended".into() }
}
