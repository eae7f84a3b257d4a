//! Inspects the queue, and breaks locks.

use std::num::NonZeroU32;

use async_trait::async_trait;
use dlock_core::{
    Contender, LockName, LockState, Result, Token,
    driver::{Entry, Inspect, LateExecution, Turn, turn},
};
use tokio_postgres::Row;
use uuid::Uuid;

use super::backend::QueueBackend;
use crate::{
    connection::{Call, Priority},
    error::STORE,
    keys,
    sql::{Function, column, text},
};

/// A claim's row of the queue, as it is shown to users.
struct QueueRow {
    name: String,
    entry: Entry,
    token: Option<Token>,
    contender: Contender,
}

impl QueueRow {
    /// Reads a row of `look.sql`.
    fn read(row: &Row) -> Result<Self> {
        let bad = |column: &str| STORE.refused(format!("a row of the queue has a bad {column}"));
        let kind = keys::parse_kind(column(row, "kind")?).ok_or_else(|| bad("kind"))?;
        let slots = u32::try_from(column::<i32>(row, "slots")?).ok();
        let limit = slots.and_then(NonZeroU32::new).ok_or_else(|| bad("limit"))?;
        let id = keys::claim_id(column(row, "claim")?);
        let seq: i64 = column(row, "seq")?;
        Ok(Self {
            name: text(row, "name")?,
            entry: Entry::new(id, kind).limit(limit),
            token: u64::try_from(seq).ok().and_then(Token::new),
            contender: Contender::new(id.to_string(), kind)
                .since(keys::duration(column(row, "age")?))
                .ttl_left(keys::duration(column(row, "time_left")?))
                .who(text(row, "who")?),
        })
    }
}

#[async_trait]
impl Inspect for QueueBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        Ok(states(&self.rows_of(name).await?)?.pop())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        states(&self.rows(prefix.as_bytes().to_vec(), keys::upper_bound(prefix)).await?)
    }

    /// Breaks the claims that hold when the queue is read. A claim that is granted between the two
    /// calls stays.
    async fn force_release(&self, name: &LockName) -> Result<bool> {
        let rows = self.rows_of(name).await?;
        let held: Vec<_> = rows[..count_holders(&rows)].iter().map(|row| keys::uuid(row.entry.id)).collect();
        if held.is_empty() {
            return Ok(false);
        }
        let call = Call {
            function: Function::Break,
            params: vec![
                Box::new(keys::bucket(name)),
                Box::new(name.as_str().as_bytes().to_vec()),
                Box::new(held),
                Box::new(self.client.channel().to_owned()),
            ],
            timeout: self.client.connection.timeout(),
            late_execution: LateExecution::Allowed,
            priority: Priority::Urgent,
        };
        let reply = self.client.connection.call(call).await?;
        let row = reply.row("a broken lock")?;
        self.client.wake(&column::<Vec<Uuid>>(row, "wake")?);
        Ok(column(row, "done")? || reply.maybe_repeated)
    }
}

impl QueueBackend {
    async fn rows_of(&self, name: &LockName) -> Result<Vec<QueueRow>> {
        let name = name.as_str().as_bytes();
        // The next name in the order of bytes is this name with a zero byte at its end, so the
        // range has one name.
        self.rows(name.to_vec(), [name, &[0]].concat()).await
    }

    /// Returns the rows of all names from `first` to `end`, without `end`.
    async fn rows(&self, first: Vec<u8>, end: Vec<u8>) -> Result<Vec<QueueRow>> {
        let call = Call {
            function: Function::Look,
            params: vec![Box::new(first), Box::new(end)],
            timeout: self.client.connection.timeout(),
            late_execution: LateExecution::Allowed,
            priority: Priority::Urgent,
        };
        self.client.connection.call(call).await?.rows.iter().map(QueueRow::read).collect()
    }
}

/// Returns the state of each lock. The rows of one lock stand together, in order of arrival.
fn states(rows: &[QueueRow]) -> Result<Vec<LockState>> {
    rows.chunk_by(|a, b| a.name == b.name).map(state).collect()
}

fn state(rows: &[QueueRow]) -> Result<LockState> {
    let (holders, queue) = rows.split_at(count_holders(rows));
    let mut state = LockState::new(LockName::new(&rows[0].name)?);
    state.holders = holders.iter().map(|row| row.contender.clone().token(row.token)).collect();
    state.queue = queue.iter().map(|row| row.contender.clone()).collect();
    Ok(state)
}

/// Returns the number of claims that hold. These are the first claims of the queue, because no
/// claim behind a waiting claim can hold.
fn count_holders(rows: &[QueueRow]) -> usize {
    let queue: Vec<Entry> = rows.iter().map(|row| row.entry).collect();
    (0..queue.len()).take_while(|&at| turn(&queue[..=at], queue[at].id) == Turn::Mine).count()
}
