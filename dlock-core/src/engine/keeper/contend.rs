//! The acquisition of a lock: attempts, and waiting between them.

use std::time::Duration;

use tokio::{sync::oneshot, time::sleep};

use super::{
    Keeper, Outcome,
    pause::{MAX_FAILURES, MIN_SLEEP, retry_pause, with_large_jitter, with_small_jitter},
};
use crate::{
    contract::{Attempt, Claim, Grant},
    engine::{
        client::Admitted,
        limits::GrantTimes,
        observe::{self, StartTime},
    },
    kit::Moment,
    model::{Error, Wait},
};

/// Number of hints in a row that a waiter follows at once. It pauses before the attempt that
/// follows each further hint, for one to eight times [`MIN_SLEEP`]. A hand-off needs one or two
/// hints. Without the pauses, a store that sends hints all the time would make the waiter send
/// attempts all the time.
const UNPACED_HINTS: u32 = 3;

/// The end of an acquisition.
pub(super) enum AcquisitionEnd {
    Granted(Grant, GrantTimes),
    /// The lock is busy for a single try. The store has no entry of the claim.
    Busy,
    /// The caller dropped its future, for example after its timeout.
    CallerLeft,
    Failed(Error),
}

impl AcquisitionEnd {
    /// Returns the value of the label `outcome` of the metrics.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Granted(..) => "granted",
            Self::Busy => "busy",
            Self::CallerLeft => "abandoned",
            Self::Failed(_) => "failed",
        }
    }
}

/// The failures of a waiter since the store's last reply.
#[derive(Default)]
struct FailureStreak {
    failures: u32,
    /// Send time of the first attempt of the streak.
    since: Option<Moment>,
    /// Whether the store has replied to this waiter before. The waiter then has a place in the
    /// queue, which it must not lose through a short outage.
    is_queued: bool,
}

impl FailureStreak {
    /// Counts the failure of the attempt that was sent at `sent`. Returns whether the caller should
    /// get the error. This is the case after [`MAX_FAILURES`]. A queued waiter also waits until the
    /// store has not replied for a ttl.
    fn count_failure(&mut self, sent: Moment, ttl: Duration) -> bool {
        self.failures = self.failures.saturating_add(1);
        let silence = self.since.get_or_insert(sent).elapsed();
        self.failures >= MAX_FAILURES && (!self.is_queued || silence >= ttl)
    }
}

impl Keeper {
    /// Requests the lock until the store grants it, a single try finds it busy, the caller leaves,
    /// or the error is final. Sets `may_be_stored` once an attempt may have reached the store.
    pub(super) async fn contend(
        &self,
        claim: &mut dyn Claim,
        reply: &mut oneshot::Sender<Outcome>,
        may_be_stored: &mut bool,
    ) -> AcquisitionEnd {
        let (mut streak, mut hints) = (FailureStreak::default(), 0);
        let was_stored = *may_be_stored;
        loop {
            let attempts = if streak.is_queued { Admitted::RepeatedAttempt } else { Admitted::FirstAttempt };
            let permit = tokio::select! {
                biased;
                permit = self.client.admit(attempts) => permit,
                () = reply.closed() => return AcquisitionEnd::CallerLeft,
                () = self.client.closing.cancelled() => return AcquisitionEnd::Failed(self.closed()),
            };
            // The times are taken after the admission, because the time in its queue is not part of
            // the hold.
            let (sent, start) = (Moment::now(), StartTime::now());
            // Also after a panic of the driver.
            *may_be_stored = true;
            // This call is never dropped in flight, because its outcome decides what to release.
            let attempt = claim.attempt().await;
            drop(permit);
            *may_be_stored = was_stored || claim.may_be_stored();
            observe::called(self.info(), "attempt", start, &attempt);
            let retry_in = match attempt {
                Ok(Attempt::Granted(grant)) => {
                    let times = GrantTimes::since(sent);
                    match self.check_in_time(&grant, times) {
                        Ok(()) => return AcquisitionEnd::Granted(grant, times),
                        // A grant that arrives too late counts as a failure.
                        Err(error) => Err(error),
                    }
                }
                Ok(Attempt::Busy { .. }) if self.request.wait == Wait::Never => return AcquisitionEnd::Busy,
                Ok(Attempt::Busy { retry_in }) => Ok(retry_in),
                Err(error) => Err(error),
            };
            let pause = match retry_in {
                Ok(retry_in) => {
                    streak = FailureStreak { is_queued: true, ..FailureStreak::default() };
                    // At least three attempts in a ttl, because each attempt also keeps the waiting
                    // claim alive in the store.
                    with_small_jitter(retry_in.min(self.request.ttl / 3))
                }
                Err(error) => {
                    let may_retry = self.request.wait != Wait::Never && error.is_transient();
                    if !may_retry || streak.count_failure(sent, self.request.ttl) {
                        return AcquisitionEnd::Failed(error);
                    }
                    observe::failed(self, "attempt", &error);
                    if let Some(failure) = &self.failure {
                        *failure.lock() = Some(error.into());
                    }
                    with_large_jitter(retry_pause(streak.failures)).min(self.request.ttl / 3).max(MIN_SLEEP)
                }
            };
            let hint = async {
                // After a failure hints are ignored, so that they do not make the waiter send
                // attempts all the time to a store that is down.
                if streak.failures > 0 {
                    std::future::pending::<()>().await;
                }
                claim.changed().await;
                if hints >= UNPACED_HINTS {
                    sleep(MIN_SLEEP * (1 << (hints - UNPACED_HINTS).min(3))).await;
                }
            };
            tokio::select! {
                biased;
                () = reply.closed() => return AcquisitionEnd::CallerLeft,
                () = self.client.closing.cancelled() => {
                    return AcquisitionEnd::Failed(self.closed());
                }
                () = hint => hints += 1,
                () = sleep(pause) => hints = 0,
            }
            if reply.is_closed() {
                return AcquisitionEnd::CallerLeft;
            }
        }
    }
}
