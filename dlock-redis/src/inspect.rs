//! Inspects the locks on a server and breaks them, including those of other programs.

use std::{
    collections::{BTreeSet, HashMap},
    future::ready,
    time::Duration,
};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Contender, Kind, LockName, LockState, Result, Token, Who,
    driver::{Inspect, MARK_PREFIX},
};
use futures_util::{StreamExt as _, stream};
use redis::{FromRedisValue, ParsingError, Value};

use crate::{
    backend::RedisBackend,
    client::Client,
    config::Dialect,
    error::{self, STORE},
    keys::{self, Keys},
    scripts::{Call, FORCE_RELEASE, INSPECT, PEEK, PERMIT_BREAK, millis},
};

/// Number of keys that the server visits in one call, which takes about 0.3 ms of its time.
const SCAN_COUNT: usize = 1000;

/// Maximum number of locks that are inspected in one pipeline.
const MAX_PIPELINE: usize = 200;

/// Time for which the server keeps its reply to a forced release. The client does not repeat a call
/// after a longer time.
const SAVED_REPLY_TTL: Duration = Duration::from_secs(60);

/// The reply of `inspect.lua`: the ttl of the key in ms, its fields, each with the ttl in ms and
/// the token of a read hold or a permit, and the waiters with their kind, owner and ttl in ms.
type RawState = (i64, Vec<(Text, i64, Text)>, Vec<(Text, Text, i64)>);

/// Text that another program may have written. Bytes that are not UTF-8 are replaced.
struct Text(String);

impl FromRedisValue for Text {
    fn from_redis_value(value: Value) -> std::result::Result<Self, ParsingError> {
        let bytes = Vec::<u8>::from_redis_value(value)?;
        Ok(Self(String::from_utf8_lossy(&bytes).into_owned()))
    }
}

#[async_trait]
impl Inspect for RedisBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        let mut found = read_state(&self.client, name).await?;
        add_labels(&self.client, found.as_mut_slice()).await;
        Ok(found)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        list(&self.client, prefix).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        force_release(&self.client, name).await
    }
}

/// Returns the state of one lock without labels. Returns `None` if the lock is free.
async fn read_state(client: &Client, name: &LockName) -> Result<Option<LockState>> {
    Ok(state(name, parse(client.connection.run(&call(client, name)).await?)?))
}

fn call(client: &Client, name: &LockName) -> Call {
    let names = client.keys(name);
    let [readers, writers, rw_heartbeats] = [names.readers(), names.writers(), names.rw_heartbeats()];
    let queues = [names.queue(), names.deadlines(), names.fair_heartbeats(), readers, writers, rw_heartbeats];
    let keys: Vec<_> = names.for_permit().into_iter().chain(queues).collect();
    INSPECT.call(keys, (names.tag(), key_type(client.config.dialect)))
}

fn parse<T: FromRedisValue>(reply: Value) -> Result<T> {
    redis::from_redis_value(reply).map_err(|_| STORE.unexpected_reply("an inspection"))
}

fn state(name: &LockName, (ttl, fields, waiters): RawState) -> Option<LockState> {
    let mode = fields.iter().find(|(field, ..)| field.0 == "mode").map(|(.., mode)| mode.0.as_str());
    let (is_rwlock, is_permit) = (mode.is_some(), mode == Some("permit"));
    let mut holders = Vec::new();
    for (Text(field), ttl_left, Text(token)) in fields.iter().filter(|(field, ..)| field.0 != "mode") {
        holders.push(match field.strip_suffix(":write") {
            _ if is_permit => {
                contender(field, Kind::Permit, *ttl_left).token(token.parse().ok().and_then(Token::new))
            }
            Some(owner) if is_rwlock => contender(owner, Kind::Write, ttl),
            None if is_rwlock => {
                // The timeout key of a read hold contains the hold's token if dlock wrote it, and
                // `1` if Redisson wrote it.
                let token = token.parse().ok().filter(|token| *token > 1).and_then(Token::new);
                contender(field, Kind::Read, *ttl_left).token(token)
            }
            _ => contender(field, Kind::Mutex, ttl),
        });
    }
    holders.sort_by(|a, b| (a.token, &a.id).cmp(&(b.token, &b.id)));
    let waiter = |(kind, owner, ttl_left): &(Text, Text, i64)| {
        contender(&owner.0, Kind::from_name(&kind.0).unwrap_or(Kind::Fair), *ttl_left)
    };
    let queue = waiters.iter().map(waiter).collect();
    let mut state = LockState::new(name.clone());
    (state.holders, state.queue) = (holders, queue);
    Some(state).filter(|state| !state.is_free())
}

