//! The queue of a lock as its claims read it, and the position of a claim in it.
//!
//! `queue/snapshot.rs` is for the claims that wait beside other claims of their client.

mod snapshot;

use dlock_core::{
    ClaimId, Kind,
    driver::{Entry, Request, Turn, turn, watched},
};
use etcd_client::{GetOptions, KeyValue, SortOrder, SortTarget, TxnOp, TxnOpResponse, TxnResponse};

use crate::keys::{Keys, Record};
pub(crate) use snapshot::{Place, Queue, Reader};

/// Position of a claim in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// The claim has its turn.
    First,
    /// One of these keys must be deleted before the claim's turn can come.
    Behind(Vec<String>),
}

/// Returns whether a claim of this kind waits for every claim ahead of it. It then needs only the
/// claim directly ahead. A claim of another kind must know the kinds of all claims ahead.
pub(crate) const fn waits_for_all(kind: Kind) -> bool {
    !matches!(kind, Kind::Read | Kind::Permit)
}

/// Returns the operation that reads the claims ahead of a claim, as far as [`position`] needs them.
/// `revision` is the claim's own create revision, if it is known.
pub(crate) fn read(keys: &Keys, kind: Kind, revision: Option<i64>) -> TxnOp {
    let mut options = GetOptions::new().with_prefix();
    if waits_for_all(kind) {
        // Without a revision the newest key is the claim's own, which the same transaction has
        // created.
        let count = if revision.is_some() { 1 } else { 2 };
        options =
            options.with_sort(SortTarget::Create, SortOrder::Descend).with_limit(count).with_keys_only();
    } else {
        options = options.with_sort(SortTarget::Create, SortOrder::Ascend);
    }
    if let Some(revision) = revision {
        options = options.with_max_create_revision(revision - 1);
    }
    TxnOp::get(keys.queue.as_str(), Some(options))
}

/// Returns the operation that reads the key of the oldest claim, which holds the lock.
pub(crate) fn read_first(keys: &Keys) -> TxnOp {
    let options = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
    TxnOp::get(keys.queue.as_str(), Some(options.with_limit(1).with_keys_only()))
}

/// Returns the position of the claim with this create revision.
pub(crate) fn position(request: &Request, revision: i64, queue: &[KeyValue]) -> Position {
    let mut ahead: Vec<_> = queue.iter().filter(|claim| claim.create_revision() < revision).collect();
    ahead.sort_by_key(|claim| claim.create_revision());
    let key = |claim: &KeyValue| String::from_utf8_lossy(claim.key()).into_owned();
    if waits_for_all(request.kind) {
        return ahead.last().map_or(Position::First, |nearest| Position::Behind(vec![key(nearest)]));
    }
    let own = Entry::new(entry_id(revision), request.kind).limit(request.limit);
    let entries: Vec<_> = ahead.iter().map(|claim| entry_of(claim)).chain([own]).collect();
    if turn(&entries, own.id) == Turn::Mine {
        return Position::First;
    }
    let watched = watched(&entries, own.id);
    let is_watched =
        |claim: &&&KeyValue| watched.iter().any(|entry| entry.id == entry_id(claim.create_revision()));
    Position::Behind(ahead.iter().filter(is_watched).map(|claim| key(claim)).collect())
}

/// Returns the queue entry of a claim.
pub(crate) fn entry_of(claim: &KeyValue) -> Entry {
    let record = Record::read(claim.value());
    Entry::new(entry_id(claim.create_revision()), record.kind).limit(record.limit)
}

/// Returns the id that identifies a claim, of dlock or of another program, in the queue of one
/// name.
///
/// No two claims of a name have the same create revision. Keys that another program creates in one
/// transaction share one, but they are not claims. The claims of a `MultiLock` share one, but they
/// belong to different names.
fn entry_id(revision: i64) -> ClaimId {
    ClaimId::from_bytes(i128::from(revision).to_be_bytes())
}

/// Returns the keys of each range that a transaction has read.
pub(crate) fn ranges(response: &TxnResponse) -> Vec<Vec<KeyValue>> {
    let ranges = response.op_responses().into_iter().filter_map(|response| match response {
        TxnOpResponse::Get(mut range) => Some(range.take_kvs()),
        _ => None,
    });
    ranges.collect()
}
