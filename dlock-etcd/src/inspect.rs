//! Lists the locks of a cluster and breaks them, including locks of other programs. A key of
//! another program that is not a claim but blocks a lock is shown with the lock, and is never
//! deleted.

use dlock_core::{
    Contender, LockName, LockState, Result, Token,
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
    let queue = queue(client, name).await?;
    let mut state = state(client, name.clone(), &queue);
    // Only the client of a claim knows the claim's ttl. The lease of a detached hold, and that of
    // another program, expires with the claim.
    for (contender, row) in state.holders.iter_mut().chain(&mut state.queue).zip(&queue) {
        let record = Record::read(row.value());
        if record.own_lease.is_some() || record.who.is_none() && row.lease() != 0 {
            contender.ttl_left = client.connection.lease_remaining(row.lease()).await?;
        }
    }
    Ok(Some(state).filter(|state| !state.is_free()))
}

/// Reads the claims of a lock, in order of arrival.
async fn queue(client: &Client, name: &LockName) -> Result<Vec<KeyValue>> {
    let prefix = keys::queue_prefix(&client.config, name)?;
    let options = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
    Ok(client.connection.get(prefix.as_bytes(), options).await?.take_kvs())
}

/// Returns the state of the lock with this queue.
fn state(client: &Client, name: LockName, queue: &[KeyValue]) -> LockState {
    let entries: Vec<_> = queue.iter().map(entry_of).collect();
    let mut state = LockState::new(name);
    for (row, entry) in queue.iter().zip(&entries) {
        let key = String::from_utf8_lossy(row.key());
        let rest = keys::parse_key(&client.config, &key).map_or(&*key, |(_, rest)| rest);
        let record = Record::read(row.value());
        let renamed_to = record.renamed_to.map(|id| id.to_string());
        let mut contender = Contender::new(renamed_to.as_deref().unwrap_or(rest), record.kind);
        contender.who = record.who;
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
    let is_claim = Record::read(row.value()).who.is_some() || keys::is_native(rest, row.lease());
    is_claim.then_some(name)
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

/// Deletes the claims that hold a lock. Returns whether there was one.
pub(crate) async fn force_release(client: &Client, name: &LockName) -> Result<bool> {
    let queue = queue(client, name).await?;
    let entries: Vec<Entry> = queue.iter().map(entry_of).collect();
    let holders = queue.iter().zip(&entries).filter(|(_, entry)| turn(&entries, entry.id) == Turn::Mine);
    let claims = holders.map(|(row, _)| row).filter(|row| lock_of(client, row).as_ref() == Some(name));
    let (holders, mut is_broken): (Vec<_>, _) = (claims.collect(), false);
    for chunk in holders.chunks(MAX_BREAKS) {
        // Only the claim that was read, and not a later one with the same key.
        let breaks = chunk.iter().map(|row| {
            let is_same = Compare::create_revision(row.key(), CompareOp::Equal, row.create_revision());
            TxnOp::txn(Txn::new().when([is_same]).and_then([TxnOp::delete(row.key(), None)]))
        });
        let response = client.connection.txn(Txn::new().and_then(breaks.collect::<Vec<_>>())).await?;
        for (row, result) in chunk.iter().zip(response.body.op_responses()) {
            // The first of two sends may have deleted it.
            if !response.maybe_repeated && !matches!(result, TxnOpResponse::Txn(txn) if txn.succeeded()) {
                continue;
            }
            is_broken = true;
            if let Some(lease) = Record::read(row.value()).own_lease.filter(|lease| *lease == row.lease()) {
                client.connection.revoke(lease).await?;
            }
        }
    }
    Ok(is_broken)
}
