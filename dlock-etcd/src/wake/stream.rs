//! The requests on a stream of watches, and the meaning of the server's messages.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    future::pending,
};

use dlock_core::{
    Error, Result,
    driver::{Listener, LiveConnection, Wake},
};
use etcd_client::{
    Error as EtcdError, WatchFilterType, WatchOptions, WatchRequestSender, WatchResponse, WatchResponseStream,
};
use futures_util::TryFutureExt as _;

use crate::{
    connection::{Connection, Member},
    error::{self, STORE},
    keys,
};

use super::held_keys::{self, Change, HeldKeys};

/// The subject of a watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Target {
    /// A key for whose deletion a waiter waits, or the event of a queue that observers follow.
    Awaited(String),
    /// A key that a claim holds, by its number.
    Held(u64),
}

/// A watch that the server has refused.
pub(super) struct RefusedWatch {
    pub(super) error: Error,
    /// `None` if the watch was cancelled before the server replied.
    pub(super) target: Option<Target>,
}

/// A request on the stream.
enum Request {
    Create { id: i64, key: String, options: WatchOptions },
    Cancel { id: i64 },
}

/// A stream of watches on one connection.
pub(super) struct Stream<'a> {
    connection: &'a Connection,
    live: LiveConnection<Member>,
    /// The two directions of the stream, which the first watch opens.
    open: Option<(WatchRequestSender, WatchResponseStream)>,
    /// Requests to send.
    requests: VecDeque<Request>,
    /// Ids of the watches whose creation was sent and not confirmed, in the order of the server's
    /// replies.
    unconfirmed: VecDeque<i64>,
    /// Id of the last watch. The client chooses the ids, because a server may lose events of
    /// watches whose ids it chooses itself.
    last_id: i64,
    targets: HashMap<i64, Target>,
    ids: HashMap<Target, i64>,
}

impl<'a> Stream<'a> {
    /// Creates a stream on the current connection, without opening it.
    pub(super) async fn new(connection: &'a Connection) -> Result<Self> {
        let live = connection.live().await?;
        let (targets, ids) = (HashMap::new(), HashMap::new());
        Ok(Self {
            connection,
            live,
            open: None,
            requests: VecDeque::new(),
            unconfirmed: VecDeque::new(),
            last_id: 0,
            targets,
            ids,
        })
    }

    /// Starts the watches of keys with new waiters, and cancels those of keys without waiters.
    pub(super) fn update_waiters(&mut self, seats: &Listener) {
        let (added, removed) = seats.take_changes(usize::MAX, &HashSet::new());
        removed.into_iter().for_each(|key| self.unwatch(Target::Awaited(key)));
        for key in added {
            self.unwatch(Target::Awaited(key.clone()));
            // From now on, because the server delays a watch from an earlier revision by up to 100
            // ms.
            let options = WatchOptions::new();
            match keys::queue_of_event(&key) {
                Some(prefix) => {
                    let prefix = prefix.to_owned();
                    self.watch(Target::Awaited(key), prefix, options.with_prefix());
                }
                None => self.watch(Target::Awaited(key.clone()), key, options),
            }
        }
    }

