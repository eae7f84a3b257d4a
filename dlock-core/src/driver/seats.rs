//! Seats: which claims wait for which event, and which of them an event wakes. Over the usual length, because it is one
//! data structure.
//!
//! All waiters of a client that wait for one event, such as a message of a channel, share one subscription. An event wakes
//! the first waiter, or as many as can hold the lock at once. If a woken waiter goes away before it has asked the store,
//! the next one is woken instead. An event that nobody waits for takes no memory.

mod listener;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

use super::{Kind, Result, Retold};
use listener::Running;
pub use listener::{EventSource, Listener};

/// The waiters of one client. Clones share the same seats.
///
/// A claim joins, asks the store once more, and then waits until its seat is [`rung`](Seat::rung). An [`EventSource`]
/// listens to the store's messages and calls [`Listener::wake`] for each.
///
/// ```
/// use dlock_core::{Kind, driver::{Listener, Seats, EventSource, Wake}};
/// use std::{collections::HashSet, time::Duration};
///
/// struct Messages; // and a connection
///
/// #[async_trait::async_trait]
/// impl EventSource for Messages {
///     async fn listen(&mut self, seats: &Listener) {
///         while seats.stirred().await {
///             let (come, gone) = seats.take(1000, &HashSet::new());
///             // LISTEN to what has come, UNLISTEN to what has gone; and once the server has confirmed that:
///             seats.mark_heard(&come);
///             seats.wake("jobs", Wake::One); // on a message
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
/// let seats = Seats::new(Messages);
/// let seat = seats.join("jobs".to_owned(), None, Kind::Mutex, Duration::from_secs(3)).await?;
/// // … ask the store once more, and if it is still busy:
/// seat.rung().await;
/// seat.clear(); // … and ask it again
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Seats(Arc<Open>);

/// The part that the claims share. When it is dropped, the source ends.
struct Open(Arc<Waiters>);

/// The state that the claims and the source share.
struct Waiters {
    events: Mutex<Events>,
    /// Wakes the source: there are subscriptions to make or to end, or the last claim and the client are gone.
    stirred: Notify,
    is_closed: AtomicBool,
    /// The source, while no task runs it.
    parked: Mutex<Option<Box<dyn EventSource>>>,
    next: AtomicU64,
}

#[derive(Default)]
struct Events {
    /// The events that somebody waits for.
    open: HashMap<String, Event>,
    /// Those of `open` that the source is to subscribe to.
    come: HashSet<String>,
    /// Events that nobody waits for any more, but that the source may be subscribed to.
    gone: HashSet<String>,
    /// Why the store refuses subscriptions, if it does.
    refusal: Option<Retold>,
}

struct Event {
    /// In the order in which they are woken.
    seats: BTreeMap<Rank, Arc<Bell>>,
    needs: Subscription,
    /// Whether the subscription stands, so that messages arrive.
    heard: watch::Sender<bool>,
    /// Whether the waiters may have missed a message.
    is_missed: bool,
}

/// What an event needs of the source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subscription {
    /// No subscription: its seats are woken by other events of the source, or by the client itself.
    Never,
    /// A subscription, which the source does not know of yet.
    New,
    /// A subscription, which the source was told to make.
    Told,
}

/// Orders the waiters of one event: by arrival, and those without an arrival last.
type Rank = (u64, u64);

struct Bell {
    kind: Kind,
    /// The waiter was woken, and has not asked the store since.
    is_rung: AtomicBool,
    notify: Notify,
}

/// Which waiters an event wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The first.
    One,
    /// The first, and those right behind it that can hold the lock together with it: a row of readers.
    Sharers,
    /// All.
    All,
}

/// A waiter's seat. Dropping it frees the seat. If the waiter was woken and has not asked since, the next waiter is woken
/// instead.
///
/// Two claims may have the same id, as during a downgrade. Each has a seat of its own.
pub struct Seat {
    open: Arc<Open>,
    event: String,
    rank: Rank,
    bell: Arc<Bell>,
}

impl Seats {
    /// Seats whose events come from this source. The first waiter starts it.
    pub fn new(source: impl EventSource) -> Self {
        Self::with(Some(Box::new(source)))
    }

    /// Seats whose events all come from the client itself, by [`wake`](Self::wake).
    pub fn without_source() -> Self {
        Self::with(None)
    }

    fn with(source: Option<Box<dyn EventSource>>) -> Self {
        Self(Arc::new(Open(Arc::new(Waiters {
            events: Mutex::default(),
            stirred: Notify::new(),
            is_closed: AtomicBool::new(false),
            parked: Mutex::new(source),
            next: AtomicU64::new(0),
        }))))
    }

    /// Joins the waiters of an event that the source must subscribe to. Waiters with an earlier `arrival` stand in front of
    /// this one; a waiter without an `arrival` stands last. `kind` decides which waiters one event can wake together.
    ///
    /// After this returns, no message is missed. If subscribing takes longer than `limit`, this returns anyway, and rings
    /// the seat once the subscription stands.
    ///
    /// # Errors
    /// The reason why the store refuses subscriptions, if it does.
    ///
    /// # Cancel safety
    /// Safe: dropping the future frees the seat.
    pub async fn join(
        &self,
        event: String,
        arrival: Option<u64>,
        kind: Kind,
        limit: Duration,
    ) -> Result<Seat> {
        let (seat, mut heard) = self.take_seat(event, arrival, kind, Subscription::New);
        let heard = timeout(limit, heard.wait_for(|heard| *heard)).await.is_ok();
        let mut events = self.0.0.events();
        if let Some(refusal) = &events.refusal {
            let error = refusal.error();
            drop(events);
            return Err(error);
        }
        if let (false, Some(event)) = (heard, events.open.get_mut(&seat.event)) {
            event.is_missed = true;
        }
        Ok(seat)
    }

