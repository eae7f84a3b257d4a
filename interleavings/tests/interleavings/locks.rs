//! Locks of two clients on one store in memory: the engine's holds, keepers and tickets.

use std::time::Duration;

use dlock_interleavings::{
    Error, Guard, Kind, LockOptions, Locks, LostReason, Owner, RedLock,
    driver::Store,
    memory::MemoryBackend,
    runner::{Time, explore},
};
use shuttle::rand::{Rng as _, thread_rng};
use tokio::time::Instant;

use crate::{Claims, drop_after, finish, yield_randomly};

const NAME: &str = "x";

/// Longer than the time for which any case detaches a hold.
const HOUR: Duration = Duration::from_secs(3600);

/// Two clients, and another one that inspects their store.
pub(crate) struct Clients {
    pub(crate) clients: [Locks; 2],
    pub(crate) observer: Locks,
}

impl Clients {
    /// Clients of one store.
    pub(crate) fn new() -> Self {
        let store = MemoryBackend::new();
        Self::connected(|| store.clone().into_store())
    }

    /// Clients of a majority of three stores.
    fn of_majority() -> Self {
        let members = [(); 3].map(|()| MemoryBackend::new());
        let stores = || members.clone().map(MemoryBackend::into_store);
        Self::connected(|| RedLock::new(stores()).expect("three different stores").into_store())
    }

    fn connected(store: impl Fn() -> Store) -> Self {
        let connect = || Locks::new(store());
        Self { clients: [connect(), connect()], observer: connect() }
    }

    /// Closes the clients, and checks that the store is empty.
    pub(crate) async fn close(self) {
        for client in &self.clients {
            client.close().await;
        }
        let left = self.observer.list("").await.expect("the store replies");
        assert!(left.is_empty(), "claims are left: {left:?}");
        self.observer.close().await;
    }

    /// Checks that the lock is free without a wait for any timer, if time passes only while all
    /// threads wait.
    async fn check_free(&self) {
        let started = Instant::now();
        let guard = self.clients[0].mutex(NAME).lock().await.expect("the store replies");
        assert_eq!(started.elapsed(), Duration::ZERO, "the lock was still taken");
        guard.release().await.expect("the guard is held");
    }
}

/// Holds a guard for several steps, and then releases or drops it. Records for how long it was held.
pub(crate) async fn use_guard(guard: Guard, holder: usize, claims: &Claims) {
    let from = claims.order.next();
    for _ in 0..3 {
        yield_randomly(3).await;
        let now = claims.order.next();
        if guard.is_lost() {
            return;
        }
        claims.record(holder, from, now);
    }
    if thread_rng().gen_bool(0.5) {
        let now = claims.order.next();
        match guard.release().await {
            Ok(()) => claims.record(holder, from, now),
            Err(error) => assert!(matches!(error, Error::Lost { .. }) || error.is_transient(), "{error}"),
        }
    }
}

/// Acquires the lock twice, or drops the acquisition.
async fn contend(locks: Locks, holder: usize, kind: Kind, claims: Claims) {
    let (lock, options) = (locks.of(kind, NAME), LockOptions::new());
    for _ in 0..2 {
        let acquisition = lock.lock(&options);
        let is_dropped = thread_rng().gen_bool(0.3);
        let guard = if is_dropped { drop_after(12, acquisition).await } else { Some(acquisition.await) };
        match guard {
            Some(Ok(guard)) => use_guard(guard, holder, &claims).await,
            // The replies arrived after the deadline.
            Some(Err(error)) => assert!(error.is_transient(), "{error}"),
            None => {}
        }
    }
}

/// Readers hold a lock together, so they count as one holder.
const READERS: usize = usize::MAX;

/// Tasks of two clients acquire one lock, each with one of these kinds.
async fn contest(clients: Clients, kinds: [Kind; 4]) {
    let claims = Claims::default();
    let tasks: Vec<_> = kinds
        .into_iter()
        .enumerate()
        .map(|(number, kind)| {
            let holder = if kind == Kind::Read { READERS } else { number };
            tokio::spawn(contend(clients.clients[number % 2].clone(), holder, kind, claims.clone()))
        })
        .collect();
    finish(tasks).await;
    claims.check();
    clients.close().await;
}

pub(crate) async fn mutexes() {
    contest(Clients::new(), [Kind::Mutex, Kind::Fair, Kind::Fair, Kind::Mutex]).await;
}

pub(crate) async fn readers_and_writers() {
    contest(Clients::new(), [Kind::Read, Kind::Write, Kind::Read, Kind::Write]).await;
}

pub(crate) async fn majority() {
    contest(Clients::of_majority(), [Kind::Mutex; 4]).await;
}

#[test]
fn two_guards_are_never_held_at_the_same_time() {
    explore(Time::WhenIdle, mutexes);
    explore(Time::WhenIdle, readers_and_writers);
}

#[test]
fn two_guards_are_never_held_at_the_same_time_whenever_deadlines_pass() {
    explore(Time::Anytime, mutexes);
    explore(Time::Anytime, readers_and_writers);
}

#[test]
fn two_guards_of_a_majority_are_never_held_at_the_same_time() {
    explore(Time::WhenIdle, majority);
    explore(Time::Anytime, majority);
}