    /// Starts and cancels the watches of held keys.
    pub(super) fn update_held_keys(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Unwatch { number } => self.unwatch(Target::Held(number)),
                Change::Watch { number, key, first_revision } => {
                    let options = WatchOptions::new().with_start_revision(first_revision);
                    let options = options.with_filters([WatchFilterType::NoPut]);
                    self.watch(Target::Held(number), key, options);
                }
            }
        }
    }

    fn watch(&mut self, target: Target, key: String, options: WatchOptions) {
        self.last_id += 1;
        let id = self.last_id;
        self.targets.insert(id, target.clone());
        self.ids.insert(target, id);
        self.requests.push_back(Request::Create { id, key, options: options.with_watch_id(id) });
    }

    fn unwatch(&mut self, target: Target) {
        let Some(id) = self.ids.remove(&target) else { return };
        self.targets.remove(&id);
        let before = self.requests.len();
        self.requests.retain(|request| !matches!(request, Request::Create { id: other, .. } if *other == id));
        if self.requests.len() == before {
            self.requests.push_back(Request::Cancel { id });
        }
    }

    /// Opens the stream with the first watch, if it is not open and there is a watch to create.
    pub(super) async fn open(&mut self) -> Result<()> {
        if self.open.is_some() {
            return Ok(());
        }
        // A stream that is not open has no watch to cancel.
        self.requests.retain(|request| matches!(request, Request::Create { .. }));
        let Some(Request::Create { id, key, options }) = self.requests.pop_front() else { return Ok(()) };
        let opening = async {
            let etcd = self.connection.logged_in(&self.live).await?;
            etcd.watch_client().watch(key, Some(options)).await
        };
        let opening = opening.map_err(|error| self.connection.explain(&self.live, error));
        self.open = Some(STORE.with_timeout(self.connection.limit(), opening).await?.split());
        self.unconfirmed.push_back(id);
        Ok(())
    }

    /// Sends the requests, and returns the next message of the server.
    ///
    /// # Cancel safety
    /// Safe. The next call sends the remaining requests.
    pub(super) async fn next(&mut self) -> Result<WatchResponse> {
        let Some((sender, messages)) = &mut self.open else { return pending().await };
        let message = loop {
            tokio::select! {
                sent = send(sender, self.requests.front()) => match sent {
                    Ok(()) => {
                        if let Some(Request::Create { id, .. }) = self.requests.pop_front() {
                            self.unconfirmed.push_back(id);
                        }
                    }
                    Err(error) => break Err(error),
                },
                message = messages.message() => break message,
            }
        };
        match message {
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(STORE.unavailable("the server has ended the stream of watches")),
            Err(error) => Err(self.connection.explain(&self.live, error)),
        }
    }

    /// Passes a message on to the waiters and the held keys that it concerns.
    ///
    /// # Errors
    /// If the server has refused a watch.
    pub(super) fn handle(
        &mut self,
        message: &WatchResponse,
        seats: &Listener,
        held_keys: &HeldKeys,
    ) -> Result<(), RefusedWatch> {
        let is_reply = message.created();
        if is_reply {
            let id = self.confirm(message.watch_id());
            if message.canceled() && message.compact_revision() == 0 {
                let target = self.targets.remove(&id);
                if let Some(target) = &target {
                    self.ids.remove(target);
                }
                return Err(RefusedWatch { error: error::watch_refused(message.cancel_reason()), target });
            }
        }
        let Some(target) = self.targets.get(&message.watch_id()).cloned() else { return Ok(()) };
        if message.canceled() {
            self.targets.remove(&message.watch_id());
            self.ids.remove(&target);
            match target {
                Target::Awaited(key) => seats.mark_interrupted(&key),
                Target::Held(number) => held_keys.mark_unwatched(number),
            }
            return Ok(());
        }
        match &target {
            Target::Awaited(key) if is_reply => seats.mark_subscribed(std::slice::from_ref(key)),
            Target::Held(number) if is_reply => {
                let revision = message.header().map_or(0, etcd_client::ResponseHeader::revision);
                held_keys.mark_watched(*number, revision);
            }
            _ => {}
        }
        match target {
            // A deletion, a downgrade that lets readers in, or any change of an observed queue.
            Target::Awaited(key) if !message.events().is_empty() => seats.wake(&key, Wake::All),
            Target::Held(number) if !message.events().is_empty() => {
                held_keys.mark_deleted(number);
                seats.wake(&held_keys::event(number), Wake::All);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the id of the watch whose creation the server has confirmed or refused. Servers
    /// since 3.5 do not name a refused watch, but they reply in order.
    fn confirm(&mut self, id: i64) -> i64 {
        let position = self.unconfirmed.iter().position(|unconfirmed| *unconfirmed == id).unwrap_or(0);
        self.unconfirmed.remove(position).unwrap_or(id)
    }

    /// Requests a new token. The server refuses a watch if the token has expired, and the client
    /// crate renews the token only for other requests.
    pub(super) async fn log_in(&self) {
        let refresh = async {
            let etcd = self.connection.logged_in(&self.live).await?;
            etcd.refresh_token().await
        };
        let refresh = refresh.map_err(|error| self.connection.explain(&self.live, error));
        // If the password has changed, the connection is given up, and the next one reads the
        // password again.
        let _ = STORE.with_timeout(self.connection.limit(), refresh).await;
    }
}

/// Sends a request, or waits forever if there is none.
async fn send(sender: &mut WatchRequestSender, request: Option<&Request>) -> Result<(), EtcdError> {
    match request {
        None => pending().await,
        Some(Request::Create { key, options, .. }) => sender.watch(key.as_str(), Some(options.clone())).await,
        Some(Request::Cancel { id }) => sender.cancel(*id).await,
    }
}
