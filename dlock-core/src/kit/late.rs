//! Requests that the store may execute although their driver no longer waits for them, and the
//! store's clock, on which such requests have a deadline.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;

use super::Moment;

/// Whether the store may execute a request after its caller has given up.
#[derive(Clone, Copy, Debug)]
pub enum LateExecution<'a> {
    /// A late request changes nothing that a newer request depends on.
    Allowed,
    /// The request has a deadline on the store's clock, after which the store refuses it. If the
    /// connection breaks before the reply, the time until the deadline is recorded here.
    Refused(&'a LateRequests),
}

impl LateExecution<'_> {
    /// Returns whether the request has a deadline on the store's clock.
    pub fn is_refused(self) -> bool {
        matches!(self, Self::Refused(_))
    }

    /// Records that the request is about to be sent.
    pub fn note_sent(self) {
        if let Self::Refused(late) = self {
            late.note_sent();
        }
    }

    /// Records that the connection broke before the reply, and that the store may execute the
    /// request for this time from now.
    pub fn note_lost_reply(self, time_left: Duration) {
        if let Self::Refused(late) = self {
            late.note_lost_reply(time_left);
        }
    }
}

/// A reading of the store's clock, from which a driver calculates the deadlines of requests.
///
/// The estimate is never ahead of the store's time, because the reply took time to arrive. A
/// deadline that is based on it is therefore never too late.
#[derive(Clone, Copy, Debug)]
pub struct ClockReading {
    /// Microseconds since 1970 on the store's clock.
    micros: u64,
    received: Moment,
}

impl ClockReading {
    /// Time for which a reading is used. The store's clock and the client's drift apart by some
    /// milliseconds in that time, or by 30 ms if one of them is wrong by 0.05 %.
    pub const VALIDITY: Duration = Duration::from_secs(60);

    /// Records a time of the store, in microseconds since 1970, from a reply that has just arrived.
    pub fn received(micros: u64) -> Self {
        Self { micros, received: Moment::now() }
    }

    /// Returns the store's time at `now`, in microseconds since 1970. The store's clock shows this
    /// time or a later one.
    pub fn at(self, now: Moment) -> u64 {
        self.micros.saturating_add(micros(self.received.elapsed_at(now)))
    }

    /// Returns the store's time `limit` after `now`, in microseconds since 1970.
    pub fn deadline(self, now: Moment, limit: Duration) -> u64 {
        self.at(now).saturating_add(micros(limit))
    }

    /// Returns whether the reading is older at `now` than [`VALIDITY`](Self::VALIDITY). The driver
    /// then reads the clock again.
    pub fn is_outdated(self, now: Moment) -> bool {
        self.received.elapsed_at(now) >= Self::VALIDITY
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// The late requests of one claim, in a driver whose requests have a deadline on the store's clock.
///
/// ```text
/// sent ──── the connection breaks ──── sent once more ──── reply ──── release
///   └──────────────── the first copy may be executed until ───────────────────► its deadline
/// ```
///
/// After its connection broke, a request may still be in a proxy or in a buffer of the server. The
/// server executes it even after the release of the claim. The driver
/// [records](Self::note_lost_reply) each such request, and returns [`remaining`](Self::remaining)
/// from [`Claim::late_for`](crate::driver::Claim::late_for). After that time the engine removes
/// what the request has created.
///
/// It also records whether any request was sent at all. If not, the claim need not be released, see
/// [`Claim::may_be_stored`](crate::driver::Claim::may_be_stored).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use dlock_core::driver::LateRequests;
///
/// let late = LateRequests::default();
/// assert_eq!(late.remaining(), Duration::ZERO);
/// late.note_lost_reply(Duration::from_secs(60));
/// late.note_lost_reply(Duration::from_secs(1));
/// assert!(late.remaining() > Duration::from_secs(30), "until the later deadline");
/// ```
#[derive(Debug, Default)]
pub struct LateRequests {
    until: Mutex<Option<Moment>>,
    has_sent: AtomicBool,
}

impl LateRequests {
    /// Records that a request is about to be sent.
    pub fn note_sent(&self) {
        self.has_sent.store(true, Relaxed);
    }

    /// Returns whether a request was sent, or may have been.
    pub fn has_sent(&self) -> bool {
        self.has_sent.load(Relaxed)
    }

    /// Records a request whose connection broke before the reply, and that the store may execute
    /// for this time from now.
    pub fn note_lost_reply(&self, time_left: Duration) {
        let mut until = self.until.lock();
        if until.map(Moment::remaining).unwrap_or_default() < time_left {
            *until = Some(Moment::now().after(time_left));
        }
    }

    /// Returns the time until the deadline of the last such request. Zero if there is none.
    pub fn remaining(&self) -> Duration {
        let until = *self.until.lock();
        until.map(Moment::remaining).unwrap_or_default()
    }
}
