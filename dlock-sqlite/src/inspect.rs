//! Looking into the file and breaking locks.

use std::{collections::HashMap, time::Duration};

use dlock_core::{
    ClaimId, Contender, LockName, LockState, Result, Token,
    driver::{Entry, Turn, turn},
};

use crate::{client::Client, connection::Access, queue::QueueRow};

pub(crate) async fn inspect(client: &Client, name: &LockName) -> Result<Option<LockState>> {
    let mut tx = client.begin(Access::Read).await?;
    let (places, now) = (tx.queue(name.as_str()).await?, tx.now);
    tx.commit().await?;
    Ok(states(client, places, now)?.pop())
}

pub(crate) async fn list(client: &Client, prefix: &str) -> Result<Vec<LockState>> {
    let mut tx = client.begin(Access::Read).await?;
    let (places, now) = (tx.queues(prefix).await?, tx.now);
    tx.commit().await?;
    states(client, places, now)
}

pub(crate) async fn force_release(client: &Client, name: &LockName) -> Result<bool> {
    let mut tx = client.begin(Access::Read).await?;
    let places = tx.queue(name.as_str()).await?;
    tx.commit().await?;
    let dead = Dead::among(client, &places).0;
    let dead: Vec<_> = dead.into_iter().filter_map(|(client, dead)| dead.then_some(client)).collect();
    if !dead.is_empty() {
        client.bury(&dead).await?;
    }
    let (mut tx, mut bells) = (client.begin(Access::Write).await?, Vec::new());
    tx.bury_expired(name.as_str(), &mut bells).await?;
    let places = tx.queue(name.as_str()).await?;
    let holders = &places[..holders(&places)];
    for holder in holders {
        tx.remove(holder, &mut bells).await?;
        // A holder that is rung renews at once, and learns that it has lost the lock.
        bells.push(holder.clone());
    }
    let held = !holders.is_empty();
    client.commit(tx, bells).await?;
    Ok(held)
}

/// Which of several clients are dead. Each is checked once.
struct Dead(HashMap<ClaimId, bool>);

impl Dead {
    fn among(client: &Client, places: &[QueueRow]) -> Self {
        let mut dead = HashMap::new();
        for place in places {
            let is_dead = || client.bells.is_dead(place.client);
            dead.entry(place.client).or_insert_with(is_dead);
        }
        Self(dead)
    }
}

/// The state of each lock that has places here. The places are in order. Claims that have expired or whose client is dead
/// are left out.
fn states(client: &Client, mut places: Vec<QueueRow>, now: i64) -> Result<Vec<LockState>> {
    let dead = Dead::among(client, &places);
    places.retain(|place| place.expires > now && !dead.0[&place.client]);
    places.chunk_by(|a, b| a.name == b.name).map(|places| state(places, now)).collect()
}

fn state(places: &[QueueRow], now: i64) -> Result<LockState> {
    let (holders, queue) = places.split_at(holders(places));
    let mut state = LockState::new(LockName::new(&places[0].name)?);
    let holds = |place| contender(place, now).token(Token::new(place_number(place)));
    state.holders = holders.iter().map(holds).collect();
    state.queue = queue.iter().map(|place| contender(place, now)).collect();
    Ok(state)
}

/// How many of a queue's places hold. They are the first ones: all places behind one that waits wait too.
fn holders(places: &[QueueRow]) -> usize {
    let queue: Vec<Entry> = places.iter().map(|place| place.entry).collect();
    (0..queue.len()).take_while(|&at| turn(&queue[..=at], queue[at].id) == Turn::Mine).count()
}

fn place_number(place: &QueueRow) -> u64 {
    place.number.unsigned_abs()
}

fn contender(place: &QueueRow, now: i64) -> Contender {
    let ago = u64::try_from(now - place.since).unwrap_or(0);
    Contender::new(place.entry.id.to_string(), place.entry.kind)
        .since(Duration::from_nanos(ago))
        .ttl_left(place.ttl_left(now))
        .who(place.who.clone().unwrap_or_else(|| format!("pid {} on {}", place.pid, place.host)))
}
