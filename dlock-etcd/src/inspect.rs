//! Lists the locks of a cluster and breaks them, including locks of other programs. A key of
//! another program that is not a claim but blocks a lock is shown with the lock, and is never
//! deleted.

use std::time::Duration;

use dlock_core::{
    Contender, Error, Kind, LockName, LockState, Result, Token,
    driver::{Entry, Turn, turn},
};
use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse,
};

use crate::{
    client::Client,
    keys::{self, Record},
    queue::entry_of,
};

/// Maximum number of keys that one request reads.
const PAGE_SIZE: i64 = 1000;

/// Maximum number of holders that one request deletes. A server allows 128 operations.
const MAX_BREAKS: usize = 50;

/// Returns the holders and the queue of one lock. Returns `None` if the lock has no claim.
pub(crate) async fn inspect(client: &Client, name: &LockName) -> Result<Option<LockState>> {
    inspect_first(client, name, 0).await
}

/// Returns the holder of an exclusive lock.
pub(crate) async fn holder(client: &Client, name: &LockName) -> Result<Option<Contender>> {
    let state = inspect_first(client, name, 1).await?;
    Ok(state.and_then(|state| state.holders.into_iter().next()))
}

/// Returns the holders and the queue among the first `count` claims, or among all for zero.
async fn inspect_first(client: &Client, name: &LockName, count: i64) -> Result<Option<LockState>> {
    let queue = queue(client, name, count).await?;
    let mut state = state(client, name.clone(), &queue);
    // Only the client of a claim knows the claim's ttl. The lease of a detached hold, and that of
    // another program, expires with the claim.
    for (contender, row) in state.holders.iter_mut().chain(&mut state.queue).zip(&queue) {
        let rest = part_of_claim(client, row).unwrap_or_default();
        if Record::read(row.value()).own_lease.is_some() {
            contender.ttl_left = client.connection.lease_remaining(row.lease()).await?;
        } else if row.lease() != 0 && !keys::is_of_dlock(&rest, row.value()) {
            // The server rounds down to whole seconds.
            let remaining = client.connection.lease_remaining(row.lease()).await?;
            contender.ttl_left = remaining.map(|remaining| remaining + Duration::from_secs(1));
        }
    }
    Ok(Some(state).filter(|state| !state.is_free()))
}

/// Reads the first `count` claims of a lock, or all for zero, in order of arrival.
async fn queue(client: &Client, name: &LockName, count: i64) -> Result<Vec<KeyValue>> {
    let prefix = keys::queue_prefix(&client.config, name)?;
    let options = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
    let options = options.with_limit(count);
    Ok(client.connection.get(prefix.as_bytes(), options).await?.take_kvs())
}

/// Returns the state of the lock with this queue.
fn state(client: &Client, name: LockName, queue: &[KeyValue]) -> LockState {
    let entries: Vec<_> = queue.iter().map(entry_of).collect();
    let mut state = LockState::new(name);
    for (row, entry) in queue.iter().zip(&entries) {
        let rest = part_of_claim(client, row);
        let rest = rest.unwrap_or_else(|| String::from_utf8_lossy(row.key()).into_owned());
        let record = Record::read(row.value());
        let renamed_to = record.renamed_to.map(|id| id.to_string());
        let id = renamed_to.as_deref().unwrap_or(&rest);
        let is_claim = keys::is_claim(&rest, row.value(), row.lease());
        let mut contender = Contender::new(id, if is_claim { record.kind } else { Kind::Mutex });
        contender.who = record.who.filter(|_| is_claim);
        match turn(&entries, entry.id) {
            Turn::Mine => {
                let token = u64::try_from(row.create_revision()).ok().and_then(Token::new);
                state.holders.push(contender.token(token));
            }
            _ => state.queue.push(contender),
        }
    }
    state
}

