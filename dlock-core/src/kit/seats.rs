//! Seats record which claims wait for which event, and wake the right claims when an event occurs.
//!
//! All waiters of a client that wait for one event, such as a message on a channel, share one
//! subscription. An event wakes the first waiter, or as many as can hold the lock together. If a
//! woken waiter leaves before it has sent its request to the store, the next waiter is woken
//! instead. An event without waiters takes no memory.

mod listener;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

use super::SharedError;
use crate::model::{Kind, Result};
use listener::RunningSource;
pub use listener::{EventSource, Listener};

/// The waiters of one client. Clones share the same seats.
///
/// A claim joins, sends its request to the store once more, and then waits until its seat is
/// [`notified`](Seat::notified). An [`EventSource`] receives the store's messages and calls
/// [`Listener::wake`] for each of them.
///
/// ```
/// use dlock_core::{Kind, driver::{EventSource, Listener, Seats, Wake}};
/// use std::{collections::HashSet, time::Duration};
///
/// struct Messages; // and a connection
///
/// #[async_trait::async_trait]
/// impl EventSource for Messages {
///     async fn listen(&mut self, seats: &Listener) {
///         while seats.wait_for_changes().await {
///             let (added, removed) = seats.take_changes(1000, &HashSet::new());
///             // LISTEN to the added events, UNLISTEN to the removed ones. Once the server has
///             // confirmed that:
///             seats.mark_subscribed(&added);
///             seats.wake("jobs", Wake::First); // on a message
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
/// let seats = Seats::new(Messages);
/// let limit = Duration::from_secs(3);
/// let seat = seats.join("jobs".to_owned(), None, Kind::Mutex, limit).await?;
/// // … send the request once more, and if the lock is still busy:
/// seat.notified().await;
/// seat.clear(); // … and send the request again
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Seats(Arc<Client>);

/// The claims' side of the seats. Dropping it ends the source.
struct Client(Arc<Shared>);

/// State that the claims and the source share.
struct Shared {
    events: Mutex<Events>,
    /// Wakes the source, if there are subscriptions to make or to end, or if the client was
    /// dropped.
    source_wake: Notify,
    is_closed: AtomicBool,
    /// The source, while no task runs it.
    parked_source: Mutex<Option<Box<dyn EventSource>>>,
    /// Number of the next seat.
    next_number: AtomicU64,
}

#[derive(Default)]
struct Events {
    /// Events with waiters.
    waited_for: HashMap<String, Event>,
    /// Events among `waited_for` that the source has to subscribe to.
    to_subscribe: HashSet<String>,
    /// Events without waiters whose subscription the source has to end.
    to_unsubscribe: HashSet<String>,
    /// Error with which the store refuses subscriptions. `None` if it accepts them.
    refusal: Option<SharedError>,
}

struct Event {
    /// Waiters, in the order in which they are woken.
    waiters: BTreeMap<Rank, Arc<Waiter>>,
    subscription: Subscription,
    /// Whether the subscription is active, so that messages arrive.
    is_subscribed: watch::Sender<bool>,
    /// Whether the waiters may have missed a message.
    may_have_missed: bool,
}

/// State of an event's subscription.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subscription {
    /// Not needed. The waiters are woken by other events of the source, or by the client itself.
    NotNeeded,
    /// Needed, but not yet handed to the source.
    New,
    /// Handed to the source, which makes it or has made it.
    Requested,
}

/// Orders the waiters of one event: by arrival, those without an arrival last, then by number.
type Rank = (u64, u64);

struct Waiter {
    kind: Kind,
    /// Whether the waiter was woken and has not sent a request to the store since.
    is_notified: AtomicBool,
    notify: Notify,
}

/// The waiters that an event wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The first waiter.
    First,
    /// The first waiter, and the waiters directly behind it that can hold the lock together with
    /// it, such as a run of readers.
    Sharers,
    /// All waiters.
    All,
}

/// The registration of a waiter for an event.
///
/// Dropping the seat removes the registration. If the waiter was woken and has not sent a request
/// since, the next waiter is woken instead.
///
/// Two claims may have the same id, as during a downgrade. Each claim then has its own seat.
pub struct Seat {
    client: Arc<Client>,
    event: String,
    rank: Rank,
    waiter: Arc<Waiter>,
}

