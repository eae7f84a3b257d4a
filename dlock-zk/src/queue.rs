//! The client's snapshot of the queue in a lock's directory. All claims of the client that wait
//! there share it.
//!
//! The reply to a listing of ten thousand nodes is half a megabyte. A listing for each of ten
//! thousand waiters would overload the server. Therefore claims share listings. A listing contains
//! all nodes ahead of a claim if it was sent after the claim's node was created.
//!
//! A node may have the name of an older one. This happens if a claim was deleted and joins again, and
//! its directory was deleted in between, so that the numbers began at zero again. A claim therefore
//! uses no listing that was sent before it created its node.
//!
//! When a node ahead is deleted, it is removed from the snapshot. No new listing is needed, because
//! no node ever appears ahead of an existing one. There is one exception: a write hold that is
//! downgraded to a read hold keeps its number, in dlock and in Curator since 5.5. After the end of
//! a write hold the nodes are therefore listed again.

use std::sync::Arc;

use dlock_core::{
    ClaimId, Kind, Result,
    driver::{Entry, SharedRead, Turn, turn, watched},
};
use futures_util::future::{BoxFuture, OptionFuture};
use parking_lot::Mutex;
use zookeeper_client::{Client as ZkClient, Error as ZkError};

use crate::{
    error,
    keys::{self, Marker, Node},
};

/// The queue of one directory, as the client last saw it.
pub(crate) struct Queue {
    pub(crate) directory: Arc<str>,
    lists: SharedRead<List>,
    snapshot: Mutex<Snapshot>,
}

/// The reply to a listing, and the server whose state it shows.
type List = (ReadFrom, std::result::Result<Arc<[String]>, ZkError>);

/// The server whose state a listing must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadFrom {
    /// The client's own server, which may lag behind the leader.
    Server,
    /// The leader. Costs another request, `sync`, with which the client's server catches up first.
    Leader,
}

/// The reply to a listing, without the nodes whose deletion has been reported since.
#[derive(Default)]
struct Snapshot {
    /// Number of the listing. Zero if there is none.
    list: u64,
    /// Number of the last listing that showed the leader's state.
    leader_list: u64,
    /// Number of the last listing that must no longer be used.
    invalid_up_to: u64,
    /// Numbered nodes, in the order of the queue.
    nodes: Vec<Node>,
    /// The same nodes for [`turn`]. The id of an entry is its index in the listing.
    entries: Vec<Entry>,
    /// Names of all other nodes.
    strays: Vec<String>,
    /// Whether the directory has nodes of other programs.
    is_mixed: bool,
}

/// Position of a claim's node in the queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// No other claim has to leave first.
    First,
    /// Other claims have to leave first. Contains the names of the nodes to watch.
    Behind(Vec<String>),
    /// The snapshot lacks the node, because the snapshot is too old or the node was deleted.
    Unknown,
    /// The directory has this node of another recipe, whose clients ignore the nodes of dlock.
    Foreign(String),
}

impl Queue {
    pub(crate) fn new(directory: Arc<str>) -> Self {
        Self { directory, lists: SharedRead::new(), snapshot: Mutex::default() }
    }

    /// Returns the number of listings sent so far. A listing with a greater number contains every
    /// node that exists now.
    pub(crate) fn lists_sent(&self) -> u64 {
        self.lists.sent()
    }

    /// Sends a listing at the call. The returned future waits for the reply and stores it.
    pub(crate) fn list<'a>(&'a self, client: &'a ZkClient) -> impl Future<Output = Result<()>> + Send + 'a {
        let number = self.lists.number_next();
        let listing = client.list_children(&self.directory);
        async move {
            let names = match listing.await {
                // The directory was deleted, so it has no nodes.
                Err(ZkError::NoNode) => Vec::new(),
                names => names.map_err(error::explain)?,
            };
            self.store_list(number, ReadFrom::Server, &names);
            Ok(())
        }
    }

    /// Waits until the snapshot comes from a listing with a number greater than `lists`. Callers
    /// that arrive while a listing is in flight share the next one.
    pub(crate) async fn ensure_listed_after(
        &self,
        client: &ZkClient,
        lists: u64,
        source: ReadFrom,
    ) -> Result<()> {
        loop {
            if self.snapshot.lock().has_list_after(lists, source) {
                return Ok(());
            }
            let (number, (shown, names)) = self.lists.join(|| self.send_list(client, source)).await;
            match names {
                Ok(names) => self.store_list(number, shown, &names),
                Err(error) if number > lists => return Err(error::explain(error)),
                // The caller needs a later listing in any case.
                Err(_) => {}
            }
        }
    }

