//! A client's readings of the server's clock, from which it calculates the deadlines of requests.
//!
//! A request may still reach the server after its caller has given it up. Scripts that can create a
//! hold, detach it or resume it therefore carry a deadline on the server's clock, and do nothing
//! after it.

use std::{collections::HashMap, time::Duration};

use dlock_core::driver::{ClockReading, Moment};
use parking_lot::Mutex;
use redis::cluster_routing::Slot;

/// The readings of one client, from which it calculates deadlines.
///
/// A deadline is too early if the clock was read slowly or was set forward since. The server then
/// refuses the request and replies with its time, and the client sends the request again.
///
/// A deadline is too late in two cases. After the server's clock was set back, it is too late by
/// that amount, until the clock is [read again](Self::begin_reading). On a node of a cluster whose
/// clock is behind the clock that was read, it is too late by the difference.
#[derive(Debug)]
pub(crate) struct ServerClock(Mutex<Readings>);

#[derive(Debug)]
struct Readings {
    /// Clock of the server. On a cluster, clock of the last node that was read.
    common: ClockReading,
    /// Time from which a caller reads `common` again.
    read_again: Moment,
    /// Clocks of nodes that have refused a request for this slot, because they are ahead.
    by_slot: HashMap<Slot, ClockReading>,
}

/// Time after which the clock is read once more, if the server has not replied to the last reading.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

impl ServerClock {
    /// Creates a clock from the first reading.
    pub(crate) fn new(reading: ClockReading) -> Self {
        let read_again = Moment::now().after(ClockReading::VALIDITY);
        Self(Mutex::new(Readings { common: reading, read_again, by_slot: HashMap::new() }))
    }

    /// Returns whether the caller must read the clock and [replace](Self::replace) the reading,
    /// because it is outdated at `now`. A call that returns `true` assigns the reading to its
    /// caller. Other calls then return `false`, and their callers use the old reading, until the
    /// caller has replaced it or [`RETRY_PAUSE`] has passed.
    pub(crate) fn begin_reading(&self, now: Moment) -> bool {
        let mut readings = self.0.lock();
        let is_due = !now.since(readings.read_again).is_zero();
        if is_due {
            readings.read_again = now.after(RETRY_PAUSE);
        }
        is_due
    }

    /// Replaces all readings by this one, even if it is behind them.
    pub(crate) fn replace(&self, reading: ClockReading) {
        *self.0.lock() = Readings {
            common: reading,
            read_again: Moment::now().after(ClockReading::VALIDITY),
            // Nodes that are ahead refuse the next request, and are read again thereby.
            by_slot: HashMap::new(),
        };
    }

    /// Returns the time `limit` after `now`, in microseconds since 1970. On a cluster, uses the
    /// clock of the node that has this slot.
    pub(crate) fn deadline(&self, slot: Option<Slot>, now: Moment, limit: Duration) -> u64 {
        let readings = self.0.lock();
        let of_slot = slot.and_then(|slot| readings.by_slot.get(&slot));
        of_slot.unwrap_or(&readings.common).deadline(now, limit)
    }

    /// Records the time in a reply that was just received, in microseconds since 1970, unless it is
    /// behind an earlier reading.
    pub(crate) fn learn(&self, slot: Option<Slot>, micros: u64) {
        let mut readings = self.0.lock();
        let latest = ClockReading::received(micros);
        let known = match slot {
            Some(slot) => readings.by_slot.entry(slot).or_insert(latest),
            None => &mut readings.common,
        };
        if known.at(Moment::now()) < micros {
            *known = latest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_deadline_is_a_limit_after_the_last_reading() {
        let clock = ServerClock::new(ClockReading::received(1000 * SECOND));
        let deadline = clock.deadline(None, Moment::now(), Duration::from_secs(5));
        assert!((1005 * SECOND..1065 * SECOND).contains(&deadline), "{deadline}");
    }

    #[test]
    fn a_slow_reading_is_corrected_by_the_next() {
        let clock = ServerClock::new(ClockReading::received(1000 * SECOND));
        clock.learn(None, 5000 * SECOND);
        // The reply was delayed, and is behind the earlier reading.
        clock.learn(None, 2000 * SECOND);
        assert!(clock.deadline(None, Moment::now(), Duration::ZERO) >= 5000 * SECOND);
    }

    #[test]
    fn a_node_whose_clock_is_ahead_moves_no_deadline_at_another_node() {
        let clock = ServerClock::new(ClockReading::received(1000 * SECOND));
        let (ahead, other) = (Slot::new(1), Slot::new(2));
        clock.learn(ahead, 5000 * SECOND);
        assert!(clock.deadline(ahead, Moment::now(), Duration::ZERO) >= 5000 * SECOND);
        assert!(clock.deadline(other, Moment::now(), Duration::ZERO) < 2000 * SECOND);
    }

    #[test]
    fn one_caller_reads_an_outdated_clock_again() {
        let clock = ServerClock::new(ClockReading::received(1000 * SECOND));
        assert!(!clock.begin_reading(Moment::now()));
        let later = Moment::now().after(ClockReading::VALIDITY + Duration::from_secs(1));
        assert!(clock.begin_reading(later));
        assert!(!clock.begin_reading(later), "a second caller waits for the clock, too");
        assert!(
            clock.begin_reading(later.after(RETRY_PAUSE * 2)),
            "a reading without a reply is not repeated"
        );
    }

    #[test]
    fn a_reading_replaces_a_clock_that_was_ahead() {
        let clock = ServerClock::new(ClockReading::received(5000 * SECOND));
        let slot = Slot::new(1);
        clock.learn(slot, 7000 * SECOND);
        clock.replace(ClockReading::received(1000 * SECOND));
        for slot in [None, slot] {
            assert!(clock.deadline(slot, Moment::now(), Duration::ZERO) < 1100 * SECOND);
        }
        assert!(!clock.begin_reading(Moment::now()));
    }
}
