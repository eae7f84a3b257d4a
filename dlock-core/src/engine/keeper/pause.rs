//! Pauses between the requests of a keeper.

use std::time::Duration;

/// Number of failures in a row after which the caller gets the error. The pauses between them add
/// up to about a second, and the store's own timeouts to more. Callers therefore do not notice a
/// short disturbance, and an outage is reported to them.
///
/// A waiter whose claim is in the queue continues for longer, see `FailureStreak`.
pub(crate) const MAX_FAILURES: u32 = 5;

/// Pause after the first failure in a row. Each further failure doubles it, up to
/// [`MAX_RETRY_PAUSE`].
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(50);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Minimum sleep between two requests.
pub(super) const MIN_SLEEP: Duration = Duration::from_millis(1);

/// Maximum jitter of a sleep. It prevents the waiters of a crashed holder from sending their
/// attempts all at the same time, and is too short to be noticed.
const MAX_JITTER: Duration = Duration::from_millis(20);

/// Returns the pause after this number of failures in a row.
pub(crate) fn retry_pause(failures: u32) -> Duration {
    FIRST_RETRY_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(MAX_RETRY_PAUSE)
}

/// Returns `pause` plus a random addition of up to half of it. An outage affects all waiters of a
/// store at the same time, and their retries must not stay synchronized.
pub(crate) fn with_large_jitter(pause: Duration) -> Duration {
    pause + (pause / 2).mul_f64(fastrand::f64())
}

/// Returns the longer of `sleep` and [`MIN_SLEEP`], plus a random addition of up to a tenth of
/// `sleep`, at most [`MAX_JITTER`].
pub(crate) fn with_small_jitter(sleep: Duration) -> Duration {
    sleep.max(MIN_SLEEP) + (sleep / 10).min(MAX_JITTER).mul_f64(fastrand::f64())
}