/// A waiter gets the lock from a guard that is released or dropped at any step.
pub(crate) async fn handoff() {
    let clients = Clients::new();
    let guard = clients.clients[0].mutex(NAME).lock().await.expect("the lock is free");
    let waiter = tokio::spawn({
        let lock = clients.clients[1].mutex(NAME);
        async move { lock.lock().await.map(|guard| (guard, Instant::now())) }
    });
    yield_randomly(30).await;
    let ended = Instant::now();
    if thread_rng().gen_bool(0.5) {
        guard.release().await.expect("the guard is held");
    } else {
        drop(guard);
    }
    let (guard, granted) = waiter.await.expect("no panic").expect("the store replies");
    assert_eq!(granted - ended, Duration::ZERO, "the waiter was not notified");
    guard.release().await.expect("the guard is held");
    clients.close().await;
}

#[test]
fn a_waiter_gets_the_lock_without_a_timer_after_every_release_and_drop() {
    explore(Time::WhenIdle, handoff);
}

/// Acquisitions are dropped at any step.
pub(crate) async fn dropped_acquisitions() {
    let clients = Clients::new();
    let tasks: Vec<_> = (0..3)
        .map(|number: usize| {
            let lock = clients.clients[number % 2].mutex(NAME);
            tokio::spawn(async move { drop(drop_after(10, lock.lock()).await) })
        })
        .collect();
    finish(tasks).await;
    clients.check_free().await;
    clients.close().await;
}

#[test]
fn acquisitions_that_are_dropped_at_any_step_leave_nothing_behind() {
    explore(Time::WhenIdle, dropped_acquisitions);
}

/// An owner enters its hold again while its last guard ends.
pub(crate) async fn reentry() {
    const OWNER: usize = 0;
    let (clients, claims, owner) = (Clients::new(), Claims::default(), Owner::new());
    let lock = clients.clients[0].mutex(NAME).owned_by(&owner);
    let first = lock.lock().await.expect("the lock is free");
    let first = tokio::spawn({
        let claims = claims.clone();
        async move { use_guard(first, OWNER, &claims).await }
    });
    let second = tokio::spawn({
        let claims = claims.clone();
        async move {
            yield_randomly(20).await;
            let guard = lock.lock().await.expect("the store replies");
            let from = claims.order.next();
            yield_randomly(10).await;
            let to = claims.order.next();
            guard.release().await.expect("the guard is held");
            claims.record(OWNER, from, to);
        }
    });
    let other = tokio::spawn(contend(clients.clients[1].clone(), 1, Kind::Mutex, claims.clone()));
    finish(vec![first, second, other]).await;
    claims.check();
    clients.close().await;
}

#[test]
fn an_owner_that_enters_while_its_last_guard_ends_holds_the_lock_alone() {
    explore(Time::WhenIdle, reentry);
}

/// Two tasks of one client take over one detached hold, and one of them may give up.
pub(crate) async fn takers() {
    let (clients, claims) = (Clients::new(), Claims::default());
    let guard = clients.clients[0].mutex(NAME).lock().await.expect("the lock is free");
    let ticket = guard.detach(HOUR).await.expect("the guard is held");
    let started = Instant::now();
    let tasks: Vec<_> = (0..2)
        .map(|holder| {
            let (locks, ticket, claims) = (clients.clients[1].clone(), ticket.clone(), claims.clone());
            tokio::spawn(async move {
                let resumption = locks.resume(&ticket);
                let guard =
                    if holder == 0 { drop_after(20, resumption).await } else { Some(resumption.await) };
                match guard {
                    Some(Ok(guard)) => use_guard(guard, holder, &claims).await,
                    Some(Err(error)) => assert!(matches!(error, Error::Lost { .. }), "{error}"),
                    None => {}
                }
            })
        })
        .collect();
    finish(tasks).await;
    assert_eq!(started.elapsed(), Duration::ZERO, "a taker was not notified");
    claims.check();
    clients.check_free().await;
    clients.close().await;
}

#[test]
fn of_two_takers_of_a_ticket_one_holds_at_a_time() {
    explore(Time::WhenIdle, takers);
}

/// A lock is released by force while its guard is queried, detached or released.
pub(crate) async fn broken() {
    let clients = Clients::new();
    let guard = clients.clients[0].mutex(NAME).lock().await.expect("the lock is free");
    let force = tokio::spawn({
        let observer = clients.observer.clone();
        async move { observer.force_release(NAME).await.expect("the store replies") }
    });
    // The signal is created before, during or after the loss.
    yield_randomly(20).await;
    let signal = guard.lost_signal();
    let observed = tokio::spawn(async move { signal.lost().await });
    let reason: LostReason = guard.lost().await;
    assert_eq!(guard.lost().await, reason, "the reason has changed");
    observed.await.expect("no panic");
    match guard.release().await {
        Err(Error::Lost { reason: reported, .. }) => assert_eq!(reported, reason, "the reason has changed"),
        other => panic!("a lost guard was released: {other:?}"),
    }
    force.await.expect("no panic");
    clients.close().await;
}

#[test]
fn the_reason_of_a_loss_never_changes() {
    explore(Time::Anytime, broken);
}
