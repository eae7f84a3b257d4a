//! What a session knows of a claim that may have a key under its lease.

use std::time::Duration;

use dlock_core::driver::Moment;

/// Time for which a request may arrive after it was given up. With Linux's settings, TCP gives up
/// retransmitting after about 15 minutes. Other systems and proxies stay well below an hour.
const LATE_REQUEST_WINDOW: Duration = Duration::from_secs(3600);

/// Record of a claim that may have a key under the session's lease, or a tombstone.
pub(super) struct Record {
    key: String,
    /// Time from the claim's last request, or from the last deletion, to the next deletion.
    deletion_delay: Duration,
    /// Whether a request that creates the key, and that fails once the claim has a tombstone, may
    /// still be executed.
    expects_late_creation: bool,
    /// Whether another request that creates the key, or moves it to the session's lease, may still
    /// be executed. The key is then deleted more than once.
    expects_other_late_request: bool,
    /// Whether the tombstone was sent. Later creations of the key cannot depend on its absence.
    may_have_tombstone: bool,
    /// End of [`LATE_REQUEST_WINDOW`]. `None` before the first deletion.
    late_until: Option<Moment>,
}

/// How a creation of a key is prevented from being executed late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    /// It fails once the claim has a tombstone.
    Tombstone,
    /// The session deletes the key more than once.
    Deletions,
}

/// What a deletion of a claim's key does with its tombstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TombstoneChange {
    Write,
    Remove,
    None,
}