/// Returns the contender of a claim. `ttl_left` is in ms, and negative if the claim has no ttl.
fn contender(owner: &str, kind: Kind, ttl_left: i64) -> Contender {
    Contender::new(owner, kind).ttl_left(u64::try_from(ttl_left).ok().map(Duration::from_millis))
}

async fn list(client: &Client, prefix: &str) -> Result<Vec<LockState>> {
    let mut states = Vec::new();
    for node in client.connection.masters().await? {
        let mut names = BTreeSet::new();
        find_names(client, node, prefix, &mut names).await?;
        if node.is_some() {
            find_names(client, node, &keys::escape(prefix), &mut names).await?;
        }
        // There may be many marks, and each name costs a call of a script.
        let is_hidden = |name: &str| name.starts_with(MARK_PREFIX) && !prefix.starts_with(MARK_PREFIX);
        let names = names.into_iter().filter(|name| name.starts_with(prefix) && !is_hidden(name));
        let names: Vec<_> = names.filter_map(|name| LockName::new(name).ok()).collect();
        for batch in names.chunks(MAX_PIPELINE) {
            inspect_batch(client, node, batch, &mut states).await?;
        }
    }
    states.sort_by(|a, b| a.name.cmp(&b.name));
    // If a lock moves to another node during the listing, both nodes may report it.
    states.dedup_by(|a, b| a.name == b.name);
    add_labels(client, &mut states).await;
    Ok(states)
}

/// Adds the label of each claim where it is known. Each label is read once for all its claims. A
/// label that cannot be read, also for lack of rights, is left out.
async fn add_labels(client: &Client, states: &mut [LockState]) {
    let keys: BTreeSet<_> = states
        .iter()
        .flat_map(|state| state.holders.iter().chain(&state.queue))
        .filter_map(|contender| keys::who_key(&contender.id))
        .collect();
    let read = async |key| {
        let label_key = keys::label_key(&client.config.prefix, key);
        let query = redis::cmd("LINDEX").arg(label_key).arg(0).to_owned();
        let label = redis::from_redis_value::<String>(client.connection.query_once(query).await?).ok()?;
        // Another program may have written an invalid label.
        Some((key, Who::new(label).ok()?))
    };
    let labels: HashMap<_, _> =
        stream::iter(keys).map(read).buffer_unordered(MAX_PIPELINE).filter_map(ready).collect().await;
    for contender in states.iter_mut().flat_map(|state| state.holders.iter_mut().chain(&mut state.queue)) {
        let label = keys::who_key(&contender.id).and_then(|key| labels.get(&key));
        contender.who = label.map(|label| label.text().to_owned());
    }
}

/// Inspects several locks of one node in one pipeline.
async fn inspect_batch(
    client: &Client,
    node: Option<u16>,
    names: &[LockName],
    states: &mut Vec<LockState>,
) -> Result<()> {
    let mut all = redis::pipe();
    for (i, name) in names.iter().enumerate() {
        let call = call(client, name);
        // The first call contains the script's text, so the server knows the hash in the other
        // calls.
        all.add_command(if i == 0 { call.in_full() } else { call.by_hash().clone() });
    }
    let replies = client.connection.query_all_at(all, node).await?;
    if replies.len() != names.len() {
        return Err(STORE.unexpected_reply("an inspection"));
    }
    for (name, reply) in names.iter().zip(replies) {
        // A lock that this node refuses may have moved to another node. The next call is routed by
        // the lock's key.
        let found = match reply {
            Value::ServerError(_) => read_state(client, name).await?,
            reply => state(name, parse(reply)?),
        };
        states.extend(found);
    }
    Ok(())
}

