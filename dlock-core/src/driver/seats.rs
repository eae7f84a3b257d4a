//! Seats: who waits for which event, and whom it wakes. Over the usual length: one data structure and its rules.
//!
//! All waiters of a client that wait for one event, such as a message of a channel, share one subscription. An event wakes the
//! first, or as many as can hold at once. When the one that was woken goes away before it has asked, the next is woken. Nothing
//! is kept of an event that nobody waits for.

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

/// The waiters of one client. Clones are the same.
///
/// A claim sits down, asks once more, and then waits for its seat to be [`rung`](Seat::rung). A [`EventSource`] turns what the store
/// tells into [`Listener::wake`].
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

/// The claims' end. When it is dropped, the source ends.
struct Open(Arc<Waiters>);

/// What the claims' end and the source's end share.
struct Waiters {
    events: Mutex<Events>,
    /// For the source: subscriptions have come or gone, or the claims' end has.
    stirred: Notify,
    is_closed: AtomicBool,
    /// The source, while nobody listens to it.
    parked: Mutex<Option<Box<dyn EventSource>>>,
    next: AtomicU64,
}

#[derive(Default)]
struct Events {
    /// Those that somebody waits for.
    open: HashMap<String, Event>,
    /// Those of `open` that the source is to subscribe to.
    come: HashSet<String>,
    /// Those that nobody waits for and that the source may have subscribed to.
    gone: HashSet<String>,
    /// Why the store lets nobody subscribe.
    refusal: Option<Retold>,
}

struct Event {
    /// In the order in which they are woken.
    seats: BTreeMap<Rank, Arc<Bell>>,
    needs: Subscription,
    /// Whether messages come.
    heard: watch::Sender<bool>,
    /// Whether those who sit here may have missed one.
    is_missed: bool,
}

/// What an event needs of the source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subscription {
    /// None: other events of the source, or of the client itself, wake its seats.
    Never,
    /// One, which the source does not know of yet.
    New,
    /// One, which the source was told to make.
    Told,
}

/// The place of a waiter among those of its event: by arrival, and those without one behind all others.
type Rank = (u64, u64);

struct Bell {
    kind: Kind,
    /// Woken, and has not asked since.
    is_rung: AtomicBool,
    notify: Notify,
}

/// Whom an event wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The first.
    One,
    /// The first, and those behind it up to the first that cannot hold beside it: a row of readers.
    Sharers,
    /// All.
    All,
}

/// A waiter's seat. Dropped, it is free, and a wake-up that it did not use goes to the next.
///
/// Two claims may sit under the same id, as during a downgrade: each has a seat of its own.
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

    /// Takes a seat among those who wait for an event that the source must subscribe to, behind those whose `arrival` is
    /// earlier; without one, behind all. `kind` tells who can hold beside whom.
    ///
    /// After this has returned no message is missed. If subscribing takes longer than `limit`, this returns all the same, and
    /// the seat is rung once the subscription stands.
    ///
    /// # Errors
    /// Why the store refuses subscriptions.
    ///
    /// # Cancel safety
    /// Safe: the seat is free again.
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

    /// Takes a seat among those who wait for an event that needs no subscription of its own. No other seat of that event may need
    /// one.
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
                // Subscribed to once more, or nobody would learn that the subscription stands.
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
    /// Has the source listened to, unless it is.
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
    /// Ends when there is reason to ask.
    ///
    /// # Cancel safety
    /// Safe: a wake-up stays until it is [cleared](Self::clear).
    pub async fn rung(&self) {
        self.open.start();
        while !self.bell.is_rung.load(Relaxed) {
            self.bell.notify.notified().await;
        }
    }

    /// Says that its waiter asks the store now: that sees whatever the seat was rung for.
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
                // What it was woken for may have been for all behind it: a writer that leaves a row of readers.
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