impl Seats {
    /// Creates seats whose events come from this source. The first waiter starts the source, or the
    /// first call of [`ensure_source_runs`](Self::ensure_source_runs).
    pub fn new(source: impl EventSource) -> Self {
        Self::with(Some(Box::new(source)))
    }

    /// Creates seats whose events all come from the client itself, through [`wake`](Self::wake).
    pub fn without_source() -> Self {
        Self::with(None)
    }

    fn with(source: Option<Box<dyn EventSource>>) -> Self {
        Self(Arc::new(Client(Arc::new(Shared {
            events: Mutex::default(),
            source_wake: Notify::new(),
            is_closed: AtomicBool::new(false),
            parked_source: Mutex::new(source),
            next_number: AtomicU64::new(0),
        }))))
    }

    /// Registers a waiter for an event that the source must subscribe to.
    ///
    /// Waiters with an earlier `arrival` are ahead of this one. A waiter without an `arrival` is
    /// last. `kind` decides which waiters one event can wake together.
    ///
    /// No message is missed after this returns. If subscribing takes longer than `limit`, this
    /// returns anyway, and the seat is notified once the subscription is active.
    ///
    /// # Errors
    /// The error with which the store refuses subscriptions.
    ///
    /// # Cancel safety
    /// Safe. Dropping the future removes the registration.
    pub async fn join(
        &self,
        event: String,
        arrival: Option<u64>,
        kind: Kind,
        limit: Duration,
    ) -> Result<Seat> {
        let (seat, mut is_subscribed) = self.register(event, arrival, kind, Subscription::New);
        let in_time = timeout(limit, is_subscribed.wait_for(|is_subscribed| *is_subscribed)).await.is_ok();
        let mut events = self.0.0.events.lock();
        if let Some(refusal) = &events.refusal {
            let error = refusal.error();
            drop(events);
            return Err(error);
        }
        if let (false, Some(event)) = (in_time, events.waited_for.get_mut(&seat.event)) {
            event.may_have_missed = true;
        }
        Ok(seat)
    }

    /// Registers a waiter for an event that needs no subscription of its own. An event must not
    /// have both seats that need a subscription and seats that need none.
    pub fn join_without_subscription(&self, event: String, arrival: Option<u64>, kind: Kind) -> Seat {
        self.register(event, arrival, kind, Subscription::NotNeeded).0
    }

    /// Starts the source on this runtime, unless it already runs. For a source with work that needs
    /// no waiter, such as keeping a session alive.
    pub fn ensure_source_runs(&self) {
        self.0.start_source();
    }

    /// Wakes the waiters of an event.
    pub fn wake(&self, event: &str, wake: Wake) {
        self.0.0.wake(event, wake);
    }

    fn register(
        &self,
        event: String,
        arrival: Option<u64>,
        kind: Kind,
        subscription: Subscription,
    ) -> (Seat, watch::Receiver<bool>) {
        self.0.start_source();
        let shared = &self.0.0;
        let number = shared.next_number.fetch_add(1, Relaxed);
        let rank = (arrival.unwrap_or(u64::MAX), number);
        let waiter = Arc::new(Waiter { kind, is_notified: AtomicBool::new(false), notify: Notify::new() });
        let mut events = shared.events.lock();
        let Events { waited_for, to_subscribe, to_unsubscribe, .. } = &mut *events;
        let mut needs_subscription = false;
        let entry = waited_for.entry(event.clone()).or_insert_with(|| {
            let mut subscription = subscription;
            if subscription == Subscription::New {
                needs_subscription = true;
                // The source must subscribe again even if the old subscription still exists. Its
                // reply is what marks the event as subscribed.
                if to_unsubscribe.remove(&event) {
                    subscription = Subscription::Requested;
                }
                to_subscribe.insert(event.clone());
            }
            let is_subscribed = watch::Sender::new(false);
            Event { waiters: BTreeMap::new(), subscription, is_subscribed, may_have_missed: false }
        });
        entry.waiters.insert(rank, Arc::clone(&waiter));
        let is_subscribed = entry.is_subscribed.subscribe();
        drop(events);
        if needs_subscription {
            shared.source_wake.notify_one();
        }
        (Seat { client: Arc::clone(&self.0), event, rank, waiter }, is_subscribed)
    }
}

