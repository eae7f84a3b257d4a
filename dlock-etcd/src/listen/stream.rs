//! One stream of watches: what is asked of the server, and what its messages mean.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    future::pending,
};

use dlock_core::{
    Error, Result,
    driver::{Listener, LiveConnection, Wake},
};
use etcd_client::{
    Client as Etcd, Error as EtcdError, WatchFilterType, WatchOptions, WatchRequestSender, WatchResponse,
    WatchResponseStream,
};

use crate::{
    client::{Held, Order, held_event},
    connection::Connection,
    error::{self, STORE},
};

/// What is watched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Target {
    /// A key that somebody waits for.
    Event(String),
    /// A key that is held, by its number.
    Held(u64),
}

/// A watch that the server has refused.
pub(super) struct RefusedWatch {
    pub(super) error: Error,
    /// `None` if the watch was left before the server answered.
    pub(super) target: Option<Target>,
}

/// What is to be asked.
enum Ask {
    Watch { id: i64, key: String, options: WatchOptions },
    Cancel { id: i64 },
}

pub(super) struct Stream<'a> {
    connection: &'a Connection,
    live: LiveConnection<Etcd>,
    /// Opened with the first watch.
    open: Option<(WatchRequestSender, WatchResponseStream)>,
    asks: VecDeque<Ask>,
    /// Ids of the watches that were sent and not answered, in the order in which the server answers them.
    sent: VecDeque<i64>,
    /// The last id of a watch. A server may lose events of watches whose ids it chooses.
    last: i64,
    targets: HashMap<i64, Target>,
    ids: HashMap<Target, i64>,
}

impl<'a> Stream<'a> {
    pub(super) async fn new(connection: &'a Connection) -> Result<Self> {
        let live = connection.live().await?;
        let (targets, ids) = (HashMap::new(), HashMap::new());
        Ok(Self {
            connection,
            live,
            open: None,
            asks: VecDeque::new(),
            sent: VecDeque::new(),
            last: 0,
            targets,
            ids,
        })
    }

    /// Watches the keys that somebody has begun to wait for, and leaves those that nobody waits for any more.
    pub(super) fn order_events(&mut self, seats: &Listener) {
        let (come, gone) = seats.take_changes(usize::MAX, &HashSet::new());
        gone.into_iter().for_each(|key| self.leave(Target::Event(key)));
        for key in come {
            self.leave(Target::Event(key.clone()));
            // From now on: a watch from an earlier revision waits up to 100 ms in the server.
            self.watch(Target::Event(key.clone()), key, WatchOptions::new());
        }
    }

