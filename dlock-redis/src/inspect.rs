//! Looks up the locks on a server, and breaks them: those of other programs too.

use std::{
    collections::{BTreeSet, HashMap},
    future::ready,
    time::Duration,
};

use dlock_core::{ClaimId, Contender, Kind, LockName, LockState, Result, Token, Who};
use futures_util::{StreamExt as _, stream};
use redis::{FromRedisValue, ParsingError, Value};

use crate::{
    client::Client,
    config::Dialect,
    error::{self, STORE},
    keys::{self, Keys},
    scripts::{Call, FORCE_RELEASE, INSPECT, PEEK, PERMIT_BREAK, millis},
};

/// How many keys the server looks at in one call: some 0.3 ms of its time.
const STEP: usize = 1000;

/// How many locks are looked into in one pipeline.
const BATCH: usize = 200;

/// How long the server remembers the answer to a forced release. The client does not send the same call again after so long.
const LATCH: Duration = Duration::from_secs(60);

/// The answer of `inspect.lua`: the ttl of the key, its fields with their ms and tokens as read holds, and the waiters.
type Seen = (i64, Vec<(Text, i64, Text)>, Vec<(Text, Text, i64)>);

/// Text that another program may have written, and that is not always UTF-8.
struct Text(String);

impl FromRedisValue for Text {
    fn from_redis_value(value: Value) -> std::result::Result<Self, ParsingError> {
        let bytes = Vec::<u8>::from_redis_value(value)?;
        Ok(Self(String::from_utf8_lossy(&bytes).into_owned()))
    }
}

pub(crate) async fn inspect(client: &Client, name: &LockName) -> Result<Option<LockState>> {
    let mut found = see(client, name).await?;
    tell_who(client, found.as_mut_slice()).await;
    Ok(found)
}

async fn see(client: &Client, name: &LockName) -> Result<Option<LockState>> {
    Ok(state(name, parse(client.connection.run(&call(client, name)).await?)?))
}

fn call(client: &Client, name: &LockName) -> Call {
    let of = client.keys(name);
    let [lock, permits, permit_beats] = of.of_permit();
    let [readers, writers, beats] = [of.readers(), of.writers(), of.rw_beats()];
    let queues = [of.queue(), of.deadlines(), of.fair_beats(), readers, writers, beats];
    let keys: Vec<_> = [lock, permits, permit_beats].into_iter().chain(queues).collect();
    INSPECT.call(keys, (of.tag(), shape(client.config.dialect)))
}

fn parse<T: FromRedisValue>(answer: Value) -> Result<T> {
    redis::from_redis_value(answer).map_err(|_| STORE.unexpected_reply("a look into the store"))
}

fn state(name: &LockName, (ttl, fields, waits): Seen) -> Option<LockState> {
    let mode = fields.iter().find(|(field, ..)| field.0 == "mode").map(|(.., mode)| mode.0.as_str());
    let (is_rwlock, is_permit) = (mode.is_some(), mode == Some("permit"));
    let mut holders = Vec::new();
    for (Text(field), left, Text(token)) in fields.iter().filter(|(field, ..)| field.0 != "mode") {
        holders.push(match field.strip_suffix(":write") {
            _ if is_permit => {
                contender(field, Kind::Permit, *left).token(token.parse().ok().and_then(Token::new))
            }
            Some(owner) if is_rwlock => contender(owner, Kind::Write, ttl),
            None if is_rwlock => {
                // The timeout key of a read hold has the hold's token if dlock wrote it, and `1` if Redisson did.
                let token = token.parse().ok().filter(|token| *token > 1).and_then(Token::new);
                contender(field, Kind::Read, *left).token(token)
            }
            _ => contender(field, Kind::Mutex, ttl),
        });
    }
    holders.sort_by(|a, b| (a.token, &a.id).cmp(&(b.token, &b.id)));
    let queue: Vec<_> = waits
        .iter()
        .map(|(kind, owner, left)| contender(&owner.0, Kind::from_name(&kind.0).unwrap_or(Kind::Fair), *left))
        .collect();
    let mut state = LockState::new(name.clone());
    (state.holders, state.queue) = (holders, queue);
    Some(state).filter(|state| !state.is_free())
}

