//! One session: its connection, and how long it may be relied on. What its claims have in the store is in `session/records.rs`,
//! and how much of that a session can take in `session/paths.rs`.

mod paths;
mod records;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::AtomicU64},
    time::Duration,
};

use dlock_core::{
    ClaimId, Error, Result,
    driver::{Moment, Reaper},
};
use tokio::{sync::Notify, time::timeout};
use zookeeper_client::{Acls, Client as ZkClient, CreateMode, Error as ZkError, SessionState, StateWatcher};

use crate::{client::Queue, error, keys};

use super::answers::Answers;
pub(crate) use paths::{Paths, WatchedPath};
pub(crate) use records::Record;

/// One session of a client. It may be over while claims still know it.
pub(crate) struct Session {
    /// Empty once the session is closed. Dropping the client ends the session.
    client: Mutex<Option<ZkClient>>,
    states: StateWatcher,
    pub(crate) timeout: Duration,
    answers: Mutex<Answers>,
    reaper: Reaper,
    /// Wakes the pump: a claim may be overdue before the pump would next look.
    knock: Arc<Notify>,
    /// When the pump looks for overdue claims next.
    look: Mutex<Moment>,
    records: Mutex<HashMap<ClaimId, Record>>,
    pub(crate) paths: Arc<Paths>,
    /// How many requests were sent that may have made nodes.
    begun: AtomicU64,
    queues: Mutex<HashMap<Arc<str>, Weak<Queue>>>,
    /// Without containers, whoever empties a directory deletes it.
    pub(crate) has_containers: bool,
}

impl Session {
    /// A session whose connection was begun at `began`.
    pub(super) fn new(client: ZkClient, has_containers: bool, began: Moment) -> Self {
        Self {
            states: client.state_watcher(),
            timeout: client.session_timeout(),
            client: Mutex::new(Some(client)),
            answers: Mutex::new(Answers::new(began)),
            reaper: Reaper::new(),
            knock: Arc::default(),
            look: Mutex::new(began),
            records: Mutex::default(),
            paths: Arc::default(),
            begun: AtomicU64::default(),
            queues: Mutex::default(),
            has_containers,
        }
    }

    pub(super) fn knock(&self) -> Arc<Notify> {
        Arc::clone(&self.knock)
    }

    pub(super) fn states(&self) -> StateWatcher {
        self.states.clone()
    }

    pub(super) fn reaper(&self) -> &Reaper {
        &self.reaper
    }

    /// Ends the session if no server has answered a heartbeat for all of its timeout. Tells whether it is over: whether it has
    /// ended, or will not be used again. Its nodes are gone, or go with its end.
    pub(crate) fn end_if_silent(&self) -> bool {
        if self.states.peek_state().is_terminated() || lock(&self.client).is_none() {
            return true;
        }
        let is_silent = lock(&self.answers).age() > self.timeout;
        if is_silent {
            self.end();
        }
        is_silent
    }

    /// Uses the session no more. It is closed if a server can be reached.
    pub(super) fn end(&self) {
        drop(lock(&self.client).take());
        self.knock.notify_one();
    }

    /// The client crate's client, once it has a connection. Without one it would queue requests, and send them at any later time,
    /// also if nobody waits for them any more. The caller bounds how long it waits.
    ///
    /// # Errors
    /// If the session is over.
    pub(crate) async fn client(&self) -> Result<ZkClient> {
        let mut states = self.states.clone();
        loop {
            let state = states.state();
            if state.is_terminated() {
                return Err(error::session_is_over());
            }
            if state == SessionState::SyncConnected {
                return lock(&self.client).clone().ok_or_else(error::session_is_over);
            }
            states.changed().await;
        }
    }

    /// Whether the session has a connection, or gets one soon. The caller has this much time for its whole call.
    pub(super) async fn is_connected(&self, limit: Duration) -> bool {
        !self.is_stale()
            && timeout(SOON.min(limit / 4), self.client()).await.is_ok_and(|client| client.is_ok())
    }

    /// Whether several heartbeats in a row were not answered. The connection may break again and again, or the server may
    /// answer others only.
    fn is_stale(&self) -> bool {
        lock(&self.answers).age() > self.timeout / STALE
    }

