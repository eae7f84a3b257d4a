//! A client's readings of the server's clock, from which it calculates the deadlines of requests.
//!
//! A request may still reach the server after its caller has given it up. Scripts that can create a
//! hold, detach it or resume it therefore carry a deadline on the server's clock, and do nothing
//! after it.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use dlock_core::driver::Moment;
use redis::cluster_routing::Slot;

/// Estimates the server's time from below, so that deadlines are rather too early than too late.
///
/// A deadline is too early if the clock was read slowly or was set forward since. The server then
/// refuses the request and replies with its time, and the client sends the request again.
///
/// A deadline is too late in two cases. After the server's clock was set back, it is too late by
/// that amount, until the clock has caught up. On a node of a cluster whose clock is behind the
/// clock that was read, it is too late by the difference.
#[derive(Debug)]
pub(crate) struct ServerClock(Mutex<Readings>);

#[derive(Debug)]
struct Readings {
    /// Clock of the server. On a cluster, clock of the first node that was read.
    common: Reading,
    /// Clocks of nodes that have refused a request for this slot, because they are ahead.
    by_slot: HashMap<Slot, Reading>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    /// Local time at which the reply was received.
    at: Moment,
    /// Microseconds since 1970 on the server's clock.
    micros: u64,
}

impl Reading {
    fn of(micros: u64) -> Self {
        Self { at: Moment::now(), micros }
    }

    fn at(self, now: Moment) -> u64 {
        self.micros.saturating_add(micros(self.at.elapsed_at(now)))
    }
}

impl ServerClock {
    /// Creates a clock from a reading that was just received, in microseconds since 1970.
    pub(crate) fn new(micros: u64) -> Self {
        Self(Mutex::new(Readings { common: Reading::of(micros), by_slot: HashMap::new() }))
    }

    /// Returns the time `limit` after `now`, in microseconds since 1970. On a cluster, uses the
    /// clock of the node that has this slot.
    pub(crate) fn deadline(&self, slot: Option<Slot>, now: Moment, limit: Duration) -> u64 {
        let readings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_slot = slot.and_then(|slot| readings.by_slot.get(&slot));
        of_slot.unwrap_or(&readings.common).at(now).saturating_add(micros(limit))
    }

    /// Records the time in a reply that was just received, unless it is behind an earlier reading.
    pub(crate) fn learn(&self, slot: Option<Slot>, micros: u64) {
        let mut readings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = Reading::of(micros);
        let known = match slot {
            Some(slot) => readings.by_slot.entry(slot).or_insert(latest),
            None => &mut readings.common,
        };
        if known.at(latest.at) < micros {
            *known = latest;
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_deadline_is_a_limit_after_the_last_reading() {
        let clock = ServerClock::new(1000 * SECOND);
        let deadline = clock.deadline(None, Moment::now(), Duration::from_secs(5));
        assert!((1005 * SECOND..1065 * SECOND).contains(&deadline), "{deadline}");
    }

    #[test]
    fn a_slow_reading_is_corrected_by_the_next() {
        let clock = ServerClock::new(1000 * SECOND);
        clock.learn(None, 5000 * SECOND);
        // The reply was delayed, and is behind the earlier reading.
        clock.learn(None, 2000 * SECOND);
        assert!(clock.deadline(None, Moment::now(), Duration::ZERO) >= 5000 * SECOND);
    }

    #[test]
    fn a_node_whose_clock_is_ahead_moves_no_deadline_at_another_node() {
        let clock = ServerClock::new(1000 * SECOND);
        let (ahead, other) = (Slot::new(1), Slot::new(2));
        clock.learn(ahead, 5000 * SECOND);
        assert!(clock.deadline(ahead, Moment::now(), Duration::ZERO) >= 5000 * SECOND);
        assert!(clock.deadline(other, Moment::now(), Duration::ZERO) < 2000 * SECOND);
    }
}
