//! The tools of one case. They connect clients, bound every wait, and finally check that the store
//! is empty.

mod connect;
mod faults;

use std::{fmt, panic::Location, pin::pin, sync::Arc, time::Duration};

use dlock_core::{ClaimId, DistributedLock, Guard, Kind, LockOptions, LockState, Locks};
use parking_lot::Mutex;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    Clock, Fixture, Proxy, Row,
    steps::Steps,
    wrap::{Habit, Switch},
};

pub(crate) use faults::Faults;

/// Time allowed for one reply or wake-up on a busy machine. Below a third of every
/// [`Arena::long_ttl`], so that a heartbeat or an expiry cannot stand in for the wake-up.
const RESPONSE_ALLOWANCE: Duration = Duration::from_secs(8);

/// The tools of one running case. Every case has its own arena.
///
/// An arena connects clients to the [fixture](Fixture)'s store, takes locks whose names no other
/// case uses, and bounds every wait, so that a case that hangs fails and reports the step in which
/// it hangs. When the case has ended, the suite closes all clients of the arena and checks that the
/// store has no claim of the case left.
///
/// Most methods that wait take a text. It is the message of the panic that fails the case, so it
/// says what is wrong: `a free lock was not granted`.
pub struct Arena {
    fixture: Arc<dyn Fixture>,
    row: Row,
    kind: Kind,
    name: String,
    steps: Steps,
    resources: Mutex<Resources>,
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fixture, row, kind, name, .. } = self;
        write!(f, "Arena({} {row} {kind} {name})", fixture.name())
    }
}

#[derive(Default)]
struct Resources {
    /// Clients, each with its switch if it has one.
    clients: Vec<(Locks, Option<Switch>)>,
    proxies: Vec<Arc<Proxy>>,
    /// Whether the case leaves a hold until its time ends, see [`Arena::leaves_to_its_end`].
    leaves_to_its_end: bool,
}

impl Arena {
    pub(crate) fn new(fixture: Arc<dyn Fixture>, row: Row, kind: Kind, steps: Steps) -> Self {
        Self {
            fixture,
            row,
            kind,
            name: format!("case-{}", ClaimId::random()),
            steps,
            resources: Mutex::default(),
        }
    }

    /// Runs `future` as a named step. If the case does not end, its message names this step.
    #[track_caller]
    fn step<T>(&self, description: String, future: impl Future<Output = T>) -> impl Future<Output = T> {
        let at = Location::caller();
        async move {
            let _step = self.steps.begin(&description, at);
            future.await
        }
    }