fn contender(owner: &str, kind: Kind, left: i64) -> Contender {
    Contender::new(owner, kind).ttl_left(u64::try_from(left).ok().map(Duration::from_millis))
}

pub(crate) async fn list(client: &Client, prefix: &str) -> Result<Vec<LockState>> {
    let mut states = Vec::new();
    for node in client.connection.masters().await? {
        let mut names = BTreeSet::new();
        find(client, node, prefix, &mut names).await?;
        if node.is_some() {
            find(client, node, &keys::odd(prefix), &mut names).await?;
        }
        let names = names.into_iter().filter(|name| name.starts_with(prefix));
        let names: Vec<_> = names.filter_map(|name| LockName::new(name).ok()).collect();
        for batch in names.chunks(BATCH) {
            look_into(client, node, batch, &mut states).await?;
        }
    }
    states.sort_by(|a, b| a.name.cmp(&b.name));
    // If a lock moves from one node to another meanwhile, both may tell of it.
    states.dedup_by(|a, b| a.name == b.name);
    tell_who(client, &mut states).await;
    Ok(states)
}

/// Adds who has each claim, in words, where that is known: it is looked up once for all claims of one text. Whoever may not look,
/// or cannot, is shown the ids only.
async fn tell_who(client: &Client, states: &mut [LockState]) {
    let keys: BTreeSet<_> = states
        .iter()
        .flat_map(|state| state.holders.iter().chain(&state.queue))
        .filter_map(|contender| keys::who_key(&contender.id))
        .collect();
    let look_up = async |key| {
        let key_of_text = keys::who(&client.config.prefix, key);
        let found =
            client.connection.query_once(redis::cmd("LINDEX").arg(key_of_text).arg(0).to_owned()).await?;
        let text = redis::from_redis_value::<String>(found).ok()?;
        // Another program may have written anything.
        Some((key, Who::new(text).ok()?))
    };
    let texts: HashMap<_, _> =
        stream::iter(keys).map(look_up).buffer_unordered(BATCH).filter_map(ready).collect().await;
    for contender in states.iter_mut().flat_map(|state| state.holders.iter_mut().chain(&mut state.queue)) {
        contender.who = keys::who_key(&contender.id).and_then(|key| Some(texts.get(&key)?.text().to_owned()));
    }
}

/// Looks into several locks of one node.
async fn look_into(
    client: &Client,
    node: Option<u16>,
    names: &[LockName],
    states: &mut Vec<LockState>,
) -> Result<()> {
    let mut all = redis::pipe();
    for (i, name) in names.iter().enumerate() {
        let call = call(client, name);
        // The first call has the script's text, so the server knows the hash in the others.
        all.add_command(if i == 0 { call.in_full() } else { call.by_hash().clone() });
    }
    let answers = client.connection.query_all_at(all, node).await?;
    if answers.len() != names.len() {
        return Err(STORE.unexpected_reply("a look into the store"));
    }
    for (name, answer) in names.iter().zip(answers) {
        // A lock that this node refuses may have moved to another, so it is asked for by its key.
        let found = match answer {
            Value::ServerError(_) => see(client, name).await?,
            answer => state(name, parse(answer)?),
        };
        states.extend(found);
    }
    Ok(())
}

/// Adds the names of a node that begin with `beginning` and that somebody may hold or wait for. The server itself leaves out keys
/// of other types, so that a large database of other programs costs little.
async fn find(
    client: &Client,
    node: Option<u16>,
    beginning: &str,
    names: &mut BTreeSet<String>,
) -> Result<()> {
    let beginning = format!("{}{beginning}", client.config.prefix);
    let held = [(shape(client.config.dialect), "")];
    let waited_for = if client.config.dialect == Dialect::Plain { &[][..] } else { &keys::WAITED_FOR };
    for (kind, before) in held.iter().chain(waited_for) {
        scan(client, node, kind, &keys::pattern(before, &beginning), names).await?;
    }
    Ok(())
}

