//! Inspects the queue, and breaks locks.

use std::{num::NonZeroU32, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Contender, Kind, LockName, LockState, Result, Token,
    driver::{Entry, Inspect, Turn, turn},
};
use sqlx::mysql::MySqlRow;

use super::QueueBackend;
use crate::{
    connection::Call,
    keys,
    sql::{BREAK, LOOK, bad_row, claim_id, column, expect, flag, literal, text},
};

/// A claim in its place in the queue. A claim that was deleted and joins again has the same id and
/// another number, and no longer has to leave before the claims that came in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) id: ClaimId,
    /// Kind of the claim, which a downgrade changes.
    pub(super) kind: Kind,
    pub(super) number: u64,
}

/// A claim's row of the queue.
pub(super) struct QueueRow {
    pub(super) number: u64,
    pub(super) entry: Entry,
    pub(super) time_left: Duration,
}

impl QueueRow {
    pub(super) fn place(&self) -> Place {
        Place { id: self.entry.id, kind: self.entry.kind, number: self.number }
    }

    pub(super) fn read(row: &MySqlRow) -> Result<Self> {
        let kind = keys::parse_kind(&text(row, "kind")?).ok_or_else(|| bad_row("kind"))?;
        let limit = NonZeroU32::new(column(row, "slots")?).ok_or_else(|| bad_row("limit"))?;
        Ok(Self {
            number: column(row, "seq")?,
            entry: Entry::new(claim_id(row)?, kind).limit(limit),
            time_left: duration(row, "time_left")?,
        })
    }
}

/// A row of the queue with all that is shown to users.
struct ShownRow {
    name: String,
    row: QueueRow,
    contender: Contender,
}

impl ShownRow {
    /// Reads a row of `look.sql`.
    fn read(row: &MySqlRow) -> Result<Self> {
        let name = text(row, "name")?;
        let (who, age) = (text(row, "who")?, duration(row, "age")?);
        let row = QueueRow::read(row)?;
        let contender = Contender::new(row.entry.id.to_string(), row.entry.kind)
            .since(age)
            .ttl_left(row.time_left)
            .who(who);
        Ok(Self { name, row, contender })
    }
}

/// Returns a column of microseconds.
pub(super) fn duration(row: &MySqlRow, name: &str) -> Result<Duration> {
    column(row, name).map(Duration::from_micros)
}

#[async_trait]
impl Inspect for QueueBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        Ok(states(&self.rows_of(name).await?)?.pop())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        states(&self.rows(&literal(prefix.as_bytes()), &keys::upper_bound(prefix)).await?)
    }

    /// Breaks the claims that hold when the queue is read. A claim that is granted between the two
    /// calls stays.
    async fn force_release(&self, name: &LockName) -> Result<bool> {
        let rows = self.rows_of(name).await?;
        let held: Vec<_> = rows[..count_holders(&rows)].iter().map(|row| row.row.entry.id).collect();
        if held.is_empty() {
            return Ok(false);
        }
        let claims: Vec<_> = held.iter().map(|id| keys::claim_literal(*id)).collect();
        let connection = &self.client.connection;
        let batch = BREAK.with(&[("queue", &connection.tables.queue), ("claims", &claims.join(","))]);
        let reply = connection.call(Call::new(batch, connection.timeout())).await?;
        for id in &held {
            self.client.local_claims.forget_renewal(*id);
            self.client.wake_local_waiters(*id);
        }
        Ok(flag(expect(reply.rows.last(), "a broken lock")?, "is_deleted")? || reply.maybe_repeated)
    }
}

impl QueueBackend {
    async fn rows_of(&self, name: &LockName) -> Result<Vec<ShownRow>> {
        let name = name.as_str().as_bytes();
        // The next name in the order of bytes is this name with a zero byte at its end, so the
        // range has one name.
        let next = [name, &[0]].concat();
        self.rows(&literal(name), &literal(&next)).await
    }

    /// Returns the rows of all names from `first` to `end`, without `end`. Both are SQL literals.
    async fn rows(&self, first: &str, end: &str) -> Result<Vec<ShownRow>> {
        let connection = &self.client.connection;
        let values = [("queue", connection.tables.queue.as_str()), ("first", first), ("end", end)];
        let reply = connection.call(Call::new(LOOK.with(&values), connection.timeout())).await?;
        reply.rows.iter().map(ShownRow::read).collect()
    }
}

/// Returns the state of each lock. The rows of one lock stand together, in order of arrival.
fn states(rows: &[ShownRow]) -> Result<Vec<LockState>> {
    rows.chunk_by(|a, b| a.name == b.name).map(state).collect()
}

fn state(rows: &[ShownRow]) -> Result<LockState> {
    let (holders, queue) = rows.split_at(count_holders(rows));
    let mut state = LockState::new(LockName::new(&rows[0].name)?);
    state.holders =
        holders.iter().map(|row| row.contender.clone().token(Token::new(row.row.number))).collect();
    state.queue = queue.iter().map(|row| row.contender.clone()).collect();
    Ok(state)
}

/// Returns the number of claims that hold. These are the first claims of the queue, because no
/// claim behind a waiting claim can hold.
fn count_holders(rows: &[ShownRow]) -> usize {
    let queue: Vec<Entry> = rows.iter().map(|row| row.row.entry).collect();
    (0..queue.len()).take_while(|&at| turn(&queue[..=at], queue[at].id) == Turn::Mine).count()
}