/// Adds the names on a node that begin with `beginning` and that may have holders or waiters. The
/// server leaves out keys of other types, so a large database of other programs costs little.
async fn find_names(
    client: &Client,
    node: Option<u16>,
    beginning: &str,
    names: &mut BTreeSet<String>,
) -> Result<()> {
    let beginning = format!("{}{beginning}", client.config.prefix);
    let locks = [(key_type(client.config.dialect), "")];
    let waiters = if client.config.dialect == Dialect::Plain { &[][..] } else { &keys::WAITER_KEYS };
    for (key_type, before) in locks.iter().chain(waiters) {
        scan(client, node, key_type, &keys::pattern(before, &beginning), names).await?;
    }
    Ok(())
}

async fn scan(
    client: &Client,
    node: Option<u16>,
    key_type: &str,
    pattern: &str,
    names: &mut BTreeSet<String>,
) -> Result<()> {
    let (mut cursor, mut knows_type) = ("0".to_owned(), true);
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
        if knows_type {
            scan.arg("TYPE").arg(key_type);
        }
        let reply = match client.connection.query_at(&scan, node).await {
            // Before Redis 6, `SCAN` does not know `TYPE`. The script then filters out keys of
            // other types.
            Err(error) if knows_type && error::is_syntax(&error) => {
                knows_type = false;
                continue;
            }
            reply => reply?,
        };
        let (next_cursor, found): (String, Vec<Value>) = parse(reply)?;
        // A key that is not UTF-8 belongs to no lock.
        let found_keys = found.into_iter().filter_map(|key| redis::from_redis_value::<String>(key).ok());
        let mut found_keys: Vec<_> = found_keys.collect();
        if key_type == "hash" && node.is_none() && !found_keys.is_empty() {
            found_keys = keep_locks(client, found_keys).await?;
        }
        for key in found_keys {
            if let Some(name) =
                keys::lock_of_waiter_key(&key).unwrap_or(&key).strip_prefix(&client.config.prefix)
            {
                names.insert(if node.is_some() { keys::name_on_cluster(name) } else { name.to_owned() });
            }
        }
        if next_cursor == "0" {
            return Ok(());
        }
        cursor = next_cursor;
    }
}

/// Returns the keys of hashes that look like locks, with one call. Not for a cluster, where the
/// keys are in several slots.
async fn keep_locks(client: &Client, keys: Vec<String>) -> Result<Vec<String>> {
    let positions = match client.connection.run(&PEEK.call(&keys, &[""; 0][..])).await {
        // A proxy of several servers refuses the call. Any of the keys may then be a lock.
        Err(error) if error::is_cross_slot(&error) => return Ok(keys),
        reply => parse::<Vec<usize>>(reply?)?,
    };
    let mut positions = positions.into_iter().peekable();
    let is_found = |(i, _): &(usize, String)| positions.next_if_eq(&(i + 1)).is_some();
    Ok(keys.into_iter().enumerate().filter(is_found).map(|(_, key)| key).collect())
}

async fn force_release(client: &Client, name: &LockName) -> Result<bool> {
    let keys = client.keys(name);
    let saved_reply = format!("dlock_forced:{}:{}", keys.tag(), ClaimId::random());
    let (publish, key_type) = (client.connection.publish, key_type(client.config.dialect));
    let args = (keys.channel(), keys.rw_channel(), publish, key_type, millis(SAVED_REPLY_TTL));
    let call = FORCE_RELEASE.call((keys.lock(), keys.queue(), &saved_reply), args);
    match client.connection.run(&call).await? {
        Value::Int(broken) => Ok(broken == 1),
        Value::SimpleString(found) if found == "permit" => break_permits(client, &keys, &saved_reply).await,
        Value::SimpleString(_) => Err(error::wrong_kind(name, Kind::Mutex, "other")),
        _ => Err(STORE.unexpected_reply("a forced release")),
    }
}

async fn break_permits(client: &Client, keys: &Keys, saved_reply: &str) -> Result<bool> {
    let [lock, queue, heartbeats] = keys.for_permit();
    let ttl = millis(SAVED_REPLY_TTL);
    let args = ("", ttl, keys.channel(), client.connection.publish, ttl);
    match client.connection.run(&PERMIT_BREAK.call((lock, queue, heartbeats, saved_reply), args)).await? {
        Value::Int(broken) => Ok(broken == 1),
        _ => Err(STORE.unexpected_reply("a forced release")),
    }
}

/// Returns the type of a lock's key.
fn key_type(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Redisson => "hash",
        Dialect::Plain => "string",
    }
}

#[cfg(test)]
mod fuzz;
