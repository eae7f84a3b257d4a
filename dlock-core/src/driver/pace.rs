//! When a connection that failed may be tried again: not at once, and not by everybody at the same time.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest pause between two attempts: a client makes at most five a second for each connection.
const LEAST: Duration = Duration::from_millis(200);

/// The longest pause. Each attempt that leads to no answer doubles the pause up to this.
const LONGEST: Duration = Duration::from_secs(1);

/// The attempts to make one connection. An attempt counts as failed until the server has answered something. Each failure
/// in a row doubles the pause, from 0.2 s up to 1 s. Chance adds up to a quarter.
///
/// ```
/// use dlock_core::driver::Pace;
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let mut pace = Pace::quick();
/// for answered in [false, true] {
///     tokio::time::sleep_until(pace.next()).await;
///     pace.note_attempt(); // … connect, and ask something
///     if answered {
///         pace.note_answer();
///     }
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Pace {
    last: Option<Instant>,
    /// After the last attempt.
    pause: Duration,
    /// After an attempt that fails when the one before it has not.
    first: Duration,
    /// Whether there was no answer since the last attempt.
    fails: bool,
}

impl Pace {
    /// For a connection that callers wait for.
    pub fn quick() -> Self {
        Self { last: None, pause: LEAST, first: LEAST, fails: false }
    }

    /// For a connection that is opened beside one that callers wait for.
    pub fn calm() -> Self {
        Self { last: None, pause: LEAST, first: LEAST * 2, fails: false }
    }

    /// When the next attempt may be made.
    pub fn next(&self) -> Instant {
        self.last.map_or_else(Instant::now, |last| last + self.pause)
    }

    /// Notes that an attempt begins.
    pub fn note_attempt(&mut self) {
        let grown = if self.fails { (self.pause * 2).min(LONGEST) } else { self.first };
        // Up to a quarter more, so that the clients of a server that was away do not come back in step.
        self.pause = grown.mul_f64(1.0 + f64::from(jitter()) / 1024.0);
        (self.last, self.fails) = (Some(Instant::now()), true);
    }

    /// Notes that the server has answered.
    pub fn note_answer(&mut self) {
        (self.pause, self.fails) = (LEAST, false);
    }
}

/// A number from 0 to 255, from the operating system's random source, which the ids of claims come from too.
fn jitter() -> u8 {
    super::ClaimId::random().as_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn attempts_that_fail_come_less_and_less_often() {
        let (mut pace, start) = (Pace::quick(), Instant::now());
        let mut count = 0;
        while start.elapsed() < Duration::from_secs(20) {
            tokio::time::sleep_until(pace.next()).await;
            pace.note_attempt();
            count += 1;
            assert!(f64::from(count) <= 3.0 + start.elapsed().as_secs_f64(), "{count} attempts");
        }
        assert!(
            count >= 16,
            "a server that is back must be found within two seconds: {count} attempts in 20 s"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn even_connections_that_worked_are_not_made_anew_more_than_five_times_a_second() {
        let (mut pace, start) = (Pace::quick(), Instant::now());
        for _ in 0..20 {
            tokio::time::sleep_until(pace.next()).await;
            pace.note_attempt();
            pace.note_answer();
        }
        assert!(start.elapsed() >= LEAST * 19);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_breaks_after_it_worked_is_made_anew_at_once() {
        let mut pace = Pace::calm();
        pace.note_attempt();
        pace.note_answer();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(pace.next() <= Instant::now());
    }
}
