//! The server's clock, as far as a client knows it: the condition that makes late requests harmless.
//!
//! A request that its caller has given up may still be on its way to the server. Scripts that can create or hand over a hold
//! therefore carry a deadline on the server's clock, and do nothing after it.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use dlock_core::driver::Moment;

/// An upper bound of the server's time. A deadline is never too early, unless the server's clock is set forward: the server
/// then refuses the next request as late, tells its time, and the request is sent again.
///
/// While the server's clock is behind what it was, because somebody has set it back, deadlines are too late by as much.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(Mutex<Option<Reading>>);

#[derive(Clone, Copy, Debug)]
struct Reading {
    /// Before the request was sent whose reply had the time.
    at: Moment,
    /// Microseconds since 1970 on the server's clock.
    micros: u64,
}

impl Reading {
    fn now(self) -> u64 {
        self.micros.saturating_add(micros(self.at.elapsed()))
    }
}

impl ServerClock {
    /// The end of `limit` from now on the server's clock, in microseconds since 1970. `None` while the clock is unknown.
    pub(crate) fn deadline(&self, limit: Duration) -> Option<u64> {
        let reading = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reading.map(|reading| reading.now().saturating_add(micros(limit)))
    }

    /// Records a time that the server told in reply to a request that was sent at `sent`. Of the clocks of several servers,
    /// the one that is most ahead counts.
    pub(crate) fn learn(&self, sent: Moment, micros: u64) {
        let mut reading = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = Reading { at: sent, micros };
        if reading.is_none_or(|known| known.now() < told.now()) {
            *reading = Some(told);
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
    fn a_deadline_is_counted_from_before_the_request_that_read_the_clock() {
        let clock = ServerClock::default();
        assert_eq!(clock.deadline(Duration::from_secs(1)), None);
        clock.learn(Moment::now(), 1000 * SECOND);
        let deadline = clock.deadline(Duration::from_secs(5)).expect("known");
        assert!((1005 * SECOND..1065 * SECOND).contains(&deadline), "{deadline}");
    }

    #[test]
    fn a_clock_that_was_set_forward_moves_deadlines_and_one_that_is_behind_does_not() {
        let clock = ServerClock::default();
        clock.learn(Moment::now(), 1000 * SECOND);
        clock.learn(Moment::now(), 5000 * SECOND);
        clock.learn(Moment::now(), 2000 * SECOND);
        assert!(clock.deadline(Duration::ZERO) >= Some(5000 * SECOND));
    }
}