    /// Whether the session has a connection on which heartbeats are answered.
    pub(crate) fn is_well(&self) -> bool {
        !self.end_if_silent() && !self.is_stale() && self.states.peek_state() == SessionState::SyncConnected
    }

    /// Notes that a majority of the servers has confirmed a request that was sent at this moment.
    pub(crate) fn note_answer(&self, sent: Moment) {
        lock(&self.answers).note(sent, self.timeout);
    }

    /// How long the session may still be relied on.
    ///
    /// # Errors
    /// If no heartbeat was answered for too long.
    pub(crate) fn left(&self) -> Result<Duration> {
        let left = lock(&self.answers).left(self.timeout);
        left.ok_or_else(error::session_is_silent)
    }

    /// What this client knows of the queue in a directory. All claims that wait there share it.
    pub(crate) fn queue(&self, directory: &Arc<str>) -> Arc<Queue> {
        let mut queues = lock(&self.queues);
        if let Some(queue) = queues.get(directory).and_then(Weak::upgrade) {
            return queue;
        }
        // Forgets what nobody uses whenever the map would grow, so that this costs little for each entry.
        if queues.len() == queues.capacity() {
            queues.retain(|_, queue| queue.strong_count() > 0);
        }
        let queue = Arc::new(Queue::new(Arc::clone(directory)));
        queues.insert(Arc::clone(directory), Arc::downgrade(&queue));
        queue
    }

    /// Sends a heartbeat, unless there is no connection: a write that changes nothing, so that a majority must confirm it. A
    /// leader that has lost the majority would answer a `sync` for a while.
    ///
    /// The future does not keep the session.
    pub(super) fn beat(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        let is_connected = self.states.peek_state() == SessionState::SyncConnected;
        let client = lock(&self.client).clone().filter(|_| is_connected);
        let (session, limit) = (Arc::downgrade(self), self.timeout);
        async move {
            let Some(client) = client else { return };
            let sent = Moment::now();
            let answer = timeout(limit, client.delete(keys::NO_NODE, Some(keys::NO_VERSION))).await;
            // A failure is no news: the age of the last answer tells.
            if let (Ok(answer), Some(session)) = (answer, session.upgrade())
                && answer.as_ref().err().is_none_or(error::is_confirmed)
            {
                session.note_answer(sent);
            }
        }
    }

    pub(super) async fn check_chroot(&self) -> Result<()> {
        let client = self.client().await?;
        if client.path() == "/" {
            return Ok(());
        }
        match client.check_stat("/").await.map_err(error::explain)? {
            Some(_) => Ok(()),
            None => {
                let reason = format!(
                    "the `chroot` `{}` does not exist, and dlock does not create it; it creates the node that the URL's path names",
                    client.path()
                );
                Err(Error::InvalidConfig { reason })
            }
        }
    }

    pub(super) async fn close(&self) {
        let Some(client) = lock(&self.client).take() else { return };
        let mut states = client.state_watcher();
        drop(client);
        self.knock.notify_one();
        let closed =
            async { while !states.state().is_terminated() && !states.changed().await.is_terminated() {} };
        // Calls under way keep the session until their own time-outs. Without an answer its end is the server's business.
        let _ = timeout(self.timeout.min(GOODBYE), closed).await;
    }
}

/// How long a claim waits for a new connection of its session before it opens another session. With a short limit of its own
/// it waits for a quarter of that, so that time is left for the other session.
const SOON: Duration = Duration::from_millis(500);

/// New claims get another session when no heartbeat was answered for this part of the timeout. Three heartbeats are sent in
/// that time.
const STALE: u32 = 2;

/// How long a client waits until the server has confirmed the end of its session.
const GOODBYE: Duration = Duration::from_secs(5);

impl Drop for Session {
    fn drop(&mut self) {
        self.knock.notify_one();
    }
}

/// Whether the server knows nodes that it removes by itself when they are empty. Asked with a request that can make none.
pub(super) async fn has_containers(client: &ZkClient) -> std::result::Result<bool, ZkError> {
    let container = CreateMode::Container.with_acls(Acls::anyone_all());
    match client.create(keys::BELOW_NO_NODE, b"", &container).await {
        Err(ZkError::Unimplemented) => Ok(false),
        Err(error) if !error::is_confirmed(&error) => Err(error),
        _ => Ok(true),
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
