//! Shows and breaks the locks below the base path, including the locks of other programs.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use dlock_core::{
    ClaimId, Contender, LockName, LockState, Result, Token, Who,
    driver::{Entry, Turn, turn},
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::time::timeout;
use zookeeper_client::{Client as ZkClient, Error as ZkError, Stat};

use crate::{
    claim::token_of,
    client::Client,
    error::{self, STORE},
    keys::{self, Node},
    session::Session,
};

/// Maximum number of locks, and of nodes of one lock, that a call reads or deletes at the same
/// time.
const MAX_PARALLEL_REQUESTS: usize = 100;

/// Time limit for showing or breaking one lock, as a multiple of the time limit of a call. It takes
/// several requests.
const CALLS_PER_LOCK: u32 = 3;

/// Maximum number of holders that leave while a call reads the holder of a lock.
const MAX_HOLDERS_READ: usize = 10;

/// Returns the state of a lock, or `None` if it is free.
pub(crate) async fn inspect(client: &Client, name: &LockName) -> Result<Option<LockState>> {
    let directory = &client.directory(name)?;
    read(client, |zk| async move { read_state(&zk, name, directory).await }).await
}

/// Returns the holder of an exclusive lock. Reads the data of no waiter's node.
pub(crate) async fn holder(client: &Client, name: &LockName) -> Result<Option<Contender>> {
    let directory = &client.directory(name)?;
    let read_holder = |zk: ZkClient| async move {
        for _ in 0..MAX_HOLDERS_READ {
            let (mut holders, _) = holders_and_waiters(&zk, directory).await?;
            if holders.is_empty() {
                return Ok(None);
            }
            holders.truncate(1);
            // If the holder was deleted after the listing, the next claim may hold the lock.
            if let Some(holder) = describe(&zk, directory, holders, true).await?.pop() {
                return Ok(Some(holder));
            }
        }
        Err(STORE.unavailable("the lock changes hands too fast to say who holds it"))
    };
    read(client, read_holder).await
}

