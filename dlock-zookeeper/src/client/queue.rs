//! What this client knows of the queue in a lock's directory. All of its claims that wait there share one list of the nodes.
//!
//! A list of ten thousand nodes is half a megabyte, so a list for each of ten thousand waiters would be the end of the server.
//! A list that was sent after a claim's node was made has all nodes ahead of that node. So one list serves all claims whose
//! nodes were made before it was sent. When a node ahead is gone, it is taken out of the list that is there: no node ever
//! appears ahead. There is one exception: a write hold that becomes a read hold keeps its number, also in Curator since 5.5.
//! So after the end of a write hold the nodes are listed again.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use dlock_core::{
    ClaimId, Kind, Result,
    driver::{Entry, Turn, turn, watched},
};
use futures_util::{
    FutureExt as _,
    future::{BoxFuture, OptionFuture, Shared},
};
use zookeeper_client::{Client as ZkClient, Error as ZkError};

use crate::{
    error,
    keys::{self, Node},
};

/// The queue of one directory, as this client saw it last.
pub(crate) struct Queue {
    pub(crate) directory: Arc<str>,
    /// How many lists were sent.
    sent: AtomicU64,
    /// The list that is under way, if callers share it. There is never a second one, so a server that answers late has one
    /// list to send for each directory, however many claims wait for it and give up.
    under_way: Mutex<Option<Listing>>,
    seen: Mutex<Seen>,
}

/// A list that was sent and that several callers wait for. Any of them may be dropped.
#[derive(Clone)]
struct Listing {
    number: u64,
    source: Source,
    names: Shared<BoxFuture<'static, Names>>,
}

type Names = std::result::Result<Arc<[String]>, ZkError>;

/// Whose state a list has to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// That of the client's server, which may be behind the others.
    Server,
    /// That of the leader: the server first gets up to date, which is another request.
    Leader,
}

#[derive(Default)]
struct Seen {
    /// Which list it is. Zero: none.
    list: u64,
    /// The same for the last list that shows the state of the leader.
    leaders: u64,
    /// Lists up to this one do not count any more.
    void: u64,
    /// The numbered nodes in order, and their places in the queue. The id of an entry is the node's place in the list.
    nodes: Vec<Node>,
    entries: Vec<Entry>,
    /// All other nodes.
    strays: Vec<String>,
    /// Whether other programs have nodes there.
    is_mixed: bool,
}

/// Where a node stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nobody has to go first.
    First,
    /// The nodes to watch.
    Behind(Vec<String>),
    /// The list does not have the node: it is too old, or the node is gone.
    Unknown,
    /// This node is another recipe's and would not heed ours.
    Foreign(String),
}

impl Queue {
    pub(crate) fn new(directory: Arc<str>) -> Self {
        Self { directory, sent: AtomicU64::new(0), under_way: Mutex::default(), seen: Mutex::default() }
    }