    /// Returns a listing to send.
    fn send_list(&self, client: &ZkClient, source: ReadFrom) -> BoxFuture<'static, List> {
        let (client, directory) = (client.clone(), Arc::clone(&self.directory));
        let names = async move {
            let sync = OptionFuture::from((source == ReadFrom::Leader).then(|| client.sync(&directory)));
            let (sync, names) = tokio::join!(sync, client.list_children(&directory));
            sync.transpose()?;
            match names {
                // The directory was deleted, so it has no nodes.
                Err(ZkError::NoNode) => Ok(Vec::new().into()),
                names => names.map(Into::into),
            }
        };
        Box::pin(async move { (source, names.await) })
    }

    /// Returns the names of the nodes that begin with `stem`, in the leader's present state.
    pub(crate) async fn find(&self, client: &ZkClient, stem: &str) -> Result<Vec<String>> {
        let lists = self.lists_sent();
        loop {
            self.ensure_listed_after(client, lists, ReadFrom::Leader).await?;
            let snapshot = self.snapshot.lock();
            // The snapshot may have been discarded since.
            if snapshot.has_list_after(lists, ReadFrom::Leader) {
                let names = snapshot.nodes.iter().map(|node| &node.name).chain(&snapshot.strays);
                return Ok(names.filter(|name| name.starts_with(stem)).cloned().collect());
            }
        }
    }

    /// Makes the reply to a listing the snapshot, unless the snapshot is newer or the listing must
    /// no longer be used.
    fn store_list(&self, list: u64, source: ReadFrom, names: &[String]) {
        let mut snapshot = self.snapshot.lock();
        if snapshot.list >= list || snapshot.invalid_up_to >= list {
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
        let leader_list = if source == ReadFrom::Leader { list } else { snapshot.leader_list };
        *snapshot = Snapshot {
            list,
            leader_list,
            invalid_up_to: snapshot.invalid_up_to,
            nodes,
            entries,
            strays,
            is_mixed,
        };
    }

    /// Removes a deleted node from the snapshot.
    pub(crate) fn note_deleted(&self, name: &str) {
        let mut snapshot = self.snapshot.lock();
        if let Some(at) = snapshot.nodes.iter().position(|node| node.name == name) {
            if snapshot.nodes[at].kind == Kind::Write {
                // A read hold may have replaced the write hold, and a listing in flight may show
                // neither of them. The snapshot is discarded, so the next caller sends a listing.
                *snapshot = Snapshot { invalid_up_to: self.lists_sent(), ..Snapshot::default() };
                return;
            }
            snapshot.nodes.remove(at);
            snapshot.entries.remove(at);
        }
        snapshot.strays.retain(|stray| stray != name);
    }

    /// Returns the position of a node of this client, according to the snapshot, if that comes from
    /// a listing with a number greater than `lists`.
    pub(crate) fn position(&self, own: &Node, lists: u64) -> Position {
        let snapshot = self.snapshot.lock();
        if !snapshot.has_list_after(lists, ReadFrom::Server) {
            return Position::Unknown;
        }
        // Compares the numbers first, because the names of a client's nodes are equal for the most
        // part.
        let is_own = |node: &Node| node.number == own.number && node.name == own.name;
        let Some(at) = snapshot.nodes.iter().position(is_own) else { return Position::Unknown };
        if let Some(found) = snapshot.foreign(own.marker) {
            return found;
        }
        if let Some(stray) = snapshot.strays.iter().find(|stray| keys::blocks(stray, own.marker, own.number))
        {
            return Position::Behind(vec![stray.clone()]);
        }
        let id = snapshot.entries[at].id;
        match turn(&snapshot.entries, id) {
            Turn::Mine => Position::First,
            _ => {
                let ahead = watched(&snapshot.entries, id);
                let index_of = |ahead: &Entry| snapshot.entries.iter().position(|entry| entry.id == ahead.id);
                Position::Behind(
                    ahead.iter().filter_map(index_of).map(|at| snapshot.nodes[at].name.clone()).collect(),
                )
            }
        }
    }

    /// Returns whether a new claim would have to wait, according to the snapshot.
    pub(crate) fn is_busy(&self, newcomer: Entry, marker: Marker) -> bool {
        let snapshot = self.snapshot.lock();
        let mut entries = snapshot.entries.clone();
        let last = snapshot.nodes.last().map_or(0, |node| node.number.saturating_add(1));
        entries.push(newcomer);
        turn(&entries, newcomer.id) != Turn::Mine
            || snapshot.strays.iter().any(|stray| keys::blocks(stray, marker, last))
    }
}

impl Snapshot {
    /// Returns whether the snapshot is at least as new as some listing from `source` with a number
    /// greater than `lists`.
    fn has_list_after(&self, lists: u64, source: ReadFrom) -> bool {
        match source {
            ReadFrom::Server => self.list > lists,
            ReadFrom::Leader => self.leader_list > lists,
        }
    }

    /// Returns a node of another recipe whose clients ignore claims with this marker, if there is
    /// one.
    fn foreign(&self, marker: Marker) -> Option<Position> {
        if !self.is_mixed {
            return None;
        }
        let node = self.nodes.iter().find(|node| node.ignores(marker)).map(|node| &node.name);
        // The directory of the nodes of Curator's semaphore.
        let found = node.or_else(|| self.strays.iter().find(|stray| *stray == "leases"))?;
        Some(Position::Foreign(found.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_end_of_a_write_hold_no_earlier_list_counts() {
        let queue = Queue::new("/b/x".into());
        let names = ["_c_AB-__WRIT__0000000001", "_c_AC-__WRIT__0000000002"].map(str::to_owned);
        // The second listing is in flight when the node is deleted.
        queue.lists.number_next();
        queue.lists.number_next();
        queue.store_list(1, ReadFrom::Server, &names);
        assert!(queue.snapshot.lock().has_list_after(0, ReadFrom::Server));
        queue.note_deleted(&names[0]);
        assert_eq!(queue.position(&Node::of(names[1].clone()).expect("a node"), 0), Position::Unknown);
        queue.store_list(2, ReadFrom::Leader, &names);
        assert!(
            !queue.snapshot.lock().has_list_after(0, ReadFrom::Server),
            "a waiter would conclude from the discarded snapshot that its node was deleted"
        );
    }
}