async fn scan(
    client: &Client,
    node: Option<u16>,
    kind: &str,
    pattern: &str,
    names: &mut BTreeSet<String>,
) -> Result<()> {
    let (mut cursor, mut knows_type) = ("0".to_owned(), true);
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
        if knows_type {
            scan.arg("TYPE").arg(kind);
        }
        let answer = match client.connection.query_at(&scan, node).await {
            // Before Redis 6, `SCAN` does not know `TYPE`. The script then sorts out keys of other types.
            Err(error) if knows_type && error::is_syntax(&error) => {
                knows_type = false;
                continue;
            }
            answer => answer?,
        };
        let found: (String, Vec<Value>) = parse(answer)?;
        // A key that is not UTF-8 belongs to no lock.
        let found_keys = found.1.into_iter().filter_map(|key| redis::from_redis_value::<String>(key).ok());
        let mut found_keys: Vec<_> = found_keys.collect();
        if kind == "hash" && node.is_none() && !found_keys.is_empty() {
            found_keys = peek(client, found_keys).await?;
        }
        for key in found_keys {
            if let Some(name) = keys::waited_for(&key).unwrap_or(&key).strip_prefix(&client.config.prefix) {
                names.insert(if node.is_some() { keys::name_on_cluster(name) } else { name.to_owned() });
            }
        }
        if found.0 == "0" {
            return Ok(());
        }
        cursor = found.0;
    }
}

/// Tells which of many hashes look like locks, in one call. Not for a cluster, where the keys are in several slots.
async fn peek(client: &Client, keys: Vec<String>) -> Result<Vec<String>> {
    let answer = match client.connection.run(&PEEK.call(&keys, &[""; 0][..])).await {
        // A proxy before several servers refuses the call: any of the keys may then be a lock.
        Err(error) if error::is_cross_slot(&error) => return Ok(keys),
        answer => parse::<Vec<usize>>(answer?)?,
    };
    let mut places = answer.into_iter().peekable();
    let is_found = |(i, _): &(usize, String)| places.next_if_eq(&(i + 1)).is_some();
    Ok(keys.into_iter().enumerate().filter(is_found).map(|(_, key)| key).collect())
}

pub(crate) async fn force_release(client: &Client, name: &LockName) -> Result<bool> {
    let of = client.keys(name);
    let latch = format!("dlock_forced:{}:{}", of.tag(), ClaimId::random());
    let shape = shape(client.config.dialect);
    let args = (of.channel(), of.rw_channel(), client.connection.publish, shape, millis(LATCH));
    let call = FORCE_RELEASE.call((of.lock(), of.queue(), &latch), args);
    match client.connection.run(&call).await? {
        Value::Int(broken) => Ok(broken == 1),
        Value::SimpleString(found) if found == "permit" => break_permits(client, &of, &latch).await,
        Value::SimpleString(_) => Err(error::wrong_kind(name, Kind::Mutex, "other")),
        _ => Err(STORE.unexpected_reply("a forced release")),
    }
}

async fn break_permits(client: &Client, of: &Keys, latch: &str) -> Result<bool> {
    let [lock, queue, beats] = of.of_permit();
    let args = ("", millis(LATCH), of.channel(), client.connection.publish, millis(LATCH));
    match client.connection.run(&PERMIT_BREAK.call((lock, queue, beats, latch), args)).await? {
        Value::Int(broken) => Ok(broken == 1),
        _ => Err(STORE.unexpected_reply("a forced release")),
    }
}

/// The type of a lock's key.
fn shape(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Redisson => "hash",
        Dialect::Plain => "string",
    }
}
