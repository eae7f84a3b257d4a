//! How long a session may be relied on, by the requests that its servers have answered.

use std::time::Duration;

use dlock_core::driver::Moment;

/// How long after a request was sent the session may be relied on, in parts of its timeout, if the request was answered.
const LATEST: (u32, u32) = (2, 3);

/// The same for a request of which the leader knows. The rest is for clocks of different speed.
const REPORTED: (u32, u32) = (5, 6);

/// How much later the server must have answered another request, in parts of the timeout. The leader then knows of the first.
const APART: u32 = 10;

/// When the client sent requests that a majority of the servers has confirmed.
///
/// An answer alone does not renew a session: the leader ends it a timeout after it last heard of the client. A follower
/// reports its clients to the leader once in half a tick. If the follower dies right after an answer, the leader knows only of
/// the requests before. So each request counts for longer once the same client got an answer at least half a tick later. That
/// half a tick is a tenth of the timeout or less is a condition in the README: a session of five ticks or more.
#[derive(Clone, Copy)]
pub(super) struct Answers {
    latest: Moment,
    /// A request that may not have been reported yet, and one that has been.
    pending: Moment,
    reported: Moment,
}

impl Answers {
    /// The leader itself has made the session.
    pub(super) fn new(began: Moment) -> Self {
        Self { latest: began, pending: began, reported: began }
    }

    pub(super) fn note(&mut self, sent: Moment, timeout: Duration) {
        let age = sent.elapsed();
        if age < self.latest.elapsed() {
            self.latest = sent;
        }
        if self.pending.elapsed().saturating_sub(age) >= timeout / APART {
            (self.reported, self.pending) = (self.pending, sent);
        }
    }

    /// How long ago the latest request was sent.
    pub(super) fn age(&self) -> Duration {
        self.latest.elapsed()
    }

    /// How long the session may still be relied on. `None` if it may not.
    pub(super) fn left(&self, timeout: Duration) -> Option<Duration> {
        let until = |(parts, of), sent: Moment| (timeout * parts / of).checked_sub(sent.elapsed());
        let left = until(LATEST, self.latest)?.min(until(REPORTED, self.reported)?);
        Some(left).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const S: Duration = Duration::from_secs(60);
    const BEAT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn beside_regular_heartbeats_half_of_the_timeout_is_always_left() {
        let mut answers = Answers::new(Moment::now());
        for _ in 0..20 {
            advance(BEAT).await;
            assert!(answers.left(S) >= Some(S / 2 - Duration::from_millis(10)), "{:?}", answers.left(S));
            answers.note(Moment::now(), S);
        }
        advance(S).await;
        assert_eq!(answers.left(S), None);
    }

    /// The follower that answered may die before it reports to the leader, which then counts from the answer before.
    #[tokio::test(start_paused = true)]
    async fn the_first_answer_after_a_silence_counts_for_little_until_there_is_another() {
        let mut answers = Answers::new(Moment::now());
        advance(S / 2).await;
        answers.note(Moment::now(), S);
        assert!(answers.left(S) <= Some(S / 3), "it claims what the leader may not know");
        advance(S / 60).await;
        answers.note(Moment::now(), S);
        assert!(answers.left(S) <= Some(S / 3), "a tick is longer than that");
        advance(BEAT).await;
        answers.note(Moment::now(), S);
        assert!(answers.left(S) > Some(S / 2));
    }
}
