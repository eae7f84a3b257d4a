//! What a case works with: clients, a lock name of its own, and the check that nothing is left behind.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use dlock_core::{ClaimId, DistributedLock, Guard, Kind, LockOptions, Locks, Store};

use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    Clock, Fixture,
    wrap::{Habit, Switch},
};

/// What a busy machine may need for one answer or wake-up. Below a third of any [`Arena::long_ttl`].
const MOMENT: Duration = Duration::from_secs(5);

/// What a case works with. Every case has its own.
pub struct Arena {
    fixture: Arc<dyn Fixture>,
    habit: Option<Habit>,
    kind: Kind,
    name: String,
    used: Mutex<Used>,
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fixture, habit, kind, name, .. } = self;
        write!(f, "Arena({} {habit:?} {kind} {name})", fixture.name())
    }
}

#[derive(Default)]
struct Used {
    clients: Vec<Locks>,
    switches: Vec<Switch>,
}

impl Arena {
    pub(crate) fn new(fixture: Arc<dyn Fixture>, habit: Option<Habit>, kind: Kind) -> Self {
        Self { fixture, habit, kind, name: format!("case-{}", ClaimId::random()), used: Mutex::default() }
    }

    /// A new client, as from another process, whose default ttl is [`ttl`](Self::ttl).
    pub async fn client(&self) -> Locks {
        let store = self.connect().await;
        self.locks(store)
    }

    /// A new client that can be cut off from its store.
    pub async fn client_with_switch(&self) -> (Locks, Switch) {
        let switch = Switch::default();
        let store = self.connect().await;
        self.used().switches.push(switch.clone());
        (self.locks(switch.wrap(store)), switch)
    }

    async fn connect(&self) -> Store {
        let store = self.fixture.connect().await.expect("the store of the fixture must be reachable");
        match self.habit {
            Some(habit) => habit.wrap(store),
            None => store,
        }
    }

    fn locks(&self, store: Store) -> Locks {
        let locks = Locks::new(store).with_defaults(self.options());
        self.used().clients.push(locks.clone());
        locks
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
        client.lock(self.kind, &self.name)
    }

    /// Takes the lock, which must be free or become so at once: fails with `what` where it does not.
    pub async fn take_soon(&self, what: &str, client: &Locks) -> Guard {
        self.soon(what, self.take(client, self.kind)).await
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
    pub async fn take(&self, client: &Locks, kind: Kind) -> Guard {
        client.lock(kind, &self.name).lock(&self.options()).await.expect("granted in the end")
    }

    /// Tries the lock once as `kind`.
    pub async fn try_take(&self, client: &Locks, kind: Kind) -> Option<Guard> {
        client.lock(kind, &self.name).try_lock(&self.options()).await.expect("busy is no error")
    }

    /// The defaults, with a ttl that suits the store: long enough not to be lost on a busy machine.
    pub fn options(&self) -> LockOptions {
        LockOptions::new().ttl(self.ttl())
    }

    /// Long enough not to be lost on a busy machine.
    pub fn ttl(&self) -> Duration {
        self.fixture.ttl()
    }

    /// For cases that wait for a ttl to end.
    pub fn short_ttl(&self) -> Duration {
        self.fixture.short_ttl()
    }

    /// For cases that outlive a ttl: short, but renewed in time on a busy machine too.
    pub fn kept_ttl(&self) -> Duration {
        self.short_ttl().max(Duration::from_secs(2))
    }

    /// A ttl so long that what happens [`soon`](Self::soon) owes nothing to its end, nor to a waiter's heartbeat.
    pub fn long_ttl(&self, client: &Locks) -> Duration {
        (self.ttl() * 12).min(*client.info().ttl.end())
    }

    /// Awaits what a wake-up or an answer must end.
    pub async fn soon<T>(&self, what: &str, wait: impl Future<Output = T>) -> T {
        self.within(Duration::ZERO, what, wait).await
    }

    /// Awaits what must end within `limit`, and a moment because machines are busy.
    pub async fn within<T>(&self, limit: Duration, what: &str, wait: impl Future<Output = T>) -> T {
        timeout(limit + MOMENT, wait).await.unwrap_or_else(|_| panic!("{what}"))
    }

    /// The wrapper that the case runs through.
    pub fn habit(&self) -> Option<Habit> {
        self.habit
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

    /// Watches for a while that `contender` does not finish. It must be awaited on afterwards or dropped.
    pub async fn still_waits<T>(&self, what: &str, contender: &mut (impl Future<Output = T> + Unpin)) {
        let watch = if self.clock() == Clock::Paused { self.ttl() / 2 } else { Duration::from_millis(60) };
        assert!(timeout(watch, contender).await.is_err(), "{what}");
    }

    /// Waits until `yes`; fails with `what` if that takes longer than a ttl and what is ample beside it.
    pub async fn until(&self, what: &str, mut yes: impl FnMut() -> bool) {
        let asking = async {
            while !yes() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(self.ttl() * 2, asking).await.unwrap_or_else(|_| panic!("{what}"));
    }

    /// Waits until the store shows that `count` claims hold or wait for [`name`](Self::name): the way to know that a
    /// contender has arrived. A store that cannot be inspected, or keeps no queue for this kind, is given a moment.
    pub async fn until_contenders(&self, client: &Locks, count: usize) {
        for round in 0..1000 {
            match client.inspect(&self.name).await {
                Ok(state) if state.as_ref().map_or(0, |s| s.holders.len() + s.queue.len()) == count => return,
                // Only a mutex may be without a queue.
                Ok(Some(state)) if self.kind == Kind::Mutex && state.queue.is_empty() && round > 50 => return,
                Ok(_) => sleep(Duration::from_millis(10)).await,
                Err(_) => return sleep(Duration::from_millis(200)).await,
            }
        }
        panic!("the store never showed {count} contenders: {:?}", client.inspect(&self.name).await);
    }

    /// Waits until every claim of every client has left, and finds the store empty.
    pub(crate) async fn check_nothing_is_left(self) {
        let used = std::mem::take(&mut *self.used());
        used.switches.iter().for_each(Switch::connect);
        for client in &used.clients {
            client.close().await;
        }
        let left = match used.clients.first() {
            Some(client) if client.inspect(&self.name).await.is_ok() => client.list(&self.name).await,
            _ => return,
        };
        assert_eq!(left.expect("listing works where inspecting does"), [], "left behind in the store");
    }
}
