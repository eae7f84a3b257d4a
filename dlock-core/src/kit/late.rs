//! Requests that the store may execute although their driver no longer waits for them.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use super::Moment;

/// The late requests of one claim, in a driver whose requests have a deadline on the store's clock.
///
/// ```text
/// sent ──── the connection breaks ──── sent once more ──── reply ──── release
///   └──────────────── the first copy may be executed until ───────────────────► its deadline
/// ```
///
/// After its connection broke, a request may still be in a proxy or in a buffer of the server. The
/// server executes it even after the release of the claim. The driver [notes](Self::note) each such
/// request, and returns [`remaining`](Self::remaining) from
/// [`Claim::late_for`](crate::driver::Claim::late_for). After that time the engine removes what the
/// request has created.
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
/// late.note(Duration::from_secs(60));
/// late.note(Duration::from_secs(1));
/// assert!(late.remaining() > Duration::from_secs(30), "until the later deadline");
/// ```
#[derive(Debug, Default)]
pub struct LateRequests(Mutex<Option<Moment>>);

impl LateRequests {
    /// Records a request whose connection broke before the reply, and that the store may execute for
    /// this time from now.
    pub fn note(&self, time_left: Duration) {
        let mut until = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if until.map(Moment::remaining).unwrap_or_default() < time_left {
            *until = Some(Moment::now().after(time_left));
        }
    }

    /// Returns the time until the deadline of the last such request. Zero if there is none.
    pub fn remaining(&self) -> Duration {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.map(Moment::remaining).unwrap_or_default()
    }
}
