//! The server of the session store. A node exists until a client deletes it or its session ends, as
//! an ephemeral node of ZooKeeper.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use dlock_core::{
    ClaimId, Contender, Kind, LockName, LockState, Token, Who,
    driver::{Entry, Turn, turn, watchers},
};
use tokio::{sync::Notify, time::Instant};

/// Time from the last heartbeat of a session to its end.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(40);

/// Notifications of the server to a claim.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Notified when another attempt may have a new result.
    pub(crate) bell: Notify,
    /// Whether the claim's node was deleted.
    pub(crate) deleted: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct Server {
    /// Last number of a session or a node.
    last_number: u64,
    /// End of each session, unless a heartbeat arrives before.
    sessions: HashMap<u64, Instant>,
    queues: BTreeMap<LockName, Vec<Node>>,
}

#[derive(Debug)]
struct Node {
    entry: Entry,
    number: u64,
    session: u64,
    who: Who,
    /// Watches of all claim objects for this node. During a downgrade there are two.
    watches: Vec<Weak<Watch>>,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self { last_number: token_floor(), sessions: HashMap::new(), queues: BTreeMap::new() }
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(crate) fn open_session(&mut self) -> u64 {
        let session = self.next_number();
        self.sessions.insert(session, Instant::now() + TIMEOUT);
        session
    }

    /// Extends a session. Returns `false` if the session has ended.
    pub(crate) fn heartbeat(&mut self, session: u64) -> bool {
        self.end_silent_sessions();
        self.sessions.get_mut(&session).is_some_and(|end| {
            *end = Instant::now() + TIMEOUT;
            true
        })
    }

    pub(crate) fn close_session(&mut self, session: u64) {
        self.sessions.remove(&session);
        self.delete_orphans();
    }

    /// Called before each read, because the nodes of an ended session must not be visible.
    fn end_silent_sessions(&mut self) {
        let (now, before) = (Instant::now(), self.sessions.len());
        self.sessions.retain(|_, end| *end > now);
        if self.sessions.len() < before {
            self.delete_orphans();
        }
    }

    fn delete_orphans(&mut self) {
        let all = self.queues.iter().flat_map(|(name, queue)| queue.iter().map(move |node| (name, node)));
        let orphans = all.filter(|(_, node)| !self.sessions.contains_key(&node.session));
        let orphans: Vec<_> = orphans.map(|(name, node)| (name.clone(), node.entry.id)).collect();
        for (name, id) in orphans {
            self.delete(&name, id);
        }
    }

    /// Creates the claim's node unless it exists, and grants the lock if it is the claim's turn.
    ///
    /// Returns `None` if it is not the claim's turn. The node is then kept only if `stays` is true.
    ///
    /// # Errors
    /// If the session has ended. No node is created.
    pub(crate) fn attempt(
        &mut self,
        session: u64,
        name: &LockName,
        (entry, who): (Entry, &Who),
        stays: bool,
        watch: &Arc<Watch>,
    ) -> Result<Option<Token>, SessionIsOver> {
        self.end_silent_sessions();
        if !self.sessions.contains_key(&session) {
            return Err(SessionIsOver);
        }
        if let Some(node) = self.node(name, entry.id) {
            node.watches.retain(|other| other.strong_count() > 0 && !other.ptr_eq(&Arc::downgrade(watch)));
            node.watches.push(Arc::downgrade(watch));
            if entry.kind == Kind::Read && node.entry.kind != Kind::Read {
                self.notify_watchers(name, entry.id);
                self.node(name, entry.id).expect("found above").entry.kind = Kind::Read;
            }
        } else {
            let number = self.next_number();
            let watches = vec![Arc::downgrade(watch)];
            let node = Node { entry, number, session, who: who.clone(), watches };
            self.queues.entry(name.clone()).or_default().push(node);
        }
        if turn(&self.entries(name), entry.id) == Turn::Mine {
            return Ok(self.node(name, entry.id).and_then(|node| Token::new(node.number)));
        }
        if !stays {
            self.delete(name, entry.id);
        }
        Ok(None)
    }

    /// Deletes a node. Returns `false` if it did not exist.
    pub(crate) fn delete(&mut self, name: &LockName, id: ClaimId) -> bool {
        self.notify_watchers(name, id);
        let Some(queue) = self.queues.get_mut(name) else { return false };
        let deleted = queue.iter().position(|node| node.entry.id == id).map(|at| queue.remove(at));
        if queue.is_empty() {
            self.queues.remove(name);
        }
        for watch in deleted.iter().flat_map(|node| &node.watches).filter_map(Weak::upgrade) {
            watch.deleted.store(true, Relaxed);
            watch.bell.notify_one();
        }
        deleted.is_some()
    }

    fn notify_watchers(&mut self, name: &LockName, id: ClaimId) {
        for watcher in watchers(&self.entries(name), id) {
            let node = self.node(name, watcher.id).expect("a watcher is in the queue");
            node.watches.iter().filter_map(Weak::upgrade).for_each(|watch| watch.bell.notify_one());
        }
    }

    fn node(&mut self, name: &LockName, id: ClaimId) -> Option<&mut Node> {
        self.queues.get_mut(name)?.iter_mut().find(|node| node.entry.id == id)
    }

    fn entries(&self, name: &LockName) -> Vec<Entry> {
        self.queues.get(name).into_iter().flatten().map(|node| node.entry).collect()
    }

    pub(crate) fn inspect(&mut self, prefix: &str, whole: bool) -> Vec<LockState> {
        self.end_silent_sessions();
        let fits = |name: &str| if whole { name == prefix } else { name.starts_with(prefix) };
        self.queues.keys().filter(|name| fits(name.as_str())).map(|name| self.state(name)).collect()
    }

    fn state(&self, name: &LockName) -> LockState {
        let entries = self.entries(name);
        let mut state = LockState::new(name.clone());
        for Node { entry: Entry { id, kind, .. }, number, who, .. } in
            self.queues.get(name).into_iter().flatten()
        {
            // Without a ttl, because only the claim's own client knows the last call of its keeper.
            let contender = Contender::new(id.to_string(), *kind).who(who.text());
            match turn(&entries, *id) {
                Turn::Mine => state.holders.push(contender.token(Token::new(*number))),
                _ => state.queue.push(contender),
            }
        }
        state
    }

    pub(crate) fn force_release(&mut self, name: &LockName) -> bool {
        self.end_silent_sessions();
        let entries = self.entries(name);
        let holders: Vec<_> = entries.iter().filter(|entry| turn(&entries, entry.id) == Turn::Mine).collect();
        for holder in &holders {
            self.delete(name, holder.id);
        }
        !holders.is_empty()
    }
}

/// The session has ended.
pub(crate) struct SessionIsOver;

/// Returns the number with which tokens start, the microseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "tokens start at the wall clock")]
fn token_floor() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_micros()).expect("before the year 500000")
}
