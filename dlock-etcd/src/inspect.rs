//! Looks up the locks of a cluster, and breaks them: those of other programs too. Keys of other programs that are no locks are shown
//! where they keep a lock taken, and never deleted.

use dlock_core::{
    Contender, LockName, LockState, Result, Token,
    driver::{Entry, Turn, turn},
};
use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse,
};

use crate::{
    claim::entry_of,
    client::Client,
    keys::{self, Record},
};

/// How many keys are read in one request.
const STEP: i64 = 1000;

/// How many holders are deleted in one request. A server allows 128 operations.
const MOST: usize = 50;

pub(crate) async fn inspect(client: &Client, name: &LockName) -> Result<Option<LockState>> {
    let queue = queue(client, name).await?;
    let mut state = state(client, name.clone(), &queue);
    // How long a session lasts, only its own client knows. A detached hold and those of other programs have a lease that
    // tells.
    for (one, row) in state.holders.iter_mut().chain(&mut state.queue).zip(&queue) {
        let record = Record::read(row.value());
        if record.own_lease.is_some() || record.who.is_none() && row.lease() != 0 {
            one.ttl_left = client.connection.left(row.lease()).await?;
        }
    }
    Ok(Some(state).filter(|state| !state.is_free()))
}

/// The claims of a lock in order of arrival.
async fn queue(client: &Client, name: &LockName) -> Result<Vec<KeyValue>> {
    let folder = keys::folder(&client.config, name)?;
    let options = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
    Ok(client.connection.get(folder.as_bytes(), options).await?.take_kvs())
}

/// The lock that has this queue.
fn state(client: &Client, name: LockName, queue: &[KeyValue]) -> LockState {
    let entries: Vec<_> = queue.iter().map(entry_of).collect();
    let mut state = LockState::new(name);
    for (row, entry) in queue.iter().zip(&entries) {
        let key = String::from_utf8_lossy(row.key());
        let rest = keys::read(&client.config, &key).map_or(&*key, |(_, rest)| rest);
        let record = Record::read(row.value());
        let heir = record.heir.map(|heir| heir.to_string());
        let mut one = Contender::new(heir.as_deref().unwrap_or(rest), record.kind);
        one.who = record.who;
        match turn(&entries, entry.id) {
            Turn::Mine => {
                let token = u64::try_from(row.create_revision()).ok().and_then(Token::new);
                state.holders.push(one.token(token));
            }
            _ => state.queue.push(one),
        }
    }
    state
}

pub(crate) async fn list(client: &Client, prefix: &str) -> Result<Vec<LockState>> {
    let beginning = keys::beginning(&client.config, prefix);
    let mut rows: Vec<(LockName, KeyValue)> = Vec::new();
    let end = after(beginning.clone().into_bytes());
    // An empty key is none.
    let mut from = if beginning.is_empty() { vec![0] } else { beginning.into_bytes() };
    loop {
        let options = GetOptions::new().with_range(end.clone()).with_limit(STEP);
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
    rows.sort_by(|(a, one), (b, other)| (a, one.create_revision()).cmp(&(b, other.create_revision())));
    let locks = rows.chunk_by(|(a, _), (b, _)| a == b);
    let state = |rows: &[(LockName, KeyValue)]| {
        let queue: Vec<_> = rows.iter().map(|(_, row)| row.clone()).collect();
        state(client, rows[0].0.clone(), &queue)
    };
    Ok(locks.map(state).collect())
}

/// The lock that this key is a claim of. `None` for another program's key that is no lock.
fn lock_of(client: &Client, row: &KeyValue) -> Option<LockName> {
    let (name, rest) = keys::read(&client.config, row.key_str().ok()?)?;
    let is_claim = Record::read(row.value()).who.is_some() || keys::is_native(rest, row.lease());
    is_claim.then_some(name)
}

/// The first key behind all that begin with this. Everything, if it is empty.
fn after(mut beginning: Vec<u8>) -> Vec<u8> {
    while let Some(last) = beginning.last_mut() {
        if *last < u8::MAX {
            *last += 1;
            return beginning;
        }
        beginning.pop();
    }
    vec![0]
}

pub(crate) async fn force_release(client: &Client, name: &LockName) -> Result<bool> {
    let queue = queue(client, name).await?;
    let entries: Vec<Entry> = queue.iter().map(entry_of).collect();
    let holders = queue.iter().zip(&entries).filter(|(_, entry)| turn(&entries, entry.id) == Turn::Mine);
    let claims = holders.map(|(row, _)| row).filter(|row| lock_of(client, row).as_ref() == Some(name));
    let (holders, mut is_broken): (Vec<_>, _) = (claims.collect(), false);
    for some in holders.chunks(MOST) {
        // The one that was seen, and not one that has come into its place.
        let breaks = some.iter().map(|row| {
            let is_seen = Compare::create_revision(row.key(), CompareOp::Equal, row.create_revision());
            TxnOp::txn(Txn::new().when([is_seen]).and_then([TxnOp::delete(row.key(), None)]))
        });
        let answer = client.connection.txn(Txn::new().and_then(breaks.collect::<Vec<_>>())).await?;
        for (row, told) in some.iter().zip(answer.told.op_responses()) {
            // The first of two requests may have deleted it.
            if !answer.twice && !matches!(told, TxnOpResponse::Txn(told) if told.succeeded()) {
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
