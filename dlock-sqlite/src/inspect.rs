//! Inspects and breaks locks.

use std::{collections::HashMap, time::Duration};

use dlock_core::{
    ClaimId, Contender, LockName, LockState, Result, Token,
    driver::{Entry, Turn, turn},
};

use crate::{client::Client, connection::Access, queue::QueueRow};

pub(crate) async fn inspect(client: &Client, name: &LockName) -> Result<Option<LockState>> {
    let mut tx = client.begin(Access::Read).await?;
    let (rows, now) = (tx.queue(name.as_str()).await?, tx.now);
    tx.commit().await?;
    Ok(states(client, rows, now)?.pop())
}

pub(crate) async fn list(client: &Client, prefix: &str) -> Result<Vec<LockState>> {
    let mut tx = client.begin(Access::Read).await?;
    let (rows, now) = (tx.queues(prefix).await?, tx.now);
    tx.commit().await?;
    states(client, rows, now)
}

pub(crate) async fn force_release(client: &Client, name: &LockName) -> Result<bool> {
    let mut tx = client.begin(Access::Read).await?;
    let rows = tx.queue(name.as_str()).await?;
    tx.commit().await?;
    let is_dead = check_clients(client, &rows);
    let dead: Vec<_> =
        is_dead.into_iter().filter_map(|(client, is_dead)| is_dead.then_some(client)).collect();
    if !dead.is_empty() {
        client.remove_dead(&dead).await?;
    }
    let (mut tx, mut to_ring) = (client.begin(Access::Write).await?, Vec::new());
    tx.remove_expired(name.as_str(), None, &mut to_ring).await?;
    let rows = tx.queue(name.as_str()).await?;
    let holders = &rows[..holder_count(&rows)];
    for holder in holders {
        tx.remove(holder, &mut to_ring).await?;
        // The ring makes the holder renew at once, and so detect that it has lost the lock.
        to_ring.push(holder.clone());
    }
    let was_held = !holders.is_empty();
    client.commit(tx, to_ring).await?;
    Ok(was_held)
}

/// Returns for each client of the rows whether it is dead. Checks each client once.
fn check_clients(client: &Client, rows: &[QueueRow]) -> HashMap<ClaimId, bool> {
    let mut is_dead = HashMap::new();
    for row in rows {
        is_dead.entry(row.client).or_insert_with(|| client.bells.is_dead(row.client));
    }
    is_dead
}

/// Returns the state of each lock of the rows, which must be in order. Omits claims that have
/// expired or whose client is dead.
fn states(client: &Client, mut rows: Vec<QueueRow>, now: i64) -> Result<Vec<LockState>> {
    let is_dead = check_clients(client, &rows);
    rows.retain(|row| row.expires > now && !is_dead[&row.client]);
    rows.chunk_by(|a, b| a.name == b.name).map(|rows| state(rows, now)).collect()
}

fn state(rows: &[QueueRow], now: i64) -> Result<LockState> {
    let (holders, queue) = rows.split_at(holder_count(rows));
    let mut state = LockState::new(LockName::new(&rows[0].name)?);
    let holder = |row: &QueueRow| contender(row, now).token(Token::new(row.number.unsigned_abs()));
    state.holders = holders.iter().map(holder).collect();
    state.queue = queue.iter().map(|row| contender(row, now)).collect();
    Ok(state)
}

/// Returns the number of holders in a queue. They are its first claims, because all claims behind a
/// waiter wait too.
fn holder_count(rows: &[QueueRow]) -> usize {
    let queue: Vec<Entry> = rows.iter().map(|row| row.entry).collect();
    (0..queue.len()).take_while(|&at| turn(&queue[..=at], queue[at].id) == Turn::Mine).count()
}

fn contender(row: &QueueRow, now: i64) -> Contender {
    let age = u64::try_from(now.saturating_sub(row.since)).unwrap_or(0);
    Contender::new(row.entry.id.to_string(), row.entry.kind)
        .since(Duration::from_nanos(age))
        .ttl_left(row.ttl_left(now))
        .who(row.who.clone().unwrap_or_else(|| format!("pid {} on {}", row.pid, row.host)))
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use dlock_core::Kind;

    use super::*;

    #[test]
    fn the_times_of_a_damaged_row_do_not_overflow() {
        let id = ClaimId::from_bytes([7; 16]);
        for (since, expires, now) in [(i64::MIN, i64::MIN, 1), (i64::MAX, i64::MAX, -2)] {
            let (name, host) = ("x".to_owned(), "h".to_owned());
            let entry = Entry::new(id, Kind::Mutex);
            let row =
                QueueRow { name, number: 1, entry, client: id, pid: 1, host, who: None, since, expires };
            let left = Duration::from_nanos(u64::try_from(expires).unwrap_or_default());
            let shown = contender(&row, now);
            assert!(shown.ttl_left == Some(left) && shown.since >= Some(Duration::ZERO), "{shown:?}");
        }
    }
}
