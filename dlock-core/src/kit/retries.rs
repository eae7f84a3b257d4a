//! The retries of one request.
//!
//! ```text
//! send ─┬─ reply ─────────────────────────► done; an earlier send may have been executed as well
//!       ├─ the connection breaks ─────────► send once more, on another connection
//!       ├─ refused before its execution ──► send once more
//!       ├─ the server became read-only ───► send again, to another server, while time is left
//!       ├─ conflict of transactions ──────► send again, a few times while time is left
//!       └─ no reply in time ──────────────► error, the outcome is unknown
//! ```
//!
//! A client often notices only at its next request that an idle connection has ended. That request
//! would fail although the server works, so drivers send it once more. They do so only with
//! requests that may be executed twice, as the contract demands of `attempt` and `release`. A
//! request without a reply is not sent again, because the server may be under load. The engine
//! retries it later.

use tokio::time::Instant;

/// Maximum number of retries after conflicts.
const MAX_CONFLICTS: u8 = 8;

/// Decides whether a request is sent again, and records whether an earlier send may have been
/// executed.
///
/// After such an execution the reply to the last send proves little. An earlier send may have
/// deleted the claim that a `release` did not find, so the driver returns
/// [`Release::Done`](crate::driver::Release::Done) and not `Gone`.
///
/// # Examples
///
/// ```
/// use dlock_core::driver::Retries;
///
/// let mut retries = Retries::default();
/// assert!(retries.after_break(), "the first break");
/// assert!(retries.maybe_executed(), "the reply was lost with the connection");
/// assert!(!retries.after_break(), "the second break");
/// ```
#[derive(Debug, Default)]
pub struct Retries {
    deadline: Option<Instant>,
    is_repeated: bool,
    conflicts: u8,
    maybe_executed: bool,
}

impl Retries {
    /// Returns the retries of a request that is not sent at or after the deadline.
    #[must_use]
    pub fn until(deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..Self::default() }
    }

    /// Returns whether time is left to send the request again.
    #[must_use]
    pub fn has_time(&self) -> bool {
        self.deadline.is_none_or(|deadline| Instant::now() < deadline)
    }

    /// Returns whether the request is sent again after its connection broke.
    ///
    /// The server may have executed it and lost the reply.
    #[must_use]
    pub fn after_break(&mut self) -> bool {
        let is_sent_again = self.after_refusal();
        self.maybe_executed |= is_sent_again;
        is_sent_again
    }

    /// Returns whether the request is sent again after the server refused it before its execution,
    /// because of an expired login for example.
    #[must_use]
    pub fn after_refusal(&mut self) -> bool {
        self.has_time() && !std::mem::replace(&mut self.is_repeated, true)
    }

    /// Returns whether the request is sent again after a server that has become read-only refused
    /// it.
    ///
    /// These refusals are not counted. Each session to such a server refuses one request, and is
    /// then replaced by a session to another server. Earlier statements of the request may have
    /// been executed.
    #[must_use]
    pub fn after_refusal_to_write(&mut self) -> bool {
        self.note_execution();
        self.has_time()
    }

    /// Returns whether the request is sent again after it conflicted with other transactions.
    #[must_use]
    pub fn after_conflict(&mut self) -> bool {
        let is_sent_again = self.conflicts < MAX_CONFLICTS && self.has_time();
        self.conflicts += u8::from(is_sent_again);
        is_sent_again
    }

    /// Records that the last send may have been executed, at least in part.
    pub fn note_execution(&mut self) {
        self.maybe_executed = true;
    }

    /// Returns whether a send before the last one may have been executed.
    #[must_use]
    pub fn maybe_executed(&self) -> bool {
        self.maybe_executed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_refused_request_is_sent_once_more_and_was_not_executed() {
        let mut retries = Retries::default();
        assert!(retries.after_refusal());
        assert!(!retries.maybe_executed());
        assert!(!retries.after_break(), "a refusal uses up the only retry");
        assert!(!retries.maybe_executed(), "no further send follows, so no reply is in doubt");
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_is_sent_after_its_deadline() {
        let mut retries = Retries::until(Instant::now() + Duration::from_secs(1));
        assert!(retries.after_conflict());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!retries.has_time());
        assert!(!retries.after_conflict());
        assert!(!retries.after_break());
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_to_write_are_not_counted_and_end_at_the_deadline() {
        let mut retries = Retries::until(Instant::now() + Duration::from_secs(1));
        for _ in 0..100 {
            assert!(retries.after_refusal_to_write());
        }
        assert!(retries.maybe_executed());
        assert!(retries.after_break(), "the retry after a break is left");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!retries.after_refusal_to_write());
    }

    #[test]
    fn conflicts_are_bounded_and_leave_the_retry_after_a_break() {
        let mut retries = Retries::default();
        let sends = std::iter::from_fn(|| retries.after_conflict().then_some(())).take(100).count();
        assert_eq!(sends, usize::from(MAX_CONFLICTS));
        assert!(!retries.maybe_executed(), "a conflict rolls the transaction back");
        assert!(retries.after_break());
    }
}
