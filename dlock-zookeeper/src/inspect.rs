//! Looks up the locks below the base path, and breaks them: those of other programs too.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use dlock_core::{
    ClaimId, Contender, LockName, LockState, Result, Token, Who,
    driver::{Entry, Turn, turn},
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use zookeeper_client::{Client as ZkClient, Error as ZkError, Stat};

use crate::{
    claim::token_of,
    client::Client,
    connection::Session,
    error::{self, STORE},
    keys::{self, Node},
};

/// How many requests are under way at once.
const AT_ONCE: usize = 100;

/// The longest that looking into one lock, or breaking it, may take, in parts of the time of a call: it takes several.
const CALLS: u32 = 3;

pub(crate) async fn inspect(client: &Client, name: &LockName) -> Result<Option<LockState>> {
    let directory = client.directory(name)?;
    let (_session, zk) = session(client).await?;
    STORE.in_time(client.config.timeout * CALLS, look(&zk, name, &directory)).await
}

pub(crate) async fn list(client: &Client, prefix: &str) -> Result<Vec<LockState>> {
    let (_session, zk) = session(client).await?;
    let base = &client.config.base;
    let root = if base.is_empty() { "/" } else { base };
    let directories = match STORE.in_time(client.config.timeout, children(&zk, root)).await? {
        Some(directories) => directories,
        None => return Ok(Vec::new()),
    };
    let names =
        directories.iter().filter_map(|directory| keys::name_of(base, client.config.names, directory));
    let mut names: Vec<_> = names.filter(|name| name.as_str().starts_with(prefix)).collect();
    names.sort_unstable();
    let look_into = async |name: LockName| {
        let directory = client.directory(&name)?;
        STORE.in_time(client.config.timeout * CALLS, look(&zk, &name, &directory)).await
    };
    let found: Vec<_> = stream::iter(names).map(look_into).buffered(AT_ONCE).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

pub(crate) async fn force_release(client: &Client, name: &LockName) -> Result<bool> {
    let directory = client.directory(name)?;
    let (session, zk) = session(client).await?;
    let breaking = async {
        let (holders, _) = holders_and_waiters(&zk, &directory).await?;
        let delete = async |node: Node| session.delete(&zk, &directory, &node.name).await;
        let deleted: Vec<_> = stream::iter(holders).map(delete).buffered(AT_ONCE).try_collect().await?;
        Ok(deleted.contains(&true))
    };
    STORE.in_time(client.config.timeout * CALLS, breaking).await
}

/// A session with a connection. Whoever sends requests keeps the session meanwhile.
async fn session(client: &Client) -> Result<(Arc<Session>, ZkClient)> {
    let limit = client.config.timeout;
    let connected = async {
        let session = client.connection.session(limit).await?;
        let zk = session.client().await?;
        Ok((session, zk))
    };
    STORE.in_time(limit, connected).await
}

/// The nodes of those who hold, and of those who wait. Nodes that are no claims and keep somebody waiting are among those who
/// wait, at the head.
async fn holders_and_waiters(zk: &ZkClient, directory: &str) -> Result<(Vec<Node>, Vec<Node>)> {
    // Another server than the one that has made the last changes may be behind.
    let (sync, children) = tokio::join!(zk.sync(directory), children(zk, directory));
    sync.map_err(error::explain)?;
    let (mut nodes, mut strays) = (Vec::new(), Vec::new());
    for name in children?.unwrap_or_default() {
        match Node::of(name.clone()) {
            Some(node) => nodes.push(node),
            None => strays.push(name),
        }
    }
    nodes.sort_by(Node::order);
    let entry = |(node, at): (&Node, u128)| {
        Entry::new(ClaimId::from_bytes(at.to_be_bytes()), node.kind).limit(node.limit)
    };
    let entries: Vec<_> = nodes.iter().zip(0..).map(entry).collect();
    // Whoever holds stands before all who wait.
    let is_kept_out = |node: &Node, by: &String| keys::blocks(by, node.kind, node.number);
    let holds = |(entry, node): &(&Entry, &Node)| {
        turn(&entries, entry.id) == Turn::Mine && !strays.iter().any(|stray| is_kept_out(node, stray))
    };
    let holders = entries.iter().zip(&nodes).take_while(holds).count();
    let waiting = nodes.split_off(holders);
    strays.retain(|stray| waiting.iter().any(|node| is_kept_out(node, stray)));
    Ok((nodes, strays.into_iter().map(Node::stray).chain(waiting).collect()))
}

/// The names of a node's children. `None` if there is no such node.
async fn children(zk: &ZkClient, path: &str) -> Result<Option<Vec<String>>> {
    match zk.list_children(path).await {
        Err(ZkError::NoNode) => Ok(None),
        children => children.map(Some).map_err(error::explain),
    }
}

async fn look(zk: &ZkClient, name: &LockName, directory: &Arc<str>) -> Result<Option<LockState>> {
    let (holders, waiting) = holders_and_waiters(zk, directory).await?;
    let now = since_1970();
    let describe = async |nodes: Vec<Node>, holds: bool| -> Result<Vec<Contender>> {
        let read = async |node: Node| match zk.get_data(&format!("{directory}/{}", node.name)).await {
            Ok((data, stat)) => Ok(Some(contender(node, &data, &stat, holds, now))),
            // It has left meanwhile.
            Err(ZkError::NoNode) => Ok(None),
            // Its holder may let nobody read its node.
            Err(ZkError::NoAuth) => Ok(Some(Contender::new(shown(&node), node.kind))),
            Err(error) => Err(error::explain(error)),
        };
        let read: Vec<_> = stream::iter(nodes).map(read).buffered(AT_ONCE).try_collect().await?;
        Ok(read.into_iter().flatten().collect())
    };
    let mut state = LockState::new(name.clone());
    (state.holders, state.queue) = (describe(holders, true).await?, describe(waiting, false).await?);
    Ok(Some(state).filter(|state| !state.is_free()))
}

fn contender(node: Node, data: &[u8], stat: &Stat, holds: bool, now: Duration) -> Contender {
    let created = Duration::from_millis(stat.ctime.unsigned_abs());
    let contender = Contender::new(shown(&node), node.kind).since(now.saturating_sub(created));
    let token = if holds { Token::new(token_of(data, stat.czxid)) } else { None };
    let who = if data == keys::REVOKE { &b"asked to release the lock"[..] } else { data };
    match who_of(who) {
        Some(who) => contender.token(token).who(who),
        None => contender.token(token),
    }
}

/// The id of a claim of dlock, or the name of another program's node.
fn shown(node: &Node) -> String {
    node.id().unwrap_or_else(|| node.name.clone())
}

/// Who has a node, by its data: a text of dlock, or the address that Curator writes. Other programs may write anything.
fn who_of(data: &[u8]) -> Option<String> {
    let line = data.split(|byte| *byte == b'\n').next()?;
    Who::new(std::str::from_utf8(line).ok()?).ok().map(|who| who.text().to_owned())
}

/// The time of this machine. Only people read the difference to the server's.
#[expect(clippy::disallowed_methods, reason = "shown to people, and compared with nothing")]
fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
