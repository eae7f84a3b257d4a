//! The labels of claims. The ids of a client's claims begin with the key of their label, so the
//! server stores a label once for all claims, and few acquisitions need an additional command.

use std::{collections::HashMap, pin::Pin, time::Duration};

use dlock_core::{
    ClaimId, Who,
    driver::{Moment, Request},
};
use futures_util::future::{Either, FutureExt as _, join_all, select};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::Client;
use crate::{
    keys,
    scripts::{WHO, WHO_DELETE, millis},
};

/// Time for which a new label outlives the claim that it was written for. It is short, because most
/// processes and most labels are used for seconds only, and many of them must not fill the server.
const FIRST_EXTRA: Duration = Duration::from_secs(3 * 60);

/// Time for which the label of a client that continues to run outlives the claim.
const LATER_EXTRA: Duration = Duration::from_secs(3600);

/// Minimum time for which a label must outlive the claim. If less is left, the next attempt or
/// renewal writes the label again.
const MIN_EXTRA: Duration = Duration::from_secs(2 * 60);

/// Minimum time between two writes of a label by attempts and renewals. It limits the cost for a
/// user without the right to write labels. A detachment does not wait for it.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum time for which a call that has its reply waits for the node that stores the label.
const WRITE_GRACE: Duration = Duration::from_millis(200);

/// Maximum time for which a client that closes waits until its labels are deleted. The commands are
/// sent at once, so a reply that arrives later is not needed.
const DELETION_GRACE: Duration = Duration::from_millis(200);

/// Maximum number of labels that a client deletes when it closes. Most clients have one. Others
/// expire.
const MAX_DELETIONS: usize = 100;

/// The labels that a client has written and that have not expired.
pub(crate) struct WrittenLabels {
    /// Id of the client. A label that no other client has used is stored with it.
    client: ClaimId,
    state: Mutex<State>,
}

struct State {
    labels: HashMap<[u8; Who::KEY_LEN], Label>,
    /// Time of the next removal of expired labels from `labels`.
    next_sweep: Moment,
}

struct Label {
    /// Time at which the label expires on the server. `None` if the server has not confirmed it.
    expires_at: Option<Moment>,
    /// Time from which an attempt or a renewal may write the label again.
    retry_at: Moment,
    /// End of the last detached claim with this label. `None` if there was none.
    detached_until: Option<Moment>,
}

impl WrittenLabels {
    pub(crate) fn new() -> Self {
        let state = State { labels: HashMap::new(), next_sweep: Moment::now().after(MIN_EXTRA) };
        Self { client: ClaimId::random(), state: Mutex::new(state) }
    }

    /// Returns the ttl with which the caller must write the label of a claim now, or `None` if it
    /// need not be written. A returned ttl counts as a write, whether the write succeeds or not:
    /// calls without `is_last` then return `None` for [`RETRY_INTERVAL`]. A call with `is_last`
    /// returns a ttl until the server has confirmed a sufficient expiry. Also forgets expired
    /// labels from time to time.
    ///
    /// `lasting` is the time that the claim lasts. `is_last` says that no renewal of the claim
    /// follows, because the call detaches it.
    fn begin_write(&self, key: [u8; Who::KEY_LEN], lasting: Duration, is_last: bool) -> Option<Duration> {
        let mut state = self.state.lock();
        let now = Moment::now();
        let retry_at = now.after(RETRY_INTERVAL);
        let detached_until = is_last.then(|| now.after(lasting));
        let Some(label) = state.labels.get_mut(&key) else {
            if state.next_sweep.has_passed() {
                let exists = |label: &Label| label.expires_at.is_some_and(|at| !at.has_passed());
                state.labels.retain(|_, label| exists(label) || !label.retry_at.has_passed());
                state.next_sweep = now.after(MIN_EXTRA);
            }
            state.labels.insert(key, Label { expires_at: None, retry_at, detached_until });
            return Some(lasting + FIRST_EXTRA);
        };
        if let Some(until) = detached_until {
            let is_later = |known: Moment| until.since(known) > Duration::ZERO;
            label.detached_until = label.detached_until.filter(|known| !is_later(*known)).or(detached_until);
        }
        let lasts = |expires_at: Moment| expires_at.since(now) >= lasting + MIN_EXTRA;
        if label.expires_at.is_some_and(lasts) || !is_last && !label.retry_at.has_passed() {
            return None;
        }
        label.retry_at = retry_at;
        Some(lasting + if is_last || label.expires_at.is_none() { FIRST_EXTRA } else { LATER_EXTRA })
    }

    fn confirm(&self, key: [u8; Who::KEY_LEN], expires_at: Moment) {
        let mut state = self.state.lock();
        if let Some(label) = state.labels.get_mut(&key) {
            label.expires_at = Some(expires_at);
        }
    }

    /// Returns the labels that the server has and no detached claim needs. Forgets all labels except
    /// those of detached claims.
    ///
    /// A client that shares this state and is still open writes its label again with its next
    /// attempt or renewal.
    fn take_unneeded(&self) -> Vec<[u8; Who::KEY_LEN]> {
        let is_pending = |at: Option<Moment>| at.is_some_and(|at| !at.has_passed());
        let mut unneeded = Vec::new();
        self.state.lock().labels.retain(|key, label| {
            let is_needed = is_pending(label.detached_until);
            if !is_needed && is_pending(label.expires_at) {
                unneeded.push(*key);
            }
            is_needed
        });
        unneeded
    }
}

