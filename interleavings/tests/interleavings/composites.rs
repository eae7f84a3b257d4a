//! Several locks as one, semaphores, downgrades, elections, `at_least`, and the end of a client.

use std::{sync::Arc, time::Duration};

use dlock_interleavings::{
    DistributedLock, DistributedLockExt as _, Error, Kind, LockOptions, Locks, MultiLock, Observed, Owner,
    runner::{Time, explore},
};
use shuttle::rand::{Rng as _, thread_rng};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::{
    Claims, drop_after, finish,
    locks::{Clients, use_guard},
    yield_randomly,
};

/// Acquires a lock, and holds it for several steps.
async fn take(lock: Arc<dyn DistributedLock>, holder: usize, claims: Claims) {
    let guard = lock.lock(&LockOptions::new()).await.expect("the store replies");
    use_guard(guard, holder, &claims).await;
}

/// Acquires several locks as one, or drops the acquisition, and holds them for several steps.
async fn contend_for_all(locks: Locks, names: [&'static str; 2], holder: usize, claims: [Claims; 2]) {
    let members = names.map(|name| locks.of(Kind::Mutex, name));
    let all = MultiLock::new(members).expect("two names");
    let is_dropped = thread_rng().gen_bool(0.2);
    let acquisition = all.lock_within(Duration::from_secs(3600));
    let guard = if is_dropped { drop_after(20, acquisition).await } else { Some(acquisition.await) };
    let Some(guard) = guard else { return };
    let guard = guard.expect("the store replies");
    let from = claims.each_ref().map(|claims| claims.order.next());
    yield_randomly(4).await;
    let to = claims.each_ref().map(|claims| claims.order.next());
    if !guard.is_lost() {
        for (at, claims) in claims.iter().enumerate() {
            claims.record(holder, from[at], to[at]);
        }
    }
    if thread_rng().gen_bool(0.5) {
        guard.release().await.expect("the guard is held");
    }
}

/// Tasks take the same two locks, in either order, beside a task that takes one of them.
pub(crate) async fn several() {
    let (clients, claims) = (Clients::new(), [Claims::default(), Claims::default()]);
    let mut tasks: Vec<_> = (0..3)
        .map(|number: usize| {
            let locks = clients.clients[number % 2].clone();
            let (names, claims) = match number {
                0 => (["a", "b"], claims.clone()),
                _ => (["b", "a"], [claims[1].clone(), claims[0].clone()]),
            };
            tokio::spawn(contend_for_all(locks, names, number, claims))
        })
        .collect();
    tasks.push(tokio::spawn(take(clients.clients[1].of(Kind::Mutex, "b"), 9, claims[1].clone())));
    finish(tasks).await;
    claims.iter().for_each(Claims::check);
    clients.close().await;
}

#[test]
fn several_locks_as_one_are_held_alone_and_never_deadlock() {
    explore(Time::WhenIdle, several);
}

/// Four tasks acquire one of two permits.
pub(crate) async fn permits() {
    let (clients, claims) = (Clients::new(), Claims::default());
    let tasks = (0..4)
        .map(|number: usize| {
            let permits = clients.clients[number % 2].semaphore("pool", 2);
            let claims = claims.clone();
            tokio::spawn(async move {
                for _ in 0..2 {
                    let acquisition = permits.acquire();
                    let guard = match number {
                        0 => drop_after(12, acquisition).await,
                        _ => Some(acquisition.await),
                    };
                    if let Some(guard) = guard {
                        use_guard(guard.expect("the store replies"), number, &claims).await;
                    }
                }
            })
        })
        .collect();
    finish(tasks).await;
    claims.check_limit(2);
    clients.close().await;
}

#[test]
fn no_more_permits_are_held_than_the_semaphore_has() {
    explore(Time::WhenIdle, permits);
}

/// A writer turns its hold into that of a reader while readers and another writer wait.
pub(crate) async fn downgrade() {
    const READERS: usize = usize::MAX;
    let (clients, claims) = (Clients::new(), Claims::default());
    let guard = clients.clients[0].rwlock("x").write().lock().await.expect("the lock is free");
    let mut tasks = Vec::new();
    for (number, kind) in [Kind::Read, Kind::Write, Kind::Read].into_iter().enumerate() {
        let (lock, claims) = (clients.clients[number % 2].of(kind, "x"), claims.clone());
        let holder = if kind == Kind::Read { READERS } else { number };
        tasks.push(tokio::spawn(take(lock, holder, claims)));
    }
    yield_randomly(20).await;
    if thread_rng().gen_bool(0.8) {
        let guard = guard.downgrade().await.expect("the guard is held");
        use_guard(guard, READERS, &claims).await;
    } else {
        // The guard is dropped with its future, at any step.
        drop(drop_after(10, guard.downgrade()).await);
    }
    finish(tasks).await;
    claims.check();
    clients.close().await;
}

#[test]
fn a_writer_that_becomes_a_reader_shares_the_lock_with_readers_only() {
    explore(Time::WhenIdle, downgrade);
}

/// An owner has an exclusive and a shared guard, which end in any order while another contender waits.
async fn owner_beside(other: Kind) {
    let (clients, claims, owner) = (Clients::new(), Claims::default(), Owner::new());
    let pair = clients.clients[0].rwlock("x").owned_by(&owner);
    let exclusive = pair.write().lock().await.expect("the lock is free");
    let shared = pair.read().lock().await.expect("the owner enters its hold");
    // A reader may hold the lock together with the shared guard.
    let of_shared = if other == Kind::Read { Claims::default() } else { claims.clone() };
    let mut tasks = vec![tokio::spawn(take(clients.clients[1].of(other, "x"), 1, claims.clone()))];
    for (guard, claims) in [(exclusive, claims.clone()), (shared, of_shared)] {
        tasks.push(tokio::spawn(async move { use_guard(guard, 0, &claims).await }));
    }
    finish(tasks).await;
    claims.check();
    clients.close().await;
}

async fn owner_and_writer() {
    owner_beside(Kind::Write).await;
}

pub(crate) async fn owner_and_reader() {
    owner_beside(Kind::Read).await;
}

#[test]
fn the_guards_of_both_sides_of_an_owner_end_in_any_order() {
    explore(Time::WhenIdle, owner_and_writer);
    explore(Time::WhenIdle, owner_and_reader);
}

/// Two candidates lead one term each, until an observer has seen the term.
pub(crate) async fn election() {
    let (clients, claims, started) = (Clients::new(), Claims::default(), Instant::now());
    let mut observer = clients.observer.election("leader").observe().await.expect("the store replies");
    let (seen, _) = watch::channel(None);
    let mut tasks: Vec<_> = (0..2)
        .map(|number: usize| {
            let candidate = clients.clients[number].election("leader").candidate();
            let (claims, mut seen) = (claims.clone(), seen.subscribe());
            tokio::spawn(async move {
                let term = candidate.elect().await.expect("the store replies");
                let from = claims.order.next();
                seen.wait_for(|seen| *seen == term.number()).await.expect("the observer runs");
                let to = claims.order.next();
                assert!(term.is_current(), "the term has ended without a loss");
                claims.record(number, from, to);
                if thread_rng().gen_bool(0.5) {
                    term.resign().await.expect("the term is current");
                }
            })
        })
        .collect();
    tasks.push(tokio::spawn(async move {
        let mut terms = 0;
        while terms < 2 || !matches!(observer.present(), Observed::Vacant { .. }) {
            if let Observed::Leader(leader) = observer.next().await {
                terms += 1;
                seen.send_replace(leader.term);
            }
        }
    }));
    finish(tasks).await;
    // An observer pauses between notifications for at most a third of a second. Without them it
    // inspects the lock every ten seconds.
    assert!(started.elapsed() < Duration::from_secs(5), "the observer was not notified");
    claims.check();
    clients.close().await;
}

#[test]
fn terms_never_overlap_and_an_observer_sees_the_end_of_the_last_one() {
    explore(Time::WhenIdle, election);
}

/// A lock stays taken for a time after its release, whichever way the guard ends.
pub(crate) async fn stays_taken() {
    const LEAST: Duration = Duration::from_secs(100);
    let clients = Clients::new();
    let lock = clients.clients[0].mutex("x");
    let granted = Instant::now();
    let guard = lock.lock().at_least(LEAST).await.expect("the lock is free");
    let (other, waiter) = (clients.clients[1].mutex("x"), clients.clients[0].clone());
    let waiting = tokio::spawn(async move {
        let guard = other.lock().await.expect("the store replies");
        assert!(granted.elapsed() >= LEAST, "the lock was free after {:?}", granted.elapsed());
        guard.release().await.expect("the guard is held");
    });
    yield_randomly(10).await;
    match thread_rng().gen_range(0..3) {
        0 => guard.release().await.expect("the guard is held"),
        1 => drop(guard),
        _ => {
            sleep(LEAST / 2).await;
            drop(guard);
        }
    }
    // The keeper that keeps the lock taken does not need its client.
    if thread_rng().gen_bool(0.5) {
        waiter.close().await;
    }
    waiting.await.expect("no panic");
    clients.close().await;
}

#[test]
fn a_lock_stays_taken_for_its_least_time_whichever_way_the_guard_ends() {
    explore(Time::WhenIdle, stays_taken);
}

/// A client is closed while its tasks acquire a lock and hold it.
pub(crate) async fn close() {
    let (clients, claims) = (Clients::new(), Claims::default());
    let tasks: Vec<_> = (0..3)
        .map(|number| {
            let (lock, claims) = (clients.clients[number % 2].mutex("x"), claims.clone());
            tokio::spawn(async move {
                match lock.lock().await {
                    Ok(guard) => use_guard(guard, number, &claims).await,
                    Err(error) => assert!(matches!(error, Error::Closed { .. }), "{error}"),
                }
            })
        })
        .collect();
    yield_randomly(20).await;
    clients.clients[0].close().await;
    finish(tasks).await;
    claims.check();
    clients.close().await;
}

#[test]
fn a_client_that_is_closed_at_any_step_leaves_nothing_behind() {
    explore(Time::WhenIdle, close);
}
