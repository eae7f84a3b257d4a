//! How long a session may be relied on, by the requests that its servers have answered.

use std::{collections::VecDeque, time::Duration};

use dlock_core::driver::Moment;

/// How long after a request was sent the session may be relied on, in parts of its timeout, if the request was answered.
const LATEST: (u32, u32) = (2, 3);

/// The same for a request of which the leader knows. The rest is for clocks of different speed.
const REPORTED: (u32, u32) = (5, 6);

/// Minimum time between the reply to a request and the sending of a later confirmed request, in parts of the timeout. The
/// leader then knows of the first.
const APART: u32 = 10;

/// Minimum time between the requests that are remembered, in parts of the timeout. Bounds their number.
const GRAIN: u32 = 60;

/// When the client sent requests that a majority of the servers has confirmed.
///
/// A reply alone does not renew a session: the leader ends it a timeout after it last heard of the client. A follower
/// reports its clients to the leader once in half a tick. If the follower dies right after a reply, the leader knows only of
/// the requests before. So each request counts for longer once the server has received another one at least half a tick
/// after it had answered the first.
///
/// The server receives a request between the moments when it is sent and when its reply arrives. The times of sending of two
/// requests say nothing about the time between their receipts: a link may hold up both and deliver them together. So the
/// reply to the first is compared with the sending of the second. That half a tick is a tenth of the timeout or less is a
/// condition in the README: a session of five ticks or more.
#[derive(Clone)]
pub(super) struct Answers {
    latest: Moment,
    /// The latest request that has been reported.
    reported: Moment,
    /// Requests that may not have been reported yet, in order: when each was sent, and when its reply arrived.
    pending: VecDeque<(Moment, Moment)>,
}

impl Answers {
    /// The leader itself has made the session.
    pub(super) fn new(began: Moment) -> Self {
        Self { latest: began, reported: began, pending: VecDeque::new() }
    }

    /// Notes that the reply to a request that was sent at this moment has arrived now.
    pub(super) fn note(&mut self, sent: Moment, timeout: Duration) {
        if sent.elapsed() < self.latest.elapsed() {
            self.latest = sent;
        }
        while let Some((first, answered)) = self.pending.front().copied()
            && answered.elapsed().saturating_sub(sent.elapsed()) >= timeout / APART
        {
            self.pending.pop_front();
            if first.elapsed() < self.reported.elapsed() {
                self.reported = first;
            }
        }
        let is_apart =
            |(last, _): &(Moment, Moment)| last.elapsed().saturating_sub(sent.elapsed()) >= timeout / GRAIN;
        if self.pending.back().is_none_or(is_apart) {
            self.pending.push_back((sent, Moment::now()));
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

    /// The link held up three heartbeats and delivered them together. The follower that answered them may die before it
    /// reports to the leader, which then knows only of the heartbeat before them.
    #[tokio::test(start_paused = true)]
    async fn heartbeats_that_are_answered_together_count_as_one() {
        let mut answers = Answers::new(Moment::now());
        for _ in 0..6 {
            advance(BEAT).await;
            answers.note(Moment::now(), S);
        }
        let mut sent = Vec::new();
        for _ in 0..3 {
            advance(BEAT).await;
            sent.push(Moment::now());
        }
        sent.into_iter().for_each(|sent| answers.note(sent, S));
        assert!(answers.left(S) <= Some(S / 3), "the leader ends the session before: {:?}", answers.left(S));
    }

    /// A round trip takes longer than the time between two heartbeats.
    #[tokio::test(start_paused = true)]
    async fn heartbeats_on_a_slow_link_keep_a_session() {
        let mut answers = Answers::new(Moment::now());
        let mut sent = VecDeque::new();
        for _ in 0..20 {
            sent.push_back(Moment::now());
            if sent.len() > 1 {
                advance(BEAT / 10).await;
                answers.note(sent.pop_front().expect("one"), S);
                advance(BEAT * 9 / 10).await;
            } else {
                advance(BEAT).await;
            }
            assert!(answers.left(S).is_some(), "every heartbeat was answered");
        }
    }
}