/// Returns the locks whose names begin with `prefix`, in the order of their names.
pub(crate) async fn list(client: &Client, prefix: &str) -> Result<Vec<LockState>> {
    let start = keys::name_prefix(&client.config, prefix).into_bytes();
    let mut rows: Vec<(LockName, KeyValue)> = Vec::new();
    let end = prefix_end(start.clone());
    // etcd has no empty key.
    let mut from = if start.is_empty() { vec![0] } else { start };
    loop {
        let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE_SIZE);
        let mut page = client.connection.get(&from, options).await?;
        let (more, page) = (page.more(), page.take_kvs());
        if let Some(last) = page.last() {
            from = [last.key(), b"\0"].concat();
        }
        rows.extend(page.into_iter().filter_map(|row| Some((lock_of(client, &row)?, row))));
        if !more {
            break;
        }
    }
    rows.sort_by(|(a, row), (b, other)| (a, row.create_revision()).cmp(&(b, other.create_revision())));
    let locks = rows.chunk_by(|(a, _), (b, _)| a == b);
    let state = |rows: &[(LockName, KeyValue)]| {
        let queue: Vec<_> = rows.iter().map(|(_, row)| row.clone()).collect();
        state(client, rows[0].0.clone(), &queue)
    };
    Ok(locks.map(state).collect())
}

/// Returns the lock of which this key is a claim. Returns `None` for another program's key that is
/// not a claim.
fn lock_of(client: &Client, row: &KeyValue) -> Option<LockName> {
    let (name, rest) = keys::parse_key(&client.config, row.key_str().ok()?)?;
    keys::is_claim(rest, row.value(), row.lease()).then_some(name)
}

/// Returns the part of a key behind the name of its lock.
fn part_of_claim(client: &Client, row: &KeyValue) -> Option<String> {
    let (_, rest) = keys::parse_key(&client.config, row.key_str().ok()?)?;
    Some(rest.to_owned())
}

/// Returns the first key behind all keys with this prefix. For an empty prefix, returns etcd's mark
/// for the end of all keys.
fn prefix_end(mut prefix: Vec<u8>) -> Vec<u8> {
    while let Some(last) = prefix.last_mut() {
        if *last < u8::MAX {
            *last += 1;
            return prefix;
        }
        prefix.pop();
    }
    vec![0]
}

/// Deletes the claims that hold a lock, many in one request. If the cluster refuses that, deletes
/// each claim by itself. Returns whether there was one.
pub(crate) async fn force_release(client: &Client, name: &LockName) -> Result<bool> {
    let queue = queue(client, name, 0).await?;
    let entries: Vec<Entry> = queue.iter().map(entry_of).collect();
    let holders = queue.iter().zip(&entries).filter(|(_, entry)| turn(&entries, entry.id) == Turn::Mine);
    let claims = holders.map(|(row, _)| row).filter(|row| lock_of(client, row).as_ref() == Some(name));
    let (holders, mut is_broken): (Vec<_>, _) = (claims.collect(), false);
    for chunk in holders.chunks(MAX_BREAKS) {
        let broken = match break_claims(client, chunk).await {
            // The cluster may allow fewer operations or bytes in a request.
            Err(Error::Refused { .. }) if chunk.len() > 1 => {
                let mut broken = Vec::new();
                for claim in chunk.chunks(1) {
                    broken.extend(break_claims(client, claim).await?);
                }
                broken
            }
            result => result?,
        };
        is_broken |= !broken.is_empty();
        for lease in broken.into_iter().flatten() {
            client.connection.revoke(lease).await?;
        }
    }
    Ok(is_broken)
}

/// Deletes these claims in one request. Returns the own lease of each claim that was deleted, or
/// `None` for a claim without one.
async fn break_claims(client: &Client, claims: &[&KeyValue]) -> Result<Vec<Option<i64>>> {
    // Only the claim that was read, and not a later one with the same key.
    let breaks = claims.iter().map(|row| {
        let is_same = Compare::create_revision(row.key(), CompareOp::Equal, row.create_revision());
        TxnOp::txn(Txn::new().when([is_same]).and_then([TxnOp::delete(row.key(), None)]))
    });
    let response = client.connection.txn(Txn::new().and_then(breaks.collect::<Vec<_>>())).await?;
    let deleted = claims.iter().zip(response.body.op_responses()).filter(|(_, result)| {
        // The first of two sends may have deleted it.
        response.maybe_repeated || matches!(result, TxnOpResponse::Txn(txn) if txn.succeeded())
    });
    let leases =
        deleted.map(|(row, _)| Record::read(row.value()).own_lease.filter(|lease| *lease == row.lease()));
    Ok(leases.collect())
}
