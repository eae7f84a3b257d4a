//! Back-off between attempts to connect, with jitter, so that clients of a restarted server do not
//! reconnect at the same time.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Minimum pause between two attempts. A client makes at most five attempts a second for each
/// connection.
const MIN_PAUSE: Duration = Duration::from_millis(200);

/// Maximum pause, without jitter. Each failed attempt in a row doubles the pause up to this value.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Times the attempts to open one connection. An attempt counts as failed until the server has
/// replied to a request. Each failure in a row doubles the pause, from 0.2 s up to 1 s. Jitter adds
/// up to a quarter.
///
/// ```
/// use dlock_core::driver::Backoff;
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let mut backoff = Backoff::foreground();
/// for replied in [false, true] {
///     backoff.pause().await;
///     backoff.note_attempt(); // … connect, and send a request
///     if replied {
///         backoff.note_reply();
///     }
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Backoff {
    /// Start of the last attempt.
    last_attempt: Option<Instant>,
    /// Pause after the last attempt, without jitter.
    pause: Duration,
    /// Random part of the pause after the last attempt, in 1024ths of the pause.
    jitter: u8,
    /// Pause after the first failure in a row.
    first_pause: Duration,
    /// Whether the server has sent no reply since the last attempt.
    is_failing: bool,
}

impl Backoff {
    /// Creates the back-off of a connection that callers wait for. The pause after the first
    /// failure is 0.2 s.
    pub fn foreground() -> Self {
        Self::with_first_pause(MIN_PAUSE)
    }

    /// Creates the back-off of a connection for which no caller waits, such as an additional
    /// connection for notifications. The pause after the first failure is 0.4 s.
    pub fn background() -> Self {
        Self::with_first_pause(MIN_PAUSE * 2)
    }

    fn with_first_pause(first_pause: Duration) -> Self {
        Self { last_attempt: None, pause: MIN_PAUSE, jitter: 0, first_pause, is_failing: false }
    }

    /// Returns the earliest time of the next attempt.
    pub fn next_attempt(&self) -> Instant {
        let pause = self.pause.mul_f64(1.0 + f64::from(self.jitter) / 1024.0);
        self.last_attempt.map_or_else(Instant::now, |last| last + pause)
    }

    /// Waits until the next attempt is due. Returns at once if it is due already, without a timer,
    /// which would end a millisecond later.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn pause(&self) {
        let next_attempt = self.next_attempt();
        if next_attempt > Instant::now() {
            sleep_until(next_attempt).await;
        }
    }

    /// Records the start of an attempt.
    pub fn note_attempt(&mut self) {
        self.pause = if self.is_failing { (self.pause * 2).min(MAX_PAUSE) } else { self.first_pause };
        self.jitter = random_byte();
        (self.last_attempt, self.is_failing) = (Some(Instant::now()), true);
    }

    /// Records that the server has replied to a request.
    pub fn note_reply(&mut self) {
        (self.pause, self.jitter, self.is_failing) = (MIN_PAUSE, 0, false);
    }
}

/// Returns a byte of the operating system's random source, which also supplies the ids of claims.
fn random_byte() -> u8 {
    crate::model::ClaimId::random().as_bytes()[0]
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_attempt_waits_for_no_timer() {
        let mut backoff = Backoff::foreground();
        assert!(backoff.pause().now_or_never().is_some(), "the first attempt waits");
        backoff.note_attempt();
        assert!(backoff.pause().now_or_never().is_none(), "the second attempt does not wait");
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_become_rarer_with_each_failure() {
        let (mut backoff, start) = (Backoff::foreground(), Instant::now());
        let mut count = 0;
        while start.elapsed() < Duration::from_secs(20) {
            backoff.pause().await;
            backoff.note_attempt();
            count += 1;
            assert!(f64::from(count) <= 3.0 + start.elapsed().as_secs_f64(), "{count} attempts");
        }
        assert!(count >= 16, "{count} attempts in 20 s: a restarted server must be found within two seconds");
    }

    #[tokio::test(start_paused = true)]
    async fn even_working_connections_are_not_reopened_more_than_five_times_a_second() {
        let (mut backoff, start) = (Backoff::foreground(), Instant::now());
        for _ in 0..20 {
            backoff.pause().await;
            backoff.note_attempt();
            backoff.note_reply();
        }
        assert!(start.elapsed() >= MIN_PAUSE * 19);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_breaks_after_it_worked_is_reopened_at_once() {
        let mut backoff = Backoff::background();
        backoff.note_attempt();
        backoff.note_reply();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(backoff.next_attempt() <= Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn each_failure_in_a_row_doubles_the_pause_up_to_a_second() {
        const MS: Duration = Duration::from_millis(1);
        let foreground = (Backoff::foreground(), [200_u32, 400, 800, 1000, 1000]);
        let background = (Backoff::background(), [400, 800, 1000, 1000, 1000]);
        for (backoff, shortest) in [foreground, background] {
            // The jitter is random.
            for _ in 0..50 {
                let mut backoff = backoff.clone();
                for shortest in shortest {
                    backoff.note_attempt();
                    let pause = backoff.next_attempt() - Instant::now();
                    let longest = (shortest * MS).mul_f64(1.25);
                    let is_within = (shortest * MS..=longest).contains(&pause);
                    assert!(is_within, "a pause of {pause:?} instead of {shortest} ms to {longest:?}");
                    backoff.pause().await;
                }
            }
        }
    }
}
