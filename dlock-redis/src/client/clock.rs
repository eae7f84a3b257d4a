//! The server's clock, as far as a client knows it: the condition that makes late requests harmless.
//!
//! A request that its caller has given up may still be on its way to the server. Scripts that can create or hand over a hold
//! therefore carry a deadline on the server's clock, and do nothing after it.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use dlock_core::driver::Moment;
use redis::cluster_routing::Slot;

/// A lower bound of the server's time, so that no deadline is too late. If a deadline is too early, because the reading of the
/// clock took long or the clock was set forward, the server refuses the request and tells its time, and the request is sent again.
///
/// After a clock was set back, deadlines are too late by as much, until the clock has caught up. For a node of a cluster whose
/// clock is behind that of the node that was read, they are too late by the difference.
#[derive(Debug)]
pub(crate) struct ServerClock(Mutex<Readings>);

#[derive(Debug)]
struct Readings {
    /// Of the server; on a cluster, of the first node that was asked.
    common: Reading,
    /// Of nodes that have refused a request for this slot, because their clocks are ahead.
    of_slots: HashMap<Slot, Reading>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    /// After the reply with the time was received.
    at: Moment,
    /// Microseconds since 1970 on the server's clock.
    micros: u64,
}

impl Reading {
    fn of(micros: u64) -> Self {
        Self { at: Moment::now(), micros }
    }

    fn now(self) -> u64 {
        self.micros.saturating_add(micros(self.at.elapsed()))
    }
}

impl ServerClock {
    /// A clock that was just read, and showed this time in microseconds since 1970.
    pub(crate) fn new(micros: u64) -> Self {
        Self(Mutex::new(Readings { common: Reading::of(micros), of_slots: HashMap::new() }))
    }

    /// The end of `limit` from now in microseconds since 1970. On a cluster: on the clock of the node that has this slot.
    pub(crate) fn deadline(&self, slot: Option<Slot>, limit: Duration) -> u64 {
        let readings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_slot = slot.and_then(|slot| readings.of_slots.get(&slot));
        of_slot.unwrap_or(&readings.common).now().saturating_add(micros(limit))
    }

    /// Records the time of a reply that was just received. An earlier reading that shows a later time counts instead.
    pub(crate) fn learn(&self, slot: Option<Slot>, micros: u64) {
        let mut readings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = Reading::of(micros);
        let known = match slot {
            Some(slot) => readings.of_slots.entry(slot).or_insert(latest),
            None => &mut readings.common,
        };
        if known.now() < latest.now() {
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
        let deadline = clock.deadline(None, Duration::from_secs(5));
        assert!((1005 * SECOND..1065 * SECOND).contains(&deadline), "{deadline}");
    }

    #[test]
    fn a_reading_that_took_long_is_corrected_by_the_next() {
        let clock = ServerClock::new(1000 * SECOND);
        clock.learn(None, 5000 * SECOND);
        // The reply was delayed, and shows less than the client knows.
        clock.learn(None, 2000 * SECOND);
        assert!(clock.deadline(None, Duration::ZERO) >= 5000 * SECOND);
    }

    #[test]
    fn a_node_that_is_ahead_moves_no_deadline_of_another() {
        let clock = ServerClock::new(1000 * SECOND);
        let (ahead, other) = (Slot::new(1), Slot::new(2));
        clock.learn(ahead, 5000 * SECOND);
        assert!(clock.deadline(ahead, Duration::ZERO) >= 5000 * SECOND);
        assert!(clock.deadline(other, Duration::ZERO) < 2000 * SECOND);
    }
}
