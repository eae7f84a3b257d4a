//! What a case works with: clients, a lock name of its own, and the check that nothing is left behind.
//! A few lines over the usual length: all that a case may ask of it.

mod connect;
mod line;

use std::{
    fmt,
    panic::Location,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use dlock_core::{ClaimId, DistributedLock, Guard, Kind, LockOptions, Locks};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    Clock, Fixture, Proxy, Row,
    steps::Steps,
    wrap::{Habit, Switch},
};

pub(crate) use line::Line;

/// What a busy machine may need for one answer or wake-up. Below a third of any [`Arena::long_ttl`].
const MOMENT: Duration = Duration::from_secs(8);

/// What a case works with. Every case has its own.
pub struct Arena {
    fixture: Arc<dyn Fixture>,
    row: Row,
    kind: Kind,
    name: String,
    steps: Steps,
    used: Mutex<Used>,
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fixture, row, kind, name, .. } = self;
        write!(f, "Arena({} {row} {kind} {name})", fixture.name())
    }
}

#[derive(Default)]
struct Used {
    /// The clients, each with its switch if it has one.
    clients: Vec<(Locks, Option<Switch>)>,
    proxies: Vec<Arc<Proxy>>,
    /// Whether the case leaves a hold to its end: see [`Arena::leaves_to_its_end`].
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
            used: Mutex::default(),
        }
    }

    /// Names a step of the case. If the case does not end, its message says that it waits in this step.
    #[track_caller]
    fn step<T>(&self, what: String, wait: impl Future<Output = T>) -> impl Future<Output = T> {
        let at = Location::caller();
        async move {
            let _step = self.steps.begin(&what, at);
            wait.await
        }
    }

    fn used(&self) -> std::sync::MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kind that a case is run for, where it is run for several.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// A lock name that nobody else uses.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Another name of this case's own; the same suffix is the same name.
    pub fn name_with(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.name)
    }

    /// The lock of [`kind`](Self::kind) and [`name`](Self::name), of one client.
    pub fn lock(&self, client: &Locks) -> Arc<dyn DistributedLock> {
        client.of(self.kind, &self.name)
    }

    /// Takes the lock, which must be free or become free at once. Otherwise the case fails with `what`.
    #[track_caller]
    pub fn take_soon(&self, what: &str, client: &Locks) -> impl Future<Output = Guard> {
        self.soon(what, self.take(client, self.kind))
    }

    /// Whether one try of the lock is refused.
    pub async fn is_busy(&self, client: &Locks) -> bool {
        self.try_take(client, self.kind).await.is_none()
    }

    /// The options of a claim that is to die.
    pub fn short(&self) -> LockOptions {
        LockOptions::new().ttl(self.short_ttl())
    }

    /// Takes the lock as `kind`, however long it takes.
    #[track_caller]
    pub fn take(&self, client: &Locks, kind: Kind) -> impl Future<Output = Guard> {
        self.step(format!("take the lock as {kind}"), async move {
            client.of(kind, &self.name).lock(&self.options()).await.expect("granted in the end")
        })
    }

    /// Tries the lock once as `kind`.
    #[track_caller]
    pub fn try_take(&self, client: &Locks, kind: Kind) -> impl Future<Output = Option<Guard>> {
        self.step(format!("try the lock as {kind}"), async move {
            client.of(kind, &self.name).try_lock(&self.options()).await.expect("busy is no error")
        })
    }

    /// The defaults, with a ttl that suits the store: long enough not to be lost on a busy machine.
    pub fn options(&self) -> LockOptions {
        LockOptions::new().ttl(self.ttl())
    }

    /// Long enough not to be lost on a busy machine.
    pub fn ttl(&self) -> Duration {
        self.fixture.ttl()
    }

    /// How many names to use before memory is measured.
    pub(crate) fn warm_up(&self) -> usize {
        self.fixture.warm_up()
    }

    /// For cases that wait for a ttl to end.
    pub fn short_ttl(&self) -> Duration {
        self.fixture.short_ttl()
    }

    /// How long the store may keep the claims of a client that is [killed](Switch::kill): their ttl, or the client's session.
    pub fn forgotten_after(&self, client: &Locks, ttl: Duration) -> Duration {
        client.info().session.map_or(ttl, |session| session.max(ttl))
    }

    /// For cases that outlive a ttl: short, but renewed in time on a busy machine too, also where answers get lost.
    pub fn kept_ttl(&self) -> Duration {
        self.short_ttl().max(Duration::from_secs(5))
    }

    /// A ttl so long that neither its end nor a waiter's heartbeat can be the cause of what happens [`soon`](Self::soon).
    pub fn long_ttl(&self, client: &Locks) -> Duration {
        (self.ttl() * 12).min(*client.info().ttl.end())
    }

    /// Awaits what a wake-up or an answer must end.
    #[track_caller]
    pub fn soon<T>(&self, what: &str, wait: impl Future<Output = T>) -> impl Future<Output = T> {
        self.within(Duration::ZERO, what, wait)
    }

    /// Awaits what must end within `limit`, and a moment because machines are busy.
    #[track_caller]
    pub fn within<T>(
        &self,
        limit: Duration,
        what: &str,
        wait: impl Future<Output = T>,
    ) -> impl Future<Output = T> {
        let limit = limit + MOMENT;
        self.step(format!("or else: {what}"), async move {
            // Pinned here, so that the step it waits in has not ended yet when the message is made.
            let wait = pin!(wait);
            match timeout(limit, wait).await {
                Ok(done) => done,
                Err(_) => panic!("{what} (after {limit:?}): {}", self.steps),
            }
        })
    }

    /// The wrapper that every client of the case is in.
    pub fn habit(&self) -> Option<Habit> {
        match self.row {
            Row::Habit(habit) => Some(habit),
            Row::Plain | Row::Member(_) => None,
        }
    }

    /// Whether the case runs through a wrapper, so that answers may be slow or lost.
    pub fn is_disturbed(&self) -> bool {
        self.row != Row::Plain
    }

    /// How many bytes this process has allocated.
    ///
    /// # Panics
    /// Where the fixture does not count them: only for cases that need it.
    pub(crate) fn allocated(&self) -> usize {
        self.fixture.allocated().expect("the case is for fixtures that count")
    }

    /// Whether a wait can be timed exactly.
    pub fn clock(&self) -> Clock {
        self.fixture.clock()
    }

    /// Starts a contender as a task of its own; a panic in it fails the case that awaits it.
    #[expect(clippy::disallowed_methods, reason = "contenders are tasks; the case awaits them")]
    pub fn go<T: Send + 'static>(
        &self,
        contender: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        tokio::spawn(contender)
    }

    /// Fails with `what` if `contender` finishes within a while. Await or drop `contender` afterwards.
    #[track_caller]
    pub fn still_waits<T>(
        &self,
        what: &str,
        contender: &mut (impl Future<Output = T> + Unpin),
    ) -> impl Future<Output = ()> {
        let watch = if self.clock() == Clock::Paused { self.ttl() / 2 } else { Duration::from_millis(60) };
        self.step(format!("or else: {what}"), async move {
            assert!(timeout(watch, contender).await.is_err(), "{what}");
        })
    }

    /// Waits until `yes`. Fails with `what` if that takes longer than a ttl and an ample margin.
    #[track_caller]
    pub fn until(&self, what: &str, mut yes: impl FnMut() -> bool) -> impl Future<Output = ()> {
        let asking = async move {
            while !yes() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        self.within(self.ttl() * 2, what, asking)
    }

    /// Waits until the store shows that `count` claims hold or wait for [`name`](Self::name), so that a contender is known
    /// to have arrived. If the store cannot be inspected, or keeps no queue for this kind, waits for a moment instead.
    #[track_caller]
    pub fn until_contenders(&self, client: &Locks, count: usize) -> impl Future<Output = ()> {
        self.step(format!("wait until the store shows {count} contenders"), async move {
            for round in 0..1000 {
                match client.inspect(&self.name).await {
                    Ok(state) if state.as_ref().map_or(0, |s| s.holders.len() + s.queue.len()) == count => {
                        return;
                    }
                    // Only a mutex may be without a queue.
                    Ok(Some(state)) if self.kind == Kind::Mutex && state.queue.is_empty() && round > 50 => {
                        return;
                    }
                    Ok(_) => sleep(Duration::from_millis(10)).await,
                    Err(_) => return sleep(Duration::from_millis(200)).await,
                }
            }
            panic!("the store never showed {count} contenders: {:?}", client.inspect(&self.name).await);
        })
    }

    /// The case leaves a hold until its time is over. The members of a composite need not end it at one moment: the lock is free
    /// when a majority has, and the others may keep their parts for a little longer.
    pub(crate) fn leaves_to_its_end(&self) {
        self.used().leaves_to_its_end = true;
    }

    /// Waits until every claim of every client has left, and finds the store empty.
    pub(crate) async fn check_nothing_is_left(self) {
        let used = std::mem::take(&mut *self.used());
        used.clients.iter().filter_map(|(_, switch)| switch.as_ref()).for_each(Switch::connect);
        used.proxies.iter().for_each(|proxy| proxy.pass());
        let close = async {
            for (client, switch) in &used.clients {
                // A client that was killed closes nothing. The store must forget its claims.
                if !switch.as_ref().is_some_and(Switch::is_killed) {
                    client.close().await;
                }
            }
        };
        self.step("close the clients after the case".to_owned(), close).await;
        // Those that are closed may have no connection any more.
        let left = || async {
            let store = self.fixture.connect().await.expect("one more client can connect");
            let Some(inspect) = store.inspect.clone() else { return Vec::new() };
            let left = inspect.list(&self.name).await;
            Locks::new(store).close().await;
            left.expect("the store can be asked")
        };
        let look = || self.step("look whether anything is left in the store".to_owned(), left());
        let mut left = look().await;
        if used.leaves_to_its_end && !left.is_empty() {
            let parts = left.iter().flat_map(|state| state.holders.iter().chain(&state.queue));
            let longest = parts.filter_map(|part| part.ttl_left).max().unwrap_or_default();
            sleep(longest.min(self.ttl() / 4)).await;
            left = look().await;
        }
        assert_eq!(left, [], "left behind in the store");
    }
}