/// Returns the states of all locks in use whose names begin with `prefix`, in order of their names.
pub(crate) async fn list(client: &Client, prefix: &str) -> Result<Vec<LockState>> {
    let base = &client.config.base;
    let root = if base.is_empty() { "/" } else { base };
    let directories = match read(client, |zk| async move { children(&zk, root).await }).await? {
        Some(directories) => directories,
        None => return Ok(Vec::new()),
    };
    let names =
        directories.iter().filter_map(|directory| keys::name_of(base, client.config.names, directory));
    let mut names: Vec<_> = names.filter(|name| name.as_str().starts_with(prefix)).collect();
    names.sort_unstable();
    let inspect_one = async |name: LockName| {
        let (name, directory) = (&name, &client.directory(&name)?);
        read(client, |zk| async move { read_state(&zk, name, directory).await }).await
    };
    let found: Vec<_> =
        stream::iter(names).map(inspect_one).buffered(MAX_PARALLEL_REQUESTS).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// Deletes the nodes of a lock's holders. Returns whether it has deleted one.
pub(crate) async fn force_release(client: &Client, name: &LockName) -> Result<bool> {
    let directory = client.directory(name)?;
    let (session, zk) = connected_session(client).await?;
    let breaking = async {
        let (holders, _) = holders_and_waiters(&zk, &directory).await?;
        let delete = async |node: Node| session.delete_node(&zk, &directory, &node.name).await;
        let deleted: Vec<_> =
            stream::iter(holders).map(delete).buffered(MAX_PARALLEL_REQUESTS).try_collect().await?;
        Ok(deleted.contains(&true))
    };
    STORE.with_timeout(client.config.timeout * CALLS_PER_LOCK, breaking).await
}

/// Reads from a server. After a transient error, such as a broken connection, reads once more.
async fn read<T, F>(client: &Client, read: impl Fn(ZkClient) -> F + Sync) -> Result<T>
where
    T: Send,
    F: Future<Output = Result<T>> + Send,
{
    let twice = async {
        let (_session, zk) = connected_session(client).await?;
        match read(zk).await {
            Err(error) if error.is_transient() => {}
            result => return result,
        }
        let (_session, zk) = connected_session(client).await?;
        read(zk).await
    };
    STORE.with_timeout(client.config.timeout * CALLS_PER_LOCK, twice).await
}

/// Returns a session and its client. The caller keeps the session until its last reply has arrived.
pub(crate) async fn connected_session(client: &Client) -> Result<(Arc<Session>, ZkClient)> {
    let limit = client.config.timeout;
    let connected = async {
        let session = client.connection.session(limit).await?;
        let zk = session.client().await?;
        Ok((session, zk))
    };
    timeout(limit, connected).await.unwrap_or_else(|_| Err(client.no_session_within(limit)))
}

/// Returns the nodes of the holders, and those of the waiters. A node that is no claim but blocks a
/// waiter is shown at the head of the waiters.
async fn holders_and_waiters(zk: &ZkClient, directory: &str) -> Result<(Vec<Node>, Vec<Node>)> {
    // The client's server may lag behind the leader.
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
    // All holders are ahead of all waiters.
    let is_blocked = |node: &Node, by: &String| keys::blocks(by, node.marker, node.number);
    let holds = |(entry, node): &(&Entry, &Node)| {
        turn(&entries, entry.id) == Turn::Mine && !strays.iter().any(|stray| is_blocked(node, stray))
    };
    let holders = entries.iter().zip(&nodes).take_while(holds).count();
    let waiting = nodes.split_off(holders);
    strays.retain(|stray| waiting.iter().any(|node| is_blocked(node, stray)));
    Ok((nodes, strays.into_iter().map(Node::stray).chain(waiting).collect()))
}

/// Returns the names of a node's children, or `None` if the node does not exist.
async fn children(zk: &ZkClient, path: &str) -> Result<Option<Vec<String>>> {
    match zk.list_children(path).await {
        Err(ZkError::NoNode) => Ok(None),
        children => children.map(Some).map_err(error::explain),
    }
}

/// Reads the state of a lock. Returns `None` if it is free.
async fn read_state(zk: &ZkClient, name: &LockName, directory: &Arc<str>) -> Result<Option<LockState>> {
    let (holders, waiting) = holders_and_waiters(zk, directory).await?;
    let mut state = LockState::new(name.clone());
    state.holders = describe(zk, directory, holders, true).await?;
    state.queue = describe(zk, directory, waiting, false).await?;
    Ok(Some(state).filter(|state| !state.is_free()))
}

/// Describes claims from their nodes, whose data it reads. `holds` says whether they are holders.
async fn describe(zk: &ZkClient, directory: &str, nodes: Vec<Node>, holds: bool) -> Result<Vec<Contender>> {
    let now = unix_time();
    let read = async |node: Node| match zk.get_data(&format!("{directory}/{}", node.name)).await {
        Ok((data, stat)) => Ok(Some(contender(node, &data, &stat, holds, now))),
        // The node was deleted after the listing.
        Err(ZkError::NoNode) => Ok(None),
        // The node's access rights may exclude this client.
        Err(ZkError::NoAuth) => Ok(Some(Contender::new(display_id(&node), node.kind))),
        Err(error) => Err(error::explain(error)),
    };
    let read: Vec<_> = stream::iter(nodes).map(read).buffered(MAX_PARALLEL_REQUESTS).try_collect().await?;
    Ok(read.into_iter().flatten().collect())
}

/// Describes a claim from its node and the node's data.
fn contender(node: Node, data: &[u8], stat: &Stat, holds: bool, now: Duration) -> Contender {
    let created = Duration::from_millis(stat.ctime.unsigned_abs());
    let contender = Contender::new(display_id(&node), node.kind).since(now.saturating_sub(created));
    let token = if holds { Token::new(token_of(data, stat.czxid)) } else { None };
    let text = if data == keys::REVOKE { &b"asked to release the lock"[..] } else { data };
    match first_line(text) {
        Some(who) => contender.token(token).who(who),
        None => contender.token(token),
    }
}

/// Returns the id of a claim of dlock, or the name of another program's node.
fn display_id(node: &Node) -> String {
    node.id().unwrap_or_else(|| node.name.clone())
}

/// Returns the first line of a node's data, which describes the owner of the claim. Returns `None`
/// if the line is not a valid label. dlock writes [`Who`], Curator writes an address, and other
/// programs may write anything.
fn first_line(data: &[u8]) -> Option<String> {
    let line = data.split(|byte| *byte == b'\n').next()?;
    Who::new(std::str::from_utf8(line).ok()?).ok().map(|who| who.text().to_owned())
}

/// Returns this machine's time since 1970. It is compared with the server's time only for display.
#[expect(clippy::disallowed_methods, reason = "used only for display")]
fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod fuzz;