impl Client {
    /// Starts the source on this runtime, unless it already runs.
    #[expect(
        clippy::disallowed_methods,
        reason = "the client's one hint pump; it ends when the client and its claims are dropped"
    )]
    fn start_source(&self) {
        if let Some(source) = RunningSource::take(&self.0) {
            tokio::spawn(source.listen());
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Relaxed);
        self.0.source_wake.notify_one();
    }
}

impl Seat {
    /// Waits until the seat is notified: its waiter should send its request to the store again.
    ///
    /// # Cancel safety
    /// Safe. A notification persists until it is [cleared](Self::clear).
    pub async fn notified(&self) {
        self.client.start_source();
        while !self.waiter.is_notified.load(Relaxed) {
            self.waiter.notify.notified().await;
        }
    }

    /// Returns whether the waiter can rely on the notification of its seat. This is the case if the
    /// subscription is active, no message may have been missed, and the seat was not notified since
    /// it was last [cleared](Self::clear). A waiter that has sent a request since the subscription
    /// became active then needs no further request. Always `false` for a seat without a
    /// subscription.
    pub fn is_quiet(&self) -> bool {
        let events = self.client.0.events.lock();
        let is_current = |event: &Event| *event.is_subscribed.borrow() && !event.may_have_missed;
        events.refusal.is_none()
            && events.waited_for.get(&self.event).is_some_and(is_current)
            && !self.is_notified()
    }

    /// Returns whether the seat was notified since it was last [cleared](Self::clear).
    pub fn is_notified(&self) -> bool {
        self.waiter.is_notified.load(Relaxed)
    }

    /// Returns whether this is the first of the event's waiters of its kind. The waiters behind it
    /// may rely on it to poll the store.
    pub fn is_first_of_its_kind(&self) -> bool {
        let events = self.client.0.events.lock();
        let mut waiters = events.waited_for.get(&self.event).into_iter().flat_map(|event| &event.waiters);
        let first = waiters.find(|(_, waiter)| waiter.kind == self.waiter.kind);
        first.is_some_and(|(rank, _)| *rank == self.rank)
    }

    /// Forgets earlier notifications. Call it directly before the waiter sends its request to the
    /// store. The request sees every change of which the seat was notified before.
    pub fn clear(&self) {
        self.waiter.is_notified.store(false, Relaxed);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let shared = &self.client.0;
        let mut events = shared.events.lock();
        let Events { waited_for, to_subscribe, to_unsubscribe, .. } = &mut *events;
        let Some(event) = waited_for.get_mut(&self.event) else { return };
        event.waiters.remove(&self.rank);
        if !event.waiters.is_empty() {
            if self.waiter.is_notified.load(Relaxed) {
                // The notification may have been meant for several waiters, as when a writer frees
                // the lock for a run of readers.
                event.wake(Wake::Sharers);
            }
            return;
        }
        let subscription = event.subscription;
        waited_for.remove(&self.event);
        to_subscribe.remove(&self.event);
        if subscription == Subscription::Requested {
            to_unsubscribe.insert(std::mem::take(&mut self.event));
            drop(events);
            shared.source_wake.notify_one();
        }
    }
}

impl Event {
    fn wake(&self, wake: Wake) {
        let mut waiters = self.waiters.values();
        let Some(first) = waiters.next() else { return };
        first.notify();
        match wake {
            Wake::First => {}
            Wake::Sharers => {
                waiters
                    .take_while(|waiter| first.kind.shares_with(waiter.kind))
                    .for_each(|waiter| waiter.notify());
            }
            Wake::All => waiters.for_each(|waiter| waiter.notify()),
        }
    }

    fn mark_interrupted(&mut self) {
        self.is_subscribed.send_replace(false);
        self.may_have_missed = true;
    }
}

impl Waiter {
    fn notify(&self) {
        self.is_notified.store(true, Relaxed);
        self.notify.notify_one();
    }
}

impl Shared {
    fn wake(&self, event: &str, wake: Wake) {
        if let Some(event) = self.events.lock().waited_for.get(event) {
            event.wake(wake);
        }
    }
}

impl fmt::Debug for Seats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seats(of {} events)", self.0.0.events.lock().waited_for.len())
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Seat").field(&self.event).finish()
    }
}
