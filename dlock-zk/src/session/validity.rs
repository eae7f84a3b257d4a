//! The time for which a session is certainly alive, derived from the requests that its servers have
//! confirmed.

use std::{collections::VecDeque, time::Duration};

use dlock_core::driver::Moment;

/// Fraction of the timeout for which the session is valid after a request was sent, if a reply to
/// it has arrived.
const VALID_AFTER_REPLY: (u32, u32) = (2, 3);

/// Fraction of the timeout for which the session is valid after a request was sent, if the leader
/// knows of the request. The remaining sixth allows for clocks of different speed.
const VALID_AFTER_REPORT: (u32, u32) = (5, 6);

/// Divisor of the timeout. The leader certainly knows of a request if another request was sent at
/// least this part of the timeout after the reply to the first, and was confirmed.
const REPORT_GAP_DIVISOR: u32 = 10;

/// Divisor of the timeout: minimum interval between the requests that are remembered. Bounds their
/// number.
const SPACING_DIVISOR: u32 = 60;

/// Send times of requests that a majority of the servers has confirmed.
///
/// A reply alone does not renew a session. The leader ends the session one timeout after the last
/// report about the client. A follower reports its clients to the leader once in half a tick. If
/// the follower dies right after a reply, the leader knows only of earlier requests. A confirmed
/// request therefore keeps the session valid for longer once the server has received another
/// request at least half a tick after its reply to the first.
///
/// The server receives a request between its sending and the arrival of its reply. The send times
/// of two requests say nothing about the interval between their receipts, because a link may delay
/// both and deliver them together. The reply time of the first request is therefore compared with
/// the send time of the second. The README requires a session of at least five ticks, so half a
/// tick is at most a tenth of the timeout.
#[derive(Clone)]
pub(super) struct Validity {
    /// Send time of the last confirmed request.
    latest: Moment,
    /// Send time of the last request that the leader certainly knows of.
    reported: Moment,
    /// Requests that the leader may not know of, in order: send time and time of the reply.
    pending: VecDeque<(Moment, Moment)>,
}

impl Validity {
    /// Creates the validity of a session that the client began to open at `began`. The leader knows
    /// of that request, because it created the session.
    pub(super) fn new(began: Moment) -> Self {
        Self { latest: began, reported: began, pending: VecDeque::new() }
    }

    /// Records that the reply to a request that was sent at `sent` has arrived now.
    pub(super) fn confirm(&mut self, sent: Moment, timeout: Duration) {
        if sent.elapsed() < self.latest.elapsed() {
            self.latest = sent;
        }
        while let Some((first, replied)) = self.pending.front().copied()
            && replied.elapsed().saturating_sub(sent.elapsed()) >= timeout / REPORT_GAP_DIVISOR
        {
            self.pending.pop_front();
            if first.elapsed() < self.reported.elapsed() {
                self.reported = first;
            }
        }
        let is_apart = |(last, _): &(Moment, Moment)| {
            last.elapsed().saturating_sub(sent.elapsed()) >= timeout / SPACING_DIVISOR
        };
        if self.pending.back().is_none_or(is_apart) {
            self.pending.push_back((sent, Moment::now()));
        }
    }

    /// Returns the time since the last confirmed request was sent.
    pub(super) fn age(&self) -> Duration {
        self.latest.elapsed()
    }

    /// Returns the time for which the session is certainly alive, or `None` if that time has
    /// passed.
    pub(super) fn remaining(&self, timeout: Duration) -> Option<Duration> {
        let time_left = |(numerator, denominator), sent: Moment| {
            (timeout * numerator / denominator).checked_sub(sent.elapsed())
        };
        let remaining =
            time_left(VALID_AFTER_REPLY, self.latest)?.min(time_left(VALID_AFTER_REPORT, self.reported)?);
        Some(remaining).filter(|remaining| !remaining.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const TIMEOUT: Duration = Duration::from_secs(60);
    const INTERVAL: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn beside_regular_heartbeats_half_of_the_timeout_is_always_left() {
        let mut validity = Validity::new(Moment::now());
        for _ in 0..20 {
            advance(INTERVAL).await;
            assert!(
                validity.remaining(TIMEOUT) >= Some(TIMEOUT / 2 - Duration::from_millis(10)),
                "{:?}",
                validity.remaining(TIMEOUT)
            );
            validity.confirm(Moment::now(), TIMEOUT);
        }
        advance(TIMEOUT).await;
        assert_eq!(validity.remaining(TIMEOUT), None);
    }

    /// The follower that replied may die before it reports to the leader. The leader then counts
    /// from the previous report.
    #[tokio::test(start_paused = true)]
    async fn the_first_answer_after_a_silence_counts_for_little_until_there_is_another() {
        let mut validity = Validity::new(Moment::now());
        advance(TIMEOUT / 2).await;
        validity.confirm(Moment::now(), TIMEOUT);
        assert!(
            validity.remaining(TIMEOUT) <= Some(TIMEOUT / 3),
            "the leader may not know of the last request"
        );
        advance(TIMEOUT / 60).await;
        validity.confirm(Moment::now(), TIMEOUT);
        assert!(
            validity.remaining(TIMEOUT) <= Some(TIMEOUT / 3),
            "the second request came less than half a tick later"
        );
        advance(INTERVAL).await;
        validity.confirm(Moment::now(), TIMEOUT);
        assert!(validity.remaining(TIMEOUT) > Some(TIMEOUT / 2));
    }

    /// The link delays three heartbeats and delivers them together. The follower that replied to
    /// them may die before it reports to the leader, which then knows only of the heartbeat before
    /// them.
    #[tokio::test(start_paused = true)]
    async fn heartbeats_that_are_answered_together_count_as_one() {
        let mut validity = Validity::new(Moment::now());
        for _ in 0..6 {
            advance(INTERVAL).await;
            validity.confirm(Moment::now(), TIMEOUT);
        }
        let mut sent = Vec::new();
        for _ in 0..3 {
            advance(INTERVAL).await;
            sent.push(Moment::now());
        }
        sent.into_iter().for_each(|sent| validity.confirm(sent, TIMEOUT));
        assert!(
            validity.remaining(TIMEOUT) <= Some(TIMEOUT / 3),
            "the leader may end the session earlier: {:?}",
            validity.remaining(TIMEOUT)
        );
    }

    /// A round trip takes longer than the interval between two heartbeats.
    #[tokio::test(start_paused = true)]
    async fn heartbeats_on_a_slow_link_keep_a_session() {
        let mut validity = Validity::new(Moment::now());
        let mut sent = VecDeque::new();
        for _ in 0..20 {
            sent.push_back(Moment::now());
            if sent.len() > 1 {
                advance(INTERVAL / 10).await;
                validity.confirm(sent.pop_front().expect("two were sent"), TIMEOUT);
                advance(INTERVAL * 9 / 10).await;
            } else {
                advance(INTERVAL).await;
            }
            assert!(validity.remaining(TIMEOUT).is_some(), "every heartbeat was confirmed");
        }
    }
}
