//! The reaper of a session, which deletes the claims that have given no sign of life for their ttl,
//! and the nodes of late creates.
//!
//! The servers would keep such a claim until the session ends.

use std::{sync::Weak, time::Duration};

use dlock_core::{ClaimId, driver::Moment};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use super::Session;

/// Pause before a failed deletion of a claim is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Minimum pause between two searches for overdue claims.
const MIN_PAUSE: Duration = Duration::from_millis(5);

/// Deletes overdue claims until the session is over or dropped. Looks for them at least once in
/// `period`, and each deletion has at most `period`.
pub(super) async fn run(session: &Weak<Session>, wake: &Notify, period: Duration) {
    while let Some(live) = session.upgrade().filter(|session| !session.end_if_silent()) {
        let overdue = live.reaper.begin_deletions();
        let mut next = if overdue.is_empty() { period } else { period.min(RETRY_INTERVAL) };
        for id in overdue {
            let _ = timeout(period, live.delete_claim(id)).await;
        }
        live.delete_late_nodes(period).await;
        next = live.schedule_reap(next).max(MIN_PAUSE);
        drop(live);
        let _ = timeout(next, wake.notified()).await;
        // Many claims may wake the reaper within a few milliseconds.
        sleep(MIN_PAUSE).await;
    }
}

impl Session {
    /// Records a sign of life of a claim, which is overdue `ttl` from now. Returns `false` if the
    /// claim is being deleted.
    #[must_use]
    pub(crate) fn touch(&self, id: ClaimId, ttl: Duration) -> bool {
        let is_alive = self.reaper.touch(id, ttl);
        if ttl < self.next_reap.lock().remaining() {
            self.reaper_wake.notify_one();
        }
        is_alive
    }

    /// Schedules the next search for overdue claims in `at_most`, or at the deadline of the next
    /// claim if that is earlier. Returns the time until then.
    fn schedule_reap(&self, at_most: Duration) -> Duration {
        let mut next_reap = self.next_reap.lock();
        let latest = Moment::now().after(at_most);
        *next_reap = self.reaper.next_deadline().map_or(latest, |overdue| overdue.min(latest));
        next_reap.remaining()
    }
}
