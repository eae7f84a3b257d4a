//! The loop that maintains a session. It sends keep-alives and deletes overdue claims.

use std::{future::pending, sync::atomic::Ordering::Relaxed};

use dlock_core::{
    Error, Result,
    driver::{Backoff, Moment},
};
use tokio::time::sleep_until;

use super::Session;

impl Session {
    /// Maintains the session. Never returns.
    pub(crate) async fn maintain(&self) {
        let mut backoff = Backoff::background();
        let mut retries_now = false;
        loop {
            let next = self.plan_upkeep(retries_now);
            let due = async {
                match next {
                    Some(next) => sleep_until(next.instant().max(backoff.next_attempt())).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = self.upkeep_wake.notified() => continue,
                () = due => {}
            }
            backoff.note_attempt();
            let result = self.do_upkeep().await;
            // After a refusal, the next keep-alive is early enough for another try.
            retries_now = result.as_ref().is_err_and(Error::is_transient);
            if result.is_ok() {
                backoff.note_reply();
            }
        }
    }

    /// Returns the time of the next [upkeep](Self::do_upkeep), or `None` if none is necessary.
    ///
    /// `retries_now` is true if the last upkeep has failed. The upkeep is then due now, because the
    /// reaper returns no deadline for a claim that is already overdue.
    fn plan_upkeep(&self, retries_now: bool) -> Option<Moment> {
        let lease = self.lease.lock().filter(|_| !self.is_closed.load(Relaxed));
        let next = match (lease.map(|lease| lease.next_keep_alive()), self.reaper.next_deadline()) {
            (Some(keep_alive), Some(deadline)) => Some(keep_alive.min(deadline)),
            (keep_alive, deadline) => keep_alive.or(deadline),
        };
        let next = if retries_now { Some(Moment::now()) } else { next };
        *self.planned_upkeep.lock() = next;
        next
    }

    /// Sends a keep-alive if one is due, and deletes the overdue claims.
    ///
    /// # Errors
    /// If the server does not reply or refuses.
    async fn do_upkeep(&self) -> Result<()> {
        if self.lease.lock().is_some_and(|lease| lease.next_keep_alive().has_passed()) {
            self.lease().await?;
        }
        self.reap().await
    }
}