    /// Joins the waiters of an event that needs no subscription of its own. One event must not have both seats that need a
    /// subscription and seats that need none.
    pub fn sit(&self, event: String, arrival: Option<u64>, kind: Kind) -> Seat {
        self.take_seat(event, arrival, kind, Subscription::Never).0
    }

    /// Wakes those who wait for an event.
    pub fn wake(&self, event: &str, wake: Wake) {
        self.0.0.wake(event, wake);
    }

    fn take_seat(
        &self,
        event: String,
        arrival: Option<u64>,
        kind: Kind,
        needs: Subscription,
    ) -> (Seat, watch::Receiver<bool>) {
        self.0.start();
        let waiters = &self.0.0;
        let number = waiters.next.fetch_add(1, Relaxed);
        let rank = (arrival.unwrap_or(u64::MAX), number);
        let bell = Arc::new(Bell { kind, is_rung: AtomicBool::new(false), notify: Notify::new() });
        let mut events = waiters.events();
        let Events { open, come, gone, .. } = &mut *events;
        let mut is_new = false;
        let entry = open.entry(event.clone()).or_insert_with(|| {
            let mut needs = needs;
            if needs == Subscription::New {
                is_new = true;
                // The event must be subscribed to once more: otherwise nobody would learn that the subscription stands.
                if gone.remove(&event) {
                    needs = Subscription::Told;
                }
                come.insert(event.clone());
            }
            Event { seats: BTreeMap::new(), needs, heard: watch::Sender::new(false), is_missed: false }
        });
        entry.seats.insert(rank, Arc::clone(&bell));
        let heard = entry.heard.subscribe();
        drop(events);
        if is_new {
            waiters.stirred.notify_one();
        }
        (Seat { open: Arc::clone(&self.0), event, rank, bell }, heard)
    }
}

impl Open {
    /// Starts the source on this runtime, unless it runs already.
    #[expect(clippy::disallowed_methods, reason = "the client's one hint pump; it ends with the claims' end")]
    fn start(&self) {
        if let Some(running) = Running::take(&self.0) {
            tokio::spawn(running.listen());
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Relaxed);
        self.0.stirred.notify_one();
    }
}

impl Seat {
    /// Ends when the seat is rung: its waiter should ask the store again.
    ///
    /// # Cancel safety
    /// Safe: a wake-up stays until it is [cleared](Self::clear).
    pub async fn rung(&self) {
        self.open.start();
        while !self.bell.is_rung.load(Relaxed) {
            self.bell.notify.notified().await;
        }
    }

    /// Returns `true` if the subscription of the seat's event stands, nothing was missed, and the seat was not rung since
    /// it was last [cleared](Self::clear). A waiter that asked the store after that subscription stood then need not ask
    /// again.
    pub fn is_quiet(&self) -> bool {
        let events = self.open.0.events();
        let stands = |event: &Event| *event.heard.borrow() && !event.is_missed;
        events.refusal.is_none()
            && events.open.get(&self.event).is_some_and(stands)
            && !self.bell.is_rung.load(Relaxed)
    }

    /// Returns `true` if no waiter of the same kind stands in front of this one. The waiters behind may leave it to this one
    /// to ask the store now and then.
    pub fn is_first_of_its_kind(&self) -> bool {
        let events = self.open.0.events();
        let mut seats = events.open.get(&self.event).into_iter().flat_map(|event| &event.seats);
        let first = seats.find(|(_, bell)| bell.kind == self.bell.kind);
        first.is_some_and(|(rank, _)| *rank == self.rank)
    }

    /// Forgets earlier wake-ups. To be called before the waiter asks the store: that request sees whatever the seat was
    /// rung for.
    pub fn clear(&self) {
        self.bell.is_rung.store(false, Relaxed);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let waiters = &self.open.0;
        let mut events = waiters.events();
        let Events { open, come, gone, .. } = &mut *events;
        let Some(event) = open.get_mut(&self.event) else { return };
        event.seats.remove(&self.rank);
        if !event.seats.is_empty() {
            if self.bell.is_rung.load(Relaxed) {
                // Its wake-up may have been meant for several waiters, as when a writer frees the lock for a row of
                // readers.
                event.wake(Wake::Sharers);
            }
            return;
        }
        let needs = event.needs;
        open.remove(&self.event);
        come.remove(&self.event);
        if needs == Subscription::Told {
            gone.insert(std::mem::take(&mut self.event));
            drop(events);
            waiters.stirred.notify_one();
        }
    }
}

impl Event {
    fn wake(&self, wake: Wake) {
        let mut seats = self.seats.values();
        let Some(first) = seats.next() else { return };
        first.ring();
        match wake {
            Wake::One => {}
            Wake::Sharers => {
                seats.take_while(|bell| first.kind.shares_with(bell.kind)).for_each(|bell| bell.ring());
            }
            Wake::All => seats.for_each(|bell| bell.ring()),
        }
    }

    fn mark_missed(&mut self) {
        self.heard.send_replace(false);
        self.is_missed = true;
    }
}

impl Bell {
    fn ring(&self) {
        self.is_rung.store(true, Relaxed);
        self.notify.notify_one();
    }
}

impl Waiters {
    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parked(&self) -> MutexGuard<'_, Option<Box<dyn EventSource>>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, event: &str, wake: Wake) {
        if let Some(event) = self.events().open.get(event) {
            event.wake(wake);
        }
    }
}

impl fmt::Debug for Seats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seats(of {} events)", self.0.0.events().open.len())
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Seat").field(&self.event).finish()
    }
}
