//! Waiting in the queue: the claims ahead, their doorbells, and the polls without them.

use std::{future::pending, sync::Arc, time::Duration};

use dlock_core::{Result, driver::Seat};
use futures_util::{
    FutureExt as _,
    future::{BoxFuture, select_all, try_join_all},
};
use tokio::time::Instant;

use super::{QueueClaim, QueueRow};
use crate::keys;

/// Poll interval while a claim ahead has no doorbell, such as a detached claim. Doubles with each
/// poll that finds no change, up to `LONGEST_POLL_INTERVAL`.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const LONGEST_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Poll interval while each claim ahead has a doorbell of another client. A lock that is broken
/// rings no doorbell.
const BELL_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Poll interval while all claims ahead are this client's. Their keepers wake the waiters, so a
/// poll is useful only if the runtime of a keeper has ended or is blocked.
const LOCAL_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Divisor of the ttl. A waiting claim is kept alive once this part of its ttl has passed since the
/// last confirmation by the server. The engine calls `attempt` at every third of the ttl.
const KEEP_ALIVE_DIVISOR: u32 = 4;

/// The way in which a waiter learns of the end of a claim ahead.
pub(super) enum Awaited {
    /// The claim is this client's own, and its end wakes the seat.
    Local(Seat),
    /// The claim's client rings its doorbell.
    Bell(BoxFuture<'static, ()>),
    /// The claim has no doorbell, or no session is free to wait for it. The waiter polls, and
    /// tries to wait for the doorbell again at this time.
    Polled(Instant),
}

impl Awaited {
    fn polled() -> Self {
        Self::Polled(Instant::now() + BELL_CHECK_INTERVAL)
    }
}

impl QueueClaim {
    /// Waits for the end of the claims ahead. Returns `true` if one of them may have ended
    /// before the claim waited for it.
    pub(super) fn wait_for(&mut self, ahead: &[QueueRow]) -> bool {
        let doorbells = &self.client.doorbells;
        let has_bells = doorbells.are_enabled();
        self.awaited.retain(|known, awaited| {
            (has_bells || !matches!(awaited, Awaited::Bell(_)))
                && ahead.iter().any(|row| row.place() == *known)
        });
        let mut may_have_missed = false;
        for row in ahead {
            match self.awaited.get(&row.place()) {
                Some(Awaited::Polled(until)) if has_bells && Instant::now() >= *until => {}
                Some(_) => continue,
                None => self.polls = 0,
            }
            let seat = self.client.seats.join_without_subscription(
                row.entry.id.to_string(),
                None,
                self.request.kind,
            );
            // A claim that ends is first deleted from the store, and then wakes its seats. This
            // claim therefore takes its seat before it looks the other claim up, so that it cannot
            // miss the wake-up.
            let awaited = if self.client.local_claims.contains(row.entry.id) {
                may_have_missed = true;
                Awaited::Local(seat)
            } else {
                let bell = doorbells.wait_for(&keys::bell_literal(row.entry.id));
                bell.map_or_else(Awaited::polled, Awaited::Bell)
            };
            self.awaited.insert(row.place(), awaited);
        }
        may_have_missed
    }

    /// Returns the time until the next look-up of the claims ahead, if no hint arrives. The claims
    /// expire after `times_left`, unless they are renewed.
    pub(super) fn retry_in(&mut self, times_left: impl Iterator<Item = Duration>) -> Duration {
        let awaits = |is: fn(&Awaited) -> bool| self.awaited.values().any(is);
        let mut expiry = times_left.min().unwrap_or(Duration::MAX);
        let interval = if awaits(|awaited| matches!(awaited, Awaited::Polled(_))) {
            self.polls += 1;
            (POLL_INTERVAL * 2_u32.saturating_pow((self.polls - 1).min(8))).min(LONGEST_POLL_INTERVAL)
        } else if awaits(|awaited| matches!(awaited, Awaited::Bell(_))) {
            BELL_CHECK_INTERVAL
        } else {
            expiry = Duration::MAX;
            LOCAL_CHECK_INTERVAL
        };
        // All waiters of a client poll at the same times, so that they share one statement. The
        // doorbell of a client that is suspended or cut off does not ring when its claim expires.
        let retry_in = self.client.until_next(interval).min(expiry);
        self.poll_at = Instant::now() + retry_in;
        retry_in
    }

    /// Returns whether the claim must query the store now. This is the case after a hint that a
    /// claim ahead may have ended. It is also the case when a session has become free, so that the
    /// claim can wait for a doorbell instead of polling.
    pub(super) fn was_woken(&mut self) -> bool {
        for awaited in self.awaited.values_mut() {
            match awaited {
                Awaited::Local(seat) => self.is_woken |= seat.notified().now_or_never().is_some(),
                Awaited::Bell(bell) => {
                    if bell.now_or_never().is_some() {
                        *awaited = Awaited::polled();
                        self.is_woken = true;
                    }
                }
                Awaited::Polled(_) => {}
            }
        }
        let is_bell_due = |awaited: &Awaited| matches!(awaited, Awaited::Polled(at) if Instant::now() >= *at);
        self.is_woken || (self.client.doorbells.has_free_session() && self.awaited.values().any(is_bell_due))
    }

    /// Keeps a waiting claim alive, and looks up the claims ahead if a poll is due. Both requests
    /// are sent together with those of other waiters.
    ///
    /// Returns the time until the next call. Returns `None` if the claim must attempt the lock,
    /// because the claim itself or a claim ahead is no longer in the queue.
    pub(super) async fn stay_queued(&mut self) -> Result<Option<Duration>> {
        if self.confirmed_at.elapsed() >= self.request.ttl / KEEP_ALIVE_DIVISOR {
            let Some(age) = self.keep_alive().await? else { return Ok(None) };
            self.confirmed_at = Instant::now().checked_sub(age).unwrap_or(self.confirmed_at);
        }
        // A claim ahead that belongs to this client wakes the waiter without a request. A claim of
        // another client is looked up at each call.
        let are_local = self.awaited.values().all(|awaited| matches!(awaited, Awaited::Local(_)));
        if are_local && Instant::now() < self.poll_at {
            return Ok(Some(self.poll_at.saturating_duration_since(Instant::now())));
        }
        let client = Arc::clone(&self.client);
        let look_ups = self.awaited.keys().map(|place| client.time_left(*place, self.request.ttl));
        let times_left: Option<Vec<_>> = try_join_all(look_ups).await?.into_iter().collect();
        Ok(times_left.map(|times_left| self.retry_in(times_left.into_iter())))
    }

    /// Waits for a hint that a claim ahead may have ended.
    pub(super) async fn woken(&mut self) {
        let hints = self.awaited.iter_mut().filter_map(|(place, awaited)| match awaited {
            Awaited::Local(seat) => Some(seat.notified().map(|()| None).boxed()),
            Awaited::Bell(bell) => Some(bell.map(|()| Some(*place)).boxed()),
            Awaited::Polled(_) => None,
        });
        let hints: Vec<_> = hints.collect();
        if hints.is_empty() {
            return pending().await;
        }
        let (rung_bell, ..) = select_all(hints).await;
        self.is_woken = true;
        if let Some(place) = rung_bell {
            // If the claim is still in the queue, its doorbell has no owner.
            self.awaited.insert(place, Awaited::polled());
        }
    }
}
