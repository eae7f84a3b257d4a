//! The queue of a name as a claim reads it: who must leave before it is the claim's turn.

use dlock_core::{
    ClaimId, Kind,
    driver::{Entry, Request, Turn, turn, watched},
};
use etcd_client::{GetOptions, KeyValue, SortOrder, SortTarget, TxnOp, TxnOpResponse, TxnResponse};

use crate::keys::{Keys, Record};

/// Where a claim stands in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is its turn.
    First,
    /// One of these keys must be deleted first.
    Behind(Vec<String>),
}

/// Whether a claim of this kind waits for whoever is directly ahead of it. Others must know the kinds of all who are ahead.
const fn waits_for_everybody(kind: Kind) -> bool {
    !matches!(kind, Kind::Read | Kind::Permit)
}

/// Reads what a claim has to know of its queue. `revision` is its own create revision, if it is known.
pub(super) fn look(keys: &Keys, kind: Kind, revision: Option<i64>) -> TxnOp {
    let mut options = GetOptions::new().with_prefix();
    if waits_for_everybody(kind) {
        // Without a revision the first is the claim itself, which the same transaction has put there.
        let count = if revision.is_some() { 1 } else { 2 };
        options =
            options.with_sort(SortTarget::Create, SortOrder::Descend).with_limit(count).with_keys_only();
    } else {
        options = options.with_sort(SortTarget::Create, SortOrder::Ascend);
    }
    if let Some(revision) = revision {
        options = options.with_max_create_revision(revision - 1);
    }
    TxnOp::get(keys.folder.as_str(), Some(options))
}

/// Reads the claim that holds the lock: the oldest.
pub(super) fn first(keys: &Keys) -> TxnOp {
    let options = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
    TxnOp::get(keys.folder.as_str(), Some(options.with_limit(1).with_keys_only()))
}

/// Where the claim with this create revision stands.
pub(super) fn standing(request: &Request, revision: i64, queue: &[KeyValue]) -> Standing {
    let mut ahead: Vec<_> = queue.iter().filter(|one| one.create_revision() < revision).collect();
    ahead.sort_by_key(|one| one.create_revision());
    let key = |one: &KeyValue| String::from_utf8_lossy(one.key()).into_owned();
    if waits_for_everybody(request.kind) {
        return ahead.last().map_or(Standing::First, |nearest| Standing::Behind(vec![key(nearest)]));
    }
    let me = Entry::new(id(revision), request.kind).limit(request.limit);
    let entries: Vec<_> = ahead.iter().map(|one| entry_of(one)).chain([me]).collect();
    if turn(&entries, me.id) == Turn::Mine {
        return Standing::First;
    }
    let watched = watched(&entries, me.id);
    let is_watched = |one: &&&KeyValue| watched.iter().any(|entry| entry.id == id(one.create_revision()));
    Standing::Behind(ahead.iter().filter(is_watched).map(|one| key(one)).collect())
}

/// The place of a claim in its queue.
pub(crate) fn entry_of(one: &KeyValue) -> Entry {
    let record = Record::read(one.value());
    Entry::new(id(one.create_revision()), record.kind).limit(record.limit)
}

/// Stands for a claim, of dlock or not, among those of one name. No two claims of a name have one create revision. (Keys that
/// another program puts in one transaction have, but they are no claims. The claims of a MultiLock have, but each is of another
/// name.)
fn id(revision: i64) -> ClaimId {
    ClaimId::from_bytes(i128::from(revision).to_be_bytes())
}

/// The rows of each range that a transaction has read.
pub(super) fn ranges(answer: &TxnResponse) -> Vec<Vec<KeyValue>> {
    let ranges = answer.op_responses().into_iter().filter_map(|one| match one {
        TxnOpResponse::Get(mut range) => Some(range.take_kvs()),
        _ => None,
    });
    ranges.collect()
}
