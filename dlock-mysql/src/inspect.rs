//! Looking into the queue and breaking locks.

use std::{num::NonZeroU32, time::Duration};

use dlock_core::{
    ClaimId, Contender, LockName, LockState, Result, Token,
    driver::{Entry, Turn, turn},
};
use sqlx::{Row as _, mysql::MySqlRow};

use crate::{
    claim::bad,
    client::Client,
    connection::Call,
    error, keys,
    sql::{BREAK, LOOK, literal},
};

/// A claim's place in a queue.
pub(crate) struct Row {
    pub(crate) number: u64,
    pub(crate) entry: Entry,
    pub(crate) time_left: Duration,
}

impl Row {
    /// A row of `attempt.sql`.
    pub(crate) fn of_attempt(row: &MySqlRow) -> Result<Self> {
        let id: &[u8] = get(row, "claim")?;
        let id = ClaimId::from_bytes(id.try_into().map_err(|_| bad("claim"))?);
        let kind: &[u8] = get(row, "kind")?;
        let kind = std::str::from_utf8(kind).ok().and_then(keys::kind).ok_or_else(|| bad("kind"))?;
        let slots = NonZeroU32::new(get(row, "slots")?).ok_or_else(|| bad("limit"))?;
        let entry = Entry::new(id, kind).limit(slots);
        Ok(Self { number: get(row, "seq")?, entry, time_left: micros(row, "time_left")? })
    }
}

/// The same as people want to see it.
struct Seen {
    name: String,
    place: Row,
    contender: Contender,
}

impl Seen {
    /// A row of `look.sql`.
    fn of(row: &MySqlRow) -> Result<Self> {
        let text = |column| -> Result<String> {
            Ok(String::from_utf8_lossy(get::<&[u8]>(row, column)?).into_owned())
        };
        let place = Row::of_attempt(row)?;
        let contender = Contender::new(place.entry.id.to_string(), place.entry.kind)
            .since(micros(row, "age")?)
            .ttl_left(place.time_left)
            .who(text("who")?);
        Ok(Self { name: text("name")?, place, contender })
    }
}

/// A column of the text protocol, whatever number type the server computed it in.
fn get<'r, T: sqlx::Decode<'r, sqlx::MySql>>(row: &'r MySqlRow, column: &str) -> Result<T> {
    row.try_get_unchecked(column).map_err(error::explain)
}

fn micros(row: &MySqlRow, column: &str) -> Result<Duration> {
    get(row, column).map(Duration::from_micros)
}

pub(crate) async fn inspect(client: &Client, name: &LockName) -> Result<Option<LockState>> {
    Ok(states(look_at(client, name).await?)?.pop())
}

pub(crate) async fn list(client: &Client, prefix: &str) -> Result<Vec<LockState>> {
    states(look(client, literal(prefix.as_bytes()), keys::beyond(prefix)).await?)
}

/// Breaks what holds at the moment. A claim whose turn comes meanwhile stays.
pub(crate) async fn force_release(client: &Client, name: &LockName) -> Result<bool> {
    let seen = look_at(client, name).await?;
    let held: Vec<_> = seen[..holders(&seen)].iter().map(|seen| seen.place.entry.id).collect();
    if held.is_empty() {
        return Ok(false);
    }
    let claims: Vec<_> = held.iter().map(|id| keys::claim(*id)).collect();
    let queue = &client.connection.tables.queue;
    let batch = BREAK.with(&[("queue", queue), ("claims", &claims.join(","))]);
    let answer = client.connection.call(Call::new(batch, client.connection.longest())).await?;
    for id in &held {
        client.standing.forget(*id);
        client.ring(*id);
    }
    Ok(answer.changed() > 0 || answer.twice)
}

async fn look_at(client: &Client, name: &LockName) -> Result<Vec<Seen>> {
    // The least name beyond this one.
    let beyond = [name.as_str().as_bytes(), &[0]].concat();
    look(client, literal(name.as_str().as_bytes()), literal(&beyond)).await
}

async fn look(client: &Client, first: String, beyond: String) -> Result<Vec<Seen>> {
    let queue = &client.connection.tables.queue;
    let batch = LOOK.with(&[("queue", queue), ("first", &first), ("beyond", &beyond)]);
    let answer = client.connection.call(Call::new(batch, client.connection.longest())).await?;
    answer.rows.iter().map(Seen::of).collect()
}

/// The state of each lock that has places here, which are in order.
fn states(seen: Vec<Seen>) -> Result<Vec<LockState>> {
    seen.chunk_by(|a, b| a.name == b.name).map(state).collect()
}

fn state(seen: &[Seen]) -> Result<LockState> {
    let (holders, queue) = seen.split_at(holders(seen));
    let mut state = LockState::new(LockName::new(&seen[0].name)?);
    let holds = |seen: &Seen| seen.contender.clone().token(Token::new(seen.place.number));
    state.holders = holders.iter().map(holds).collect();
    state.queue = queue.iter().map(|seen| seen.contender.clone()).collect();
    Ok(state)
}

/// How many of a queue's places hold. They are the first ones: all places behind one that waits wait too.
fn holders(seen: &[Seen]) -> usize {
    let queue: Vec<Entry> = seen.iter().map(|seen| seen.place.entry).collect();
    (0..queue.len()).take_while(|&at| turn(&queue[..=at], queue[at].id) == Turn::Mine).count()
}
