//! Looking into the server and breaking locks, those of other programs too.

use std::{collections::BTreeSet, time::Duration};

use dlock_core::{ClaimId, Contender, Kind, LockName, LockState, Result, Token};
use redis::{FromRedisValue, ParsingError, Value};

use crate::{
    backend::Shared,
    config::Dialect,
    error, keys,
    script::{FORCE_RELEASE, INSPECT, millis},
};

/// How many keys the server looks at in one call: some 0.2 ms of its time.
const STEP: usize = 500;

/// How long the server remembers a forced release: longer than a call is sent again.
const LATCH: Duration = Duration::from_secs(60);

/// What the script says: the ttl of the key, its fields with ms and token as read holds, and who waits.
type Seen = (i64, Vec<(Text, i64, Text)>, Vec<(Text, Text, i64)>);

/// What another program may have written: not always UTF-8.
struct Text(String);

impl FromRedisValue for Text {
    fn from_redis_value(value: Value) -> std::result::Result<Self, ParsingError> {
        let bytes = Vec::<u8>::from_redis_value(value)?;
        Ok(Self(String::from_utf8_lossy(&bytes).into_owned()))
    }
}

pub(crate) async fn inspect(shared: &Shared, name: &LockName) -> Result<Option<LockState>> {
    let of = shared.keys(name);
    let queues =
        (of.lock(), of.queue(), of.deadlines(), of.fair_beats(), of.readers(), of.writers(), of.rw_beats());
    let call = INSPECT.call(queues, (of.tag(), shape(shared.config.dialect)));
    Ok(state(name, parse(shared.connection.run(&call).await?)?))
}

fn parse<T: FromRedisValue>(answer: Value) -> Result<T> {
    redis::from_redis_value(answer).map_err(|_| error::garbled("a look into the store"))
}

fn state(name: &LockName, (ttl, fields, waits): Seen) -> Option<LockState> {
    let is_rwlock = fields.iter().any(|(field, ..)| field.0 == "mode");
    let mut holders = Vec::new();
    for (Text(field), left, Text(token)) in fields.iter().filter(|(field, ..)| field.0 != "mode") {
        holders.push(match field.strip_suffix(":write") {
            Some(owner) if is_rwlock => contender(owner, Kind::Write, ttl),
            None if is_rwlock => {
                // Redisson's read holds say `1` there, dlock's their token.
                let token = token.parse().ok().filter(|token| *token > 1).and_then(Token::new);
                Contender { token, ..contender(field, Kind::Read, *left) }
            }
            _ => contender(field, Kind::Mutex, ttl),
        });
    }
    holders.sort_by(|a, b| (a.token, &a.id).cmp(&(b.token, &b.id)));
    let queue: Vec<_> =
        waits.iter().map(|(kind, owner, left)| contender(&owner.0, waiting(&kind.0), *left)).collect();
    (!holders.is_empty() || !queue.is_empty()).then(|| LockState { name: name.clone(), holders, queue })
}

fn waiting(kind: &str) -> Kind {
    match kind {
        "read" => Kind::Read,
        "write" => Kind::Write,
        _ => Kind::Fair,
    }
}

fn contender(owner: &str, kind: Kind, left: i64) -> Contender {
    Contender {
        id: owner.to_owned(),
        kind,
        token: None,
        since: None,
        ttl_left: u64::try_from(left).ok().map(Duration::from_millis),
        who: None,
    }
}

pub(crate) async fn list(shared: &Shared, prefix: &str) -> Result<Vec<LockState>> {
    let mut names = BTreeSet::new();
    find(shared, prefix, &mut names).await?;
    if shared.connection.is_cluster() {
        find(shared, &keys::odd(prefix), &mut names).await?;
    }
    let mut states = Vec::new();
    for name in names.into_iter().filter(|name| name.starts_with(prefix)) {
        if let Ok(name) = LockName::new(name) {
            states.extend(inspect(shared, &name).await?);
        }
    }
    Ok(states)
}

/// The names of which something may be in the store, and whose keys begin like this.
async fn find(shared: &Shared, beginning: &str, names: &mut BTreeSet<String>) -> Result<()> {
    let prefix = &shared.config.prefix;
    let pattern = keys::pattern(&format!("{prefix}{beginning}"));
    for node in shared.connection.masters().await? {
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
            let found: (String, Vec<Value>) =
                parse(shared.connection.query_at(&scan, node.as_deref()).await?)?;
            // A key that is not UTF-8 is no lock's.
            for key in found.1.into_iter().filter_map(|key| redis::from_redis_value::<String>(key).ok()) {
                if let Some(name) = keys::waited_for(&key).unwrap_or(&key).strip_prefix(prefix) {
                    names.insert(if node.is_some() { keys::name_on_cluster(name) } else { name.to_owned() });
                }
            }
            if found.0 == "0" {
                break;
            }
            cursor = found.0;
        }
    }
    Ok(())
}

pub(crate) async fn force_release(shared: &Shared, name: &LockName) -> Result<bool> {
    let of = shared.keys(name);
    let latch = format!("dlock_forced:{}:{}", of.tag(), ClaimId::random());
    let shape = shape(shared.config.dialect);
    let args = (of.channel(), of.rw_channel(), shared.connection.publish, shape, millis(LATCH));
    let call = FORCE_RELEASE.call((of.lock(), of.queue(), latch), args);
    match shared.connection.run(&call).await? {
        Value::Int(broken) => Ok(broken == 1),
        Value::SimpleString(_) => Err(error::wrong_kind(name, Kind::Mutex, "other")),
        _ => Err(error::garbled("a forced release")),
    }
}

/// The type of a lock's key.
fn shape(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Redisson => "hash",
        Dialect::Plain => "string",
    }
}