impl Client {
    /// Makes a call for a claim, and writes the claim's label at the same time if that is due.
    ///
    /// A failure to write the label does not affect the call. Writing delays the call by at most
    /// [`WRITE_GRACE`], and only when it is due. `detached` is the time for which the call detaches
    /// the claim. The call is pinned, because each function that takes a large future by value
    /// copies it.
    pub(crate) async fn call_with_label<T>(
        &self,
        request: &Request,
        detached: Option<Duration>,
        call: Pin<&mut impl Future<Output = T>>,
    ) -> T {
        let lasting = detached.unwrap_or(request.ttl);
        match self.labels.begin_write(request.id.who_key(), lasting, detached.is_some()) {
            None => call.await,
            // Boxed because it is rare, and would make the future of every call larger.
            Some(ttl) => Box::pin(self.call_and_write_label(request, ttl, call)).await,
        }
    }

    async fn call_and_write_label<T>(
        &self,
        request: &Request,
        ttl: Duration,
        call: Pin<&mut impl Future<Output = T>>,
    ) -> T {
        // The write is polled first, so a single server replies to it first. On a cluster, the
        // reply to the call may arrive earlier, from another node. The write then gets some more
        // time, because a command that is not sent yet would otherwise never be sent.
        let write = self.write_label(request, ttl).boxed();
        match select(write, call).await {
            Either::Left(((), call)) => call.await,
            Either::Right((result, write)) => {
                timeout(WRITE_GRACE.min(request.ttl / 10), write).await.ok();
                result
            }
        }
    }

    async fn write_label(&self, request: &Request, ttl: Duration) {
        let (key, sent_at) = (request.id.who_key(), Moment::now());
        // The id of a ticket has the key of the label of the client that drew the ticket. This
        // client may not know that label, so the label in the store stays as it is.
        let text = if key == request.who.key() { request.who.text() } else { "" };
        let args = (text, self.labels.client.to_string(), millis(ttl));
        let call = WHO.call(keys::label_key(&self.config.prefix, key), args);
        if self.connection.query_once(call.in_full()).await.is_some() {
            self.labels.confirm(key, sent_at.after(ttl));
        }
    }

    /// Deletes the labels that this client has written, except those of detached claims and those
    /// that another client has used too. Ignores failures, because labels expire. A client that has
    /// written no label sends nothing.
    ///
    /// Each label has its own command, because on a cluster, or behind a proxy, two labels may be on
    /// different servers. The commands of all labels are sent together.
    pub(crate) async fn delete_labels(&self) {
        let client = self.labels.client.to_string();
        let labels = self.labels.take_unneeded().into_iter().take(MAX_DELETIONS);
        let deletions = labels.map(|key| {
            let call = WHO_DELETE.call(keys::label_key(&self.config.prefix, key), &*client);
            self.connection.query_once(call.in_full())
        });
        timeout(DELETION_GRACE, join_all(deletions)).await.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_written_for_minutes_and_for_longer_by_a_client_that_continues() {
        let (labels, anna, bert) = (WrittenLabels::new(), [1; 5], [2; 5]);
        let (ttl, long) = (Duration::from_secs(30), Duration::from_secs(24 * 3600));
        assert_eq!(labels.begin_write(anna, ttl, false), Some(ttl + FIRST_EXTRA));
        assert_eq!(
            labels.begin_write(anna, ttl, false),
            None,
            "each acquisition writes it until the server has replied"
        );
        labels.confirm(anna, Moment::now().after(ttl + FIRST_EXTRA));
        assert_eq!(labels.begin_write(anna, ttl, false), None, "written again though it exists");
        assert_eq!(
            labels.begin_write(bert, ttl, false),
            Some(ttl + FIRST_EXTRA),
            "not written, though it is another label"
        );
        assert_eq!(
            labels.begin_write(anna, long, true),
            Some(long + FIRST_EXTRA),
            "not written, though it expires before the detached claim"
        );
        labels.confirm(anna, Moment::now().after(long + FIRST_EXTRA));
        assert_eq!(labels.begin_write(anna, long, true), None, "written again though it lasts long enough");
        // The label expires soon, and was written a minute ago.
        labels.confirm(anna, Moment::now().after(ttl));
        labels.state.lock().labels.get_mut(&anna).unwrap().retry_at = Moment::now();
        assert_eq!(labels.begin_write(anna, ttl, false), Some(ttl + LATER_EXTRA));
    }

    #[test]
    fn a_label_that_the_server_does_not_have_or_that_a_detached_claim_needs_is_not_deleted() {
        let (labels, [anna, bert, carl]) = (WrittenLabels::new(), [[1; 5], [2; 5], [3; 5]]);
        let ttl = Duration::from_secs(30);
        for label in [anna, bert, carl] {
            labels.begin_write(label, ttl, false);
        }
        labels.confirm(anna, Moment::now().after(ttl + FIRST_EXTRA));
        labels.confirm(bert, Moment::now().after(ttl + FIRST_EXTRA));
        labels.begin_write(bert, 2 * ttl, true);
        labels.begin_write(bert, ttl, true);
        assert_eq!(labels.take_unneeded(), [anna], "of a label, one of a detached claim, and none");
        assert_eq!(labels.take_unneeded(), [[0; 5]; 0], "deleted twice");
        // Another client with the same connection is closed later.
        assert_eq!(labels.begin_write(anna, ttl, false), Some(ttl + FIRST_EXTRA), "not written again");
        labels.begin_write(bert, ttl, false);
        labels.confirm(anna, Moment::now().after(ttl + FIRST_EXTRA));
        assert_eq!(labels.take_unneeded(), [anna], "the label of a detached claim is deleted later");
    }
}