    /// How many lists were sent so far. A list with a greater number has every node that is there now.
    pub(crate) fn lists(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Sends a list when it is called, and takes it over when its future ends.
    pub(crate) fn list<'a>(&'a self, client: &'a ZkClient) -> impl Future<Output = Result<()>> + Send + 'a {
        let number = self.sent.fetch_add(1, Relaxed) + 1;
        let listing = client.list_children(&self.directory);
        async move {
            let names = match listing.await {
                // The directory is gone, and so are all nodes in it.
                Err(ZkError::NoNode) => Vec::new(),
                names => names.map_err(error::explain)?,
            };
            self.take_over(number, Source::Server, &names);
            Ok(())
        }
    }

    /// Makes sure that the queue was listed after `lists` lists. Callers that come while a list is under way share the next.
    pub(crate) async fn list_after(&self, client: &ZkClient, lists: u64, source: Source) -> Result<()> {
        loop {
            if self.seen().has_list_after(lists, source) {
                return Ok(());
            }
            let listing = self.listing(client, source);
            let names = listing.names.await;
            lock(&self.under_way).take_if(|now| now.number == listing.number);
            match names {
                Ok(names) => self.take_over(listing.number, listing.source, &names),
                Err(error) if listing.number > lists => return Err(error::explain(error)),
                // The caller needs a later one anyway.
                Err(_) => {}
            }
        }
    }

    /// The list that is under way. Sends one if there is none.
    fn listing(&self, client: &ZkClient, source: Source) -> Listing {
        let mut under_way = lock(&self.under_way);
        let send = || {
            let number = self.sent.fetch_add(1, Relaxed) + 1;
            let (client, directory) = (client.clone(), Arc::clone(&self.directory));
            let names = async move {
                let sync = OptionFuture::from((source == Source::Leader).then(|| client.sync(&directory)));
                let (sync, names) = tokio::join!(sync, client.list_children(&directory));
                sync.transpose()?;
                match names {
                    // The directory is gone, and so are all nodes in it.
                    Err(ZkError::NoNode) => Ok(Vec::new().into()),
                    names => names.map(Into::into),
                }
            };
            Listing { number, source, names: names.boxed().shared() }
        };
        under_way.get_or_insert_with(send).clone()
    }

    /// The names of the nodes that begin with `stem`, in the state that the leader has now.
    pub(crate) async fn find(&self, client: &ZkClient, stem: &str) -> Result<Vec<String>> {
        let lists = self.lists();
        loop {
            self.list_after(client, lists, Source::Leader).await?;
            let seen = self.seen();
            // The list may have been dropped since.
            if seen.has_list_after(lists, Source::Leader) {
                let names = seen.nodes.iter().map(|node| &node.name).chain(&seen.strays);
                return Ok(names.filter(|name| name.starts_with(stem)).cloned().collect());
            }
        }
    }

    fn take_over(&self, list: u64, source: Source, names: &[String]) {
        let mut seen = self.seen();
        if seen.list >= list || seen.void >= list {
            return;
        }
        let (mut nodes, mut strays) = (Vec::with_capacity(names.len()), Vec::new());
        for name in names {
            match Node::of(name.clone()) {
                Some(node) => nodes.push(node),
                None => strays.push(name.clone()),
            }
        }
        nodes.sort_by(Node::order);
        let entries = nodes.iter().zip(0_u128..);
        let entries = entries
            .map(|(node, at)| Entry::new(ClaimId::from_bytes(at.to_be_bytes()), node.kind).limit(node.limit))
            .collect();
        let is_mixed = !strays.is_empty() || nodes.iter().any(|node| !node.is_own());
        let leaders = if source == Source::Leader { list } else { seen.leaders };
        *seen = Seen { list, leaders, void: seen.void, nodes, entries, strays, is_mixed };
    }

    /// Notes that a node is gone.
    pub(crate) fn note_gone(&self, name: &str) {
        let mut seen = self.seen();
        if let Some(at) = seen.nodes.iter().position(|node| node.name == name) {
            if seen.nodes[at].kind == Kind::Write {
                // A read hold may have taken its place, and a list that is under way may show neither. There is no list any
                // more, so the next caller sends one.
                *seen = Seen { void: self.lists(), ..Seen::default() };
                return;
            }
            seen.nodes.remove(at);
            seen.entries.remove(at);
        }
        seen.strays.retain(|stray| stray != name);
    }

    /// Where a node of this client stands, by the last list.
    pub(crate) fn place(&self, own: &Node) -> Place {
        let seen = self.seen();
        // The number first, because most of a name is the same for all nodes of a client.
        let is_own = |node: &Node| node.number == own.number && node.name == own.name;
        let Some(at) = seen.nodes.iter().position(is_own) else { return Place::Unknown };
        if let Some(found) = seen.foreign(own.kind) {
            return found;
        }
        if let Some(stray) = seen.strays.iter().find(|stray| keys::blocks(stray, own.kind, own.number)) {
            return Place::Behind(vec![stray.clone()]);
        }
        let id = seen.entries[at].id;
        match turn(&seen.entries, id) {
            Turn::Mine => Place::First,
            _ => {
                let ahead = watched(&seen.entries, id);
                let of = |entry: &Entry| seen.entries.iter().position(|one| one.id == entry.id);
                Place::Behind(ahead.iter().filter_map(of).map(|at| seen.nodes[at].name.clone()).collect())
            }
        }
    }

    /// Whether a claim that came now would have to wait, by the last list.
    pub(crate) fn is_busy(&self, newcomer: Entry) -> bool {
        let seen = self.seen();
        let mut entries = seen.entries.clone();
        let last = seen.nodes.last().map_or(0, |node| node.number.saturating_add(1));
        entries.push(newcomer);
        turn(&entries, newcomer.id) != Turn::Mine
            || seen.strays.iter().any(|stray| keys::blocks(stray, newcomer.kind, last))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seen {
    fn has_list_after(&self, lists: u64, source: Source) -> bool {
        match source {
            Source::Server => self.list > lists,
            Source::Leader => self.leaders > lists,
        }
    }

    /// A node of another recipe, which would not heed a claim of this kind.
    fn foreign(&self, kind: Kind) -> Option<Place> {
        if !self.is_mixed {
            return None;
        }
        let node = self.nodes.iter().find(|node| node.ignores(kind)).map(|node| &node.name);
        // Curator's semaphore has its nodes in a directory of this name.
        let found = node.or_else(|| self.strays.iter().find(|stray| *stray == "leases"))?;
        Some(Place::Foreign(found.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_end_of_a_write_hold_no_earlier_list_counts() {
        let queue = Queue::new("/b/x".into());
        let names = ["_c_AB-__WRIT__0000000001", "_c_AC-__WRIT__0000000002"].map(str::to_owned);
        // It is under way when the node goes.
        queue.sent.store(2, Relaxed);
        queue.take_over(1, Source::Server, &names);
        assert!(queue.seen().has_list_after(0, Source::Server));
        queue.note_gone(&names[0]);
        assert_eq!(queue.place(&Node::of(names[1].clone()).expect("a node")), Place::Unknown);
        queue.take_over(2, Source::Leader, &names);
        assert!(
            !queue.seen().has_list_after(0, Source::Server),
            "a waiter takes the empty list for one without its node"
        );
    }
}