    pub(super) fn order_held(&mut self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Leave { number } => self.leave(Target::Held(number)),
                Order::Watch { number, key, from } => {
                    let options = WatchOptions::new().with_start_revision(from);
                    let options = options.with_filters([WatchFilterType::NoPut]);
                    self.watch(Target::Held(number), key, options);
                }
            }
        }
    }

    fn watch(&mut self, target: Target, key: String, options: WatchOptions) {
        self.last += 1;
        let id = self.last;
        self.targets.insert(id, target.clone());
        self.ids.insert(target, id);
        self.asks.push_back(Ask::Watch { id, key, options: options.with_watch_id(id) });
    }

    fn leave(&mut self, target: Target) {
        let Some(id) = self.ids.remove(&target) else { return };
        self.targets.remove(&id);
        let before = self.asks.len();
        self.asks.retain(|ask| !matches!(ask, Ask::Watch { id: asked, .. } if *asked == id));
        if self.asks.len() == before {
            self.asks.push_back(Ask::Cancel { id });
        }
    }

    /// Opens the stream with the first watch, if there is one to ask for.
    pub(super) async fn open(&mut self) -> Result<()> {
        if self.open.is_some() {
            return Ok(());
        }
        // Of a stream that is not open nothing need be cancelled.
        self.asks.retain(|ask| matches!(ask, Ask::Watch { .. }));
        let Some(Ask::Watch { id, key, options }) = self.asks.pop_front() else { return Ok(()) };
        let mut etcd = self.live.connection.watch_client();
        let opening = async {
            etcd.watch(key, Some(options)).await.map_err(|error| self.connection.judge(&self.live, error))
        };
        self.open = Some(STORE.with_timeout(self.connection.limit(), opening).await?.split());
        self.sent.push_back(id);
        Ok(())
    }

    /// Sends what is to be asked, and returns the server's next message.
    ///
    /// # Cancel safety
    /// Safe: what is not sent yet is sent by the next call.
    pub(super) async fn next(&mut self) -> Result<WatchResponse> {
        let Some((sender, messages)) = &mut self.open else { return pending().await };
        let told = loop {
            tokio::select! {
                sent = send(sender, self.asks.front()) => match sent {
                    Ok(()) => {
                        if let Some(Ask::Watch { id, .. }) = self.asks.pop_front() {
                            self.sent.push_back(id);
                        }
                    }
                    Err(error) => break Err(error),
                },
                message = messages.message() => break message,
            }
        };
        match told {
            Ok(Some(told)) => Ok(told),
            Ok(None) => Err(STORE.unavailable("the server has ended the stream of watches")),
            Err(error) => Err(self.connection.judge(&self.live, error)),
        }
    }

    /// Passes a message on to those whom it concerns.
    ///
    /// # Errors
    /// If the server has refused a watch.
    pub(super) fn hear(
        &mut self,
        told: &WatchResponse,
        seats: &Listener,
        held: &Held,
    ) -> Result<(), RefusedWatch> {
        let id = if told.created() { self.answered(told.watch_id()) } else { told.watch_id() };
        if told.created() && told.canceled() && told.compact_revision() == 0 {
            let target = self.targets.remove(&id);
            if let Some(target) = &target {
                self.ids.remove(target);
            }
            return Err(RefusedWatch { error: error::watch_refused(told.cancel_reason()), target });
        }
        let Some(target) = self.targets.get(&told.watch_id()).cloned() else { return Ok(()) };
        if told.canceled() {
            self.targets.remove(&told.watch_id());
            self.ids.remove(&target);
            match target {
                Target::Event(key) => seats.mark_interrupted(&key),
                Target::Held(number) => held.mark_missed(number),
            }
            return Ok(());
        }
        match &target {
            Target::Event(key) if told.created() => seats.mark_subscribed(std::slice::from_ref(key)),
            Target::Held(number) if told.created() => {
                let revision = told.header().map_or(0, etcd_client::ResponseHeader::revision);
                held.mark_heard(*number, revision);
            }
            _ => {}
        }
        match target {
            // A deletion, or a claim that lets readers in from now on.
            Target::Event(key) if !told.events().is_empty() => seats.wake(&key, Wake::All),
            Target::Held(number) if !told.events().is_empty() => {
                held.mark_deleted(number);
                seats.wake(&held_event(number), Wake::All);
            }
            _ => {}
        }
        Ok(())
    }

    /// The id of the watch that a response answers. Servers since 3.5 do not say which watch they refuse, but they answer in
    /// order.
    fn answered(&mut self, id: i64) -> i64 {
        let place = self.sent.iter().position(|sent| *sent == id).unwrap_or(0);
        self.sent.remove(place).unwrap_or(id)
    }

    /// Asks for another token: a watch is refused where the last one has expired, and the client crate notices that only for
    /// other requests.
    pub(super) async fn log_in(&self) {
        let again = async {
            self.live
                .connection
                .refresh_token()
                .await
                .map_err(|error| self.connection.judge(&self.live, error))
        };
        // If the password has changed, the connection is given up, and the next one reads the password again.
        let _ = STORE.with_timeout(self.connection.limit(), again).await;
    }
}

async fn send(sender: &mut WatchRequestSender, ask: Option<&Ask>) -> Result<(), EtcdError> {
    match ask {
        None => pending().await,
        Some(Ask::Watch { key, options, .. }) => sender.watch(key.as_str(), Some(options.clone())).await,
        Some(Ask::Cancel { id }) => sender.cancel(*id).await,
    }
}