impl Record {
    pub(super) fn new(key: &str, ttl: Duration) -> Self {
        Self {
            key: key.to_owned(),
            deletion_delay: ttl,
            expects_late_creation: false,
            expects_other_late_request: false,
            may_have_tombstone: false,
            late_until: None,
        }
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Sets the time from the claim's last request to its deletion.
    pub(super) fn set_ttl(&mut self, ttl: Duration) {
        self.deletion_delay = ttl;
    }

    /// Returns how the next creation of the key can be prevented from being executed late.
    pub(super) fn protection(&self) -> Protection {
        if self.may_have_tombstone { Protection::Deletions } else { Protection::Tombstone }
    }

    /// Records a request that may be executed late. Returns `false` if an earlier one may be, too.
    pub(super) fn expect(&mut self, protection: Protection) -> bool {
        let is_only_request = !self.expects_late_request();
        match protection {
            Protection::Tombstone => self.expects_late_creation = true,
            Protection::Deletions => self.expects_other_late_request = true,
        }
        self.late_until = None;
        is_only_request
    }

    /// Records that no request of the claim may be executed late.
    pub(super) fn rule_out_late_requests(&mut self) {
        (self.expects_late_creation, self.expects_other_late_request) = (false, false);
    }

    fn expects_late_request(&self) -> bool {
        self.expects_late_creation || self.expects_other_late_request
    }

    /// Returns whether a tombstone would make a late request fail.
    pub(super) fn needs_tombstone(&self) -> bool {
        self.expects_late_creation
    }

    /// Records that the tombstone is sent.
    pub(super) fn note_tombstone_sent(&mut self) {
        self.may_have_tombstone = true;
    }

    /// Records that the cluster has the tombstone.
    pub(super) fn note_tombstone(&mut self) {
        self.expects_late_creation = false;
    }

    /// Returns what the next deletion of the key does with the tombstone.
    pub(super) fn tombstone_change(&self) -> TombstoneChange {
        if self.late_until.is_some_and(Moment::has_passed) {
            if self.may_have_tombstone { TombstoneChange::Remove } else { TombstoneChange::None }
        } else if self.expects_late_creation {
            TombstoneChange::Write
        } else {
            TombstoneChange::None
        }
    }

    /// Returns the time to the next deletion after the claim has left, or `None` if none is
    /// necessary.
    pub(super) fn delay_after_leave(&mut self) -> Option<Duration> {
        if self.expects_late_request() { Some(self.deletion_delay) } else { self.tombstone_remaining() }
    }

    /// Returns the time to the next deletion after one that has made this change, or `None` if none
    /// is necessary. The pause doubles with each deletion, up to `max_delay`.
    pub(super) fn delay_after_deletion(
        &mut self,
        change: TombstoneChange,
        max_delay: Duration,
    ) -> Option<Duration> {
        let is_over = self.late_until.is_some_and(Moment::has_passed);
        if change == TombstoneChange::Remove || is_over && !self.may_have_tombstone {
            return None;
        }
        self.late_until();
        self.deletion_delay = (self.deletion_delay * 2).min(max_delay);
        if self.expects_late_request() { Some(self.deletion_delay) } else { self.tombstone_remaining() }
    }

    /// Returns the time for which the tombstone must stay. `None` if there is none.
    fn tombstone_remaining(&mut self) -> Option<Duration> {
        self.may_have_tombstone.then(|| self.late_until().remaining())
    }

    /// Returns the end of [`LATE_REQUEST_WINDOW`], which begins now if it has not begun yet.
    fn late_until(&mut self) -> Moment {
        *self.late_until.get_or_insert_with(|| Moment::now().after(LATE_REQUEST_WINDOW))
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::driver::pretend_clock;
    use tokio::time::advance;

    use super::*;

    const TTL: Duration = Duration::from_secs(10);
    const MAX: Duration = Duration::from_secs(15);

    fn record() -> Record {
        Record::new("x/1", TTL)
    }

    #[test]
    fn a_claim_whose_requests_have_known_outcomes_is_forgotten() {
        let mut record = record();
        assert!(record.expect(Protection::Tombstone));
        record.rule_out_late_requests();
        assert_eq!(record.tombstone_change(), TombstoneChange::None);
        assert_eq!(record.delay_after_leave(), None);
        assert_eq!(record.delay_after_deletion(TombstoneChange::None, MAX), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tombstone_stays_for_an_hour_and_is_then_removed_with_the_last_deletion() {
        pretend_clock();
        let mut record = record();
        assert!(record.expect(Protection::Tombstone) && !record.expect(Protection::Tombstone));
        assert!(record.needs_tombstone());
        record.note_tombstone_sent();
        assert!(record.needs_tombstone(), "the tombstone was not confirmed");
        assert_eq!(record.protection(), Protection::Deletions);
        record.note_tombstone();
        assert_eq!(record.delay_after_leave(), Some(LATE_REQUEST_WINDOW));
        assert_eq!(record.tombstone_change(), TombstoneChange::None);
        advance(LATE_REQUEST_WINDOW).await;
        assert_eq!(record.tombstone_change(), TombstoneChange::Remove);
        assert_eq!(record.delay_after_deletion(TombstoneChange::Remove, MAX), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_request_that_no_tombstone_prevents_is_deleted_for_an_hour() {
        pretend_clock();
        let mut record = record();
        assert!(record.expect(Protection::Deletions));
        assert_eq!(record.delay_after_leave(), Some(TTL));
        assert_eq!(record.delay_after_deletion(TombstoneChange::None, MAX), Some(MAX));
        assert_eq!(record.delay_after_deletion(TombstoneChange::None, MAX), Some(MAX));
        advance(LATE_REQUEST_WINDOW).await;
        assert_eq!(record.delay_after_deletion(TombstoneChange::None, MAX), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deletion_writes_a_missing_tombstone_and_is_repeated_until_it_is_confirmed() {
        pretend_clock();
        let mut record = record();
        record.expect(Protection::Tombstone);
        assert_eq!(record.delay_after_leave(), Some(TTL));
        assert_eq!(record.tombstone_change(), TombstoneChange::Write);
        record.note_tombstone_sent();
        // The cluster has refused the tombstone, and has deleted the key without it.
        assert_eq!(record.delay_after_deletion(TombstoneChange::None, MAX), Some(MAX));
        assert_eq!(record.tombstone_change(), TombstoneChange::Write);
        record.note_tombstone();
        assert_eq!(record.delay_after_deletion(TombstoneChange::Write, MAX), Some(LATE_REQUEST_WINDOW));
    }
}