    /// Returns the kind of lock for which the case runs. Cases for several kinds run once for each.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the name of the case's lock. No other case uses it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns another name that no other case uses. The same suffix returns the same name.
    pub fn name_with(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.name)
    }

    /// Returns the lock with this arena's [`name`](Self::name) and [`kind`](Self::kind), as
    /// `client` sees it.
    pub fn lock(&self, client: &Locks) -> Arc<dyn DistributedLock> {
        client.of(self.kind, &self.name)
    }

    /// Takes the lock, which must be free or be released at once. Fails the case with `failure` if
    /// the lock is not granted [`soon`](Self::soon).
    #[track_caller]
    pub fn take_soon(&self, failure: &str, client: &Locks) -> impl Future<Output = Guard> {
        self.soon(failure, self.take(client, self.kind))
    }

    /// Tries the lock once. Returns whether it was busy.
    pub async fn is_busy(&self, client: &Locks) -> bool {
        self.try_take(client, self.kind).await.is_none()
    }

    /// Returns options with [`short_ttl`](Self::short_ttl), for a claim that is meant to expire.
    pub fn short(&self) -> LockOptions {
        LockOptions::new().ttl(self.short_ttl())
    }

    /// Takes the lock as `kind`. Waits without a limit.
    ///
    /// # Panics
    /// Fails the case if the acquisition returns an error.
    #[track_caller]
    pub fn take(&self, client: &Locks, kind: Kind) -> impl Future<Output = Guard> {
        self.step(format!("take the lock as {kind}"), async move {
            client
                .of(kind, &self.name)
                .lock(&self.options())
                .await
                .expect("an acquisition without a limit is granted")
        })
    }

    /// Tries the lock once as `kind`. Returns `None` if it is busy.
    ///
    /// # Panics
    /// Fails the case if the try returns an error.
    #[track_caller]
    pub fn try_take(&self, client: &Locks, kind: Kind) -> impl Future<Output = Option<Guard>> {
        self.step(format!("try the lock as {kind}"), async move {
            client.of(kind, &self.name).try_lock(&self.options()).await.expect("a busy lock is not an error")
        })
    }

    /// Returns the default options with [`ttl`](Self::ttl).
    pub fn options(&self) -> LockOptions {
        LockOptions::new().ttl(self.ttl())
    }

    /// Returns the usual ttl of a claim. Long enough that a busy machine renews it in time, see
    /// [`Fixture::ttl`].
    pub fn ttl(&self) -> Duration {
        self.fixture.ttl()
    }

    /// Returns the number of tasks of one client, see [`Fixture::tasks`].
    pub(crate) fn tasks(&self) -> usize {
        self.fixture.tasks()
    }

    /// Returns the number of names to use before memory is measured.
    pub(crate) fn warm_up(&self) -> usize {
        self.fixture.warm_up()
    }

    /// Returns the ttl of claims that are meant to expire during a case, see
    /// [`Fixture::short_ttl`].
    pub fn short_ttl(&self) -> Duration {
        self.fixture.short_ttl()
    }

    /// Returns the longest time for which the store may keep the claims of a client that was
    /// [killed](Switch::kill): the ttl of the claims, or the duration of the client's session if
    /// that is longer.
    pub fn forgotten_after(&self, client: &Locks, ttl: Duration) -> Duration {
        client.info().session.map_or(ttl, |session| session.max(ttl))
    }

    /// Returns a ttl for cases that last longer than it. Short, but long enough to be renewed in
    /// time on a busy machine, and when replies are lost.
    pub fn kept_ttl(&self) -> Duration {
        self.short_ttl().max(Duration::from_secs(5))
    }

    /// Returns a long ttl. Its end, and the heartbeat of a waiter with this ttl, are too late to be
    /// the cause of anything that happens [`soon`](Self::soon).
    pub fn long_ttl(&self, client: &Locks) -> Duration {
        (self.ttl() * 12).min(*client.info().ttl.end())
    }

    /// Awaits the effect of a reply or a wake-up. Fails the case with `failure` after eight
    /// seconds, which allows for a busy machine.
    #[track_caller]
    pub fn soon<T>(&self, failure: &str, future: impl Future<Output = T>) -> impl Future<Output = T> {
        self.within(Duration::ZERO, failure, future)
    }

    /// Awaits `future` for `limit` plus the allowance of [`soon`](Self::soon). Fails the case with
    /// `failure` after that.
    #[track_caller]
    pub fn within<T>(
        &self,
        limit: Duration,
        failure: &str,
        future: impl Future<Output = T>,
    ) -> impl Future<Output = T> {
        let limit = limit + RESPONSE_ALLOWANCE;
        self.step(format!("or else: {failure}"), async move {
            // Pinned in this scope, so that the step in which it hangs is still open when the
            // message is formatted.
            let future = pin!(future);
            match timeout(limit, future).await {
                Ok(output) => output,
                Err(_) => panic!("{failure} (after {limit:?}): {}", self.steps),
            }
        })
    }

    /// Returns the habit of the wrapper around every client of the case. `None` for the plain
    /// store, and for a composite store with one misbehaving member.
    pub fn habit(&self) -> Option<Habit> {
        match self.row {
            Row::Habit(habit) => Some(habit),
            Row::Plain | Row::Member(_) => None,
        }
    }

    /// Returns whether the case runs through a wrapper. Replies may then be slow or lost.
    pub fn is_disturbed(&self) -> bool {
        self.row != Row::Plain
    }

    /// Returns whether the store grants locks in the order of arrival on a busy machine.
    pub(crate) fn keeps_order(&self) -> bool {
        self.fixture.keeps_order()
    }

    /// Returns the number of bytes that this process has allocated.
    ///
    /// # Panics
    /// If the fixture does not count them. The case must declare that it needs the count.
    pub(crate) fn allocated(&self) -> usize {
        self.fixture.allocated().expect("the case needs a fixture that counts bytes")
    }

    /// Returns how time passes in the case. Exact durations can be checked on the paused clock
    /// only.
    pub fn clock(&self) -> Clock {
        self.fixture.clock()
    }

    /// Starts a contender as a task. A panic in it fails the case when the case awaits the handle.
    #[expect(clippy::disallowed_methods, reason = "contenders are tasks; the case awaits them")]
    pub fn go<T: Send + 'static>(
        &self,
        contender: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        tokio::spawn(contender)
    }

    /// Fails the case with `failure` if `contender` completes early. Polls it for 60 ms, or for
    /// half of the usual ttl on the paused clock. Await or drop `contender` afterwards.
    #[track_caller]
    pub fn still_waits<T>(
        &self,
        failure: &str,
        contender: &mut (impl Future<Output = T> + Unpin),
    ) -> impl Future<Output = ()> {
        let watch_time =
            if self.clock() == Clock::Paused { self.ttl() / 2 } else { Duration::from_millis(60) };
        self.step(format!("or else: {failure}"), async move {
            assert!(timeout(watch_time, contender).await.is_err(), "{failure}");
        })
    }

    /// Waits until `condition` is true. Checks it every 10 ms. Fails the case with `failure` after
    /// two ttls plus the allowance of [`soon`](Self::soon).
    #[track_caller]
    pub fn until(&self, failure: &str, mut condition: impl FnMut() -> bool) -> impl Future<Output = ()> {
        let polling = async move {
            while !condition() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        self.within(self.ttl() * 2, failure, polling)
    }

    /// Waits until the store reports that `count` claims hold [`name`](Self::name) or wait for it,
    /// so that a contender is known to have arrived.
    ///
    /// Returns early if the store keeps no queue for a mutex. Waits for 200 ms instead if the store
    /// cannot be inspected.
    ///
    /// # Panics
    /// If the store reports other numbers for about ten seconds.
    #[track_caller]
    pub fn until_contenders(&self, client: &Locks, count: usize) -> impl Future<Output = ()> {
        let contenders = |state: &LockState| state.holders.len() + state.queue.len();
        self.step(format!("wait until the store reports {count} contenders"), async move {
            for round in 0..1000 {
                match client.inspect(&self.name).await {
                    Ok(state) if state.as_ref().map_or(0, contenders) == count => return,
                    // Only a mutex may have no queue.
                    Ok(Some(state)) if self.kind == Kind::Mutex && state.queue.is_empty() && round > 50 => {
                        return;
                    }
                    Ok(_) => sleep(Duration::from_millis(10)).await,
                    Err(_) => return sleep(Duration::from_millis(200)).await,
                }
            }
            panic!("the store never reported {count} contenders: {:?}", client.inspect(&self.name).await);
        })
    }

    /// Declares that the case leaves a hold until its time ends. The members of a composite store
    /// may end it at different times. The lock is free when a majority of them has ended the hold,
    /// and the other members may keep their parts a little longer.
    pub(crate) fn leaves_to_its_end(&self) {
        self.resources.lock().leaves_to_its_end = true;
    }

    /// Closes every client, waits until all claims have ended, and checks that the store is empty.
    pub(crate) async fn check_nothing_is_left(self) {
        let resources = std::mem::take(&mut *self.resources.lock());
        resources.clients.iter().filter_map(|(_, switch)| switch.as_ref()).for_each(Switch::connect);
        resources.proxies.iter().for_each(|proxy| proxy.pass());
        let close = async {
            for (client, switch) in &resources.clients {
                // A killed client closes nothing. The store must delete its claims by itself.
                if !switch.as_ref().is_some_and(Switch::is_killed) {
                    client.close().await;
                }
            }
        };
        self.step("close the clients after the case".to_owned(), close).await;
        // The closed clients may have no connection any more, so a new client inspects the store.
        let remaining = || async {
            let store = self.fixture.connect().await.expect("another client can connect");
            let Some(inspect) = store.inspect.clone() else { return Vec::new() };
            let states = inspect.list(&self.name).await;
            Locks::new(store).close().await;
            states.expect("the store can be inspected")
        };
        let inspect = || self.step("inspect the store after the case".to_owned(), remaining());
        let mut left = inspect().await;
        // The members of a composite delete the claims of a killed client one after the other, too.
        let was_killed =
            resources.clients.iter().any(|(_, switch)| switch.as_ref().is_some_and(Switch::is_killed));
        if (resources.leaves_to_its_end || was_killed) && !left.is_empty() {
            let contenders = left.iter().flat_map(|state| state.holders.iter().chain(&state.queue));
            let longest = contenders.filter_map(|contender| contender.ttl_left).max().unwrap_or_default();
            sleep(longest.min(self.ttl() / 4)).await;
            left = inspect().await;
        }
        assert_eq!(left, [], "the case left claims in the store");
    }
}
