//! Many waiters of one client do not cost it a held lock, do not add up their retries, and send no
//! requests while they wait.

use std::{env, sync::Arc, time::Duration};

use dlock_core::{Guard, Kind, Locks, Result, Ticket};
use futures_util::{
    FutureExt, StreamExt,
    future::join_all,
    stream::{FuturesUnordered, iter},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use crate::{
    Arena,
    arena::Faults,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    [of("crowd", Kind::Mutex), of("crowd_fair", Kind::Fair)].concat()
}

fn of(topic: &'static str, kind: Kind) -> Vec<Case> {
    cases! {
        topic (kind) [Need::Driver] {
            waiters_of_one_name_cost_their_client_no_lock_when_the_server_is_silent,
            waiters_of_a_name_each_cost_their_client_no_lock_when_the_server_is_silent,
        }
        topic (kind) [Need::Driver, Need::Network, Need::FreeWaiting] {
            waiters_of_one_name_send_nothing_while_nothing_changes,
            waiters_of_a_name_each_send_nothing_while_nothing_changes,
        }
        topic (kind) [Need::Driver, Need::Network, Need::FreeWaiting, Need::Detach] {
            waiters_behind_a_detached_hold_send_nothing_while_nothing_changes,
        }
    }
}

/// Returns the numbers of waiters, from `DLOCK_CROWD`, such as `1000,5000`. The default takes a few
/// seconds.
fn sizes() -> Vec<usize> {
    let listed = env::var("DLOCK_CROWD").unwrap_or_else(|_| "10,100".to_owned());
    listed.split(',').map(|size| size.trim().parse().expect("DLOCK_CROWD is a list of numbers")).collect()
}

/// Round trips that the proxy adds.
const ROUND_TRIPS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(10)];

/// Longest silence of the server.
const SILENCE: Duration = Duration::from_secs(4);

/// Interval of the checks whether the client sends requests.
const QUIET: Duration = Duration::from_millis(500);

/// Number of successive checks without requests after which all waiters are assumed to have arrived.
/// A client that opens another session sends nothing else until then.
const QUIET_CHECKS: usize = 3;

/// Extra time for the first waiters to arrive on a busy machine.
const ARRIVAL_ALLOWANCE: Duration = Duration::from_secs(5);

/// Time in which the requests of waiters are counted. Well below a third of the waiters' ttl, after
/// which their keep-alive is due.
const WINDOW: Duration = Duration::from_secs(3);

/// Number of bytes that a client may send in [`WINDOW`] for itself, whatever the number of its
/// waiters: heartbeats of its session, pings, a periodic check.
const OWN_TRAFFIC: usize = 16 * 1024;

/// Number of bytes of a waiter's keep-alive in a store without sessions, including the requests
/// that accompany it.
const KEEP_ALIVE: usize = 2048;

/// Number of names that the waiters use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    /// One name for all waiters.
    Shared,
    /// A name for each waiter.
    Distinct,
}

/// A client with many waiters, and another client that holds their locks.
struct Crowd<'a> {
    arena: &'a Arena,
    client: Locks,
    faults: Faults,
    other: Locks,
    names: Vec<String>,
    waiters: FuturesUnordered<JoinHandle<Result<Guard>>>,
    /// Number of bytes that the client sent until all waiters had arrived.
    arrival: usize,
}

impl<'a> Crowd<'a> {
    /// Returns a long ttl, with which no keep-alive is due while requests are counted.
    fn ttl(&self) -> Duration {
        self.arena.long_ttl(&self.client)
    }

    /// Connects both clients, and chooses the names for `size` waiters.
    async fn new(arena: &'a Arena, size: usize, label: &str, names: Names) -> Self {
        let (client, faults) = arena.client_with_faults().await;
        let other = arena.client().await;
        let count = if names == Names::Shared { 1 } else { size };
        let names = (0..count).map(|number| arena.name_with(&format!("-{label}-{number}"))).collect();
        Self { arena, client, faults, other, names, waiters: FuturesUnordered::new(), arrival: 0 }
    }

    /// Takes all names as the other client, a few at a time.
    async fn take_all(&self) -> Vec<Guard> {
        let options = self.arena.options().ttl(self.ttl());
        let take = |name: &String| {
            let lock = self.other.of(self.arena.kind(), name);
            let options = options.clone();
            async move { lock.lock(&options).await.expect("the lock is free") }
        };
        let taken: Vec<_> = self.names.iter().map(take).collect();
        iter(taken).buffer_unordered(16).collect().await
    }

    /// Starts the waiters, and waits until the client sends nothing more. Returns whether it
    /// reached that state.
    async fn arrive(&mut self, size: usize) -> bool {
        let options = self.arena.options().ttl(self.ttl());
        let before = self.faults.requested();
        for number in 0..size {
            let lock = self.client.of(self.arena.kind(), &self.names[number % self.names.len()]);
            let options = options.clone();
            self.waiters.push(self.arena.go(async move { lock.lock(&options).await }));
        }
        let (began, mut quiet_checks) = (Instant::now(), 0);
        let is_quiet = loop {
            let sent = self.faults.requested();
            sleep(QUIET).await;
            let is_quiet = sent + OWN_TRAFFIC / 8 > self.faults.requested();
            quiet_checks = if is_quiet { quiet_checks + 1 } else { 0 };
            if quiet_checks == QUIET_CHECKS {
                break true;
            }
            if began.elapsed() > self.limit(size) + ARRIVAL_ALLOWANCE {
                break false;
            }
        };
        self.arrival = self.faults.requested() - before;
        is_quiet
    }

    /// Returns the time that a busy machine may need for `size` waiters.
    fn limit(&self, size: usize) -> Duration {
        Duration::from_millis(20) * u32::try_from(size).unwrap_or(u32::MAX)
    }

    /// Returns the guard of the waiter that is granted next.
    async fn next(&mut self, size: usize) -> Guard {
        let limit = self.limit(size) + ARRIVAL_ALLOWANCE;
        let next =
            self.arena.within(limit, "the lock is free, but no waiter is granted", self.waiters.next());
        let result =
            next.await.expect("there are as many waiters as grants").expect("the task does not panic");
        result.expect("a wait without a limit does not fail")
    }

    fn leave(&self) {
        self.waiters.iter().for_each(JoinHandle::abort);
    }
}

/// Runs `row` with every number of waiters and every round trip, concurrently.
async fn for_all<F: Future<Output = ()>>(row: impl Fn(usize, Duration) -> F) {
    let sizes = sizes();
    let row = &row;
    let rows = sizes.iter().flat_map(|size| ROUND_TRIPS.map(|round_trip| row(*size, round_trip)));
    join_all(rows).await;
}

async fn outlives_a_silence(arena: &Arena, size: usize, round_trip: Duration, names: Names) {
    let label = format!("{size}-{}", round_trip.as_millis());
    let mut crowd = Crowd::new(arena, size, &label, names).await;
    let ttl = (SILENCE * 6).min(*crowd.client.info().ttl.end());
    let own = crowd.client.mutex(arena.name_with(&format!("-own-{label}"))).lock().ttl(ttl);
    let own = arena.soon("a free lock was not granted", own).await.expect("the lock is free");
    let busy = crowd.take_all().await;
    crowd.faults.delay(round_trip / 2);
    crowd.arrive(size).await;
    let before = crowd.faults.requested();
    crowd.faults.stall();
    sleep(SILENCE.min(ttl / 3)).await;
    crowd.faults.pass();
    crowd.faults.delay(round_trip / 2);
    let end = Instant::now() + own.remaining();
    let renewed = || own.is_lost() || Instant::now() + own.remaining() > end;
    arena.until("the lock was not renewed when the server replied again", renewed).await;
    assert_eq!(
        own.lost().now_or_never(),
        None,
        "the renewals were starved by {size} waiters of the same client"
    );
    if let Some(Some(result)) = crowd.waiters.next().now_or_never() {
        panic!("a waiter ended while another client held its lock: {result:?}");
    }
    drop(busy);
    let grants = if names == Names::Shared { size.min(5) } else { size };
    for _ in 0..grants {
        drop(crowd.next(size).await);
    }
    let (sent, limit) = (crowd.faults.requested() - before, 64 * 1024 + 4 * crowd.arrival);
    assert!(
        sent <= limit,
        "{size} waiters arrived with {} bytes, but sent {sent} after a silence of the server: retries add up",
        crowd.arrival
    );
    crowd.leave();
    assert_eq!(
        own.lost().now_or_never(),
        None,
        "the renewals were starved by {size} waiters of the same client"
    );
    own.release().await.expect("the lock is still held");
}

pub(super) async fn waiters_of_one_name_cost_their_client_no_lock_when_the_server_is_silent(
    arena: Arc<Arena>,
) {
    for_all(|size, round_trip| outlives_a_silence(&arena, size, round_trip, Names::Shared)).await;
}

pub(super) async fn waiters_of_a_name_each_cost_their_client_no_lock_when_the_server_is_silent(
    arena: Arc<Arena>,
) {
    for_all(|size, round_trip| outlives_a_silence(&arena, size, round_trip, Names::Distinct)).await;
}

/// Holds of the other client.
enum Holds {
    Guards(Vec<Guard>),
    Detached(Vec<Ticket>),
}

async fn sends_nothing(arena: &Arena, size: usize, names: Names, detached: bool) {
    let mut crowd = Crowd::new(arena, size, &size.to_string(), names).await;
    let mut guards = crowd.take_all().await;
    let holds = if detached {
        let lasting = crowd.ttl();
        let tickets = guards.drain(..).map(|guard| async move { guard.detach(lasting).await });
        let tickets = join_all(tickets).await.into_iter();
        Holds::Detached(tickets.map(|ticket| ticket.expect("the lock is still held")).collect())
    } else {
        Holds::Guards(guards)
    };
    // Waiters for many names may never be quiet together, because each may need three keep-alives
    // in its ttl.
    crowd.arrive(size).await;
    let before = crowd.faults.requested();
    sleep(WINDOW).await;
    let sent = crowd.faults.requested() - before;
    let keep_alives = WINDOW.div_duration_f64(crowd.ttl() / 3).ceil() as usize;
    let has_session = crowd.client.info().session.is_some();
    let allowed = OWN_TRAFFIC + if has_session { 0 } else { keep_alives * size * KEEP_ALIVE };
    assert!(sent <= allowed, "{size} waiters sent {sent} bytes in {WINDOW:?} while nothing changed");
    if let Some(Some(result)) = crowd.waiters.next().now_or_never() {
        panic!("a waiter ended while another client held its lock: {result:?}");
    }
    match holds {
        Holds::Guards(guards) => drop(guards),
        Holds::Detached(tickets) => {
            for ticket in tickets {
                crowd.other.release(&ticket).await.expect("the lock is still held");
            }
        }
    }
    drop(crowd.next(size).await);
    crowd.leave();
}

pub(super) async fn waiters_of_one_name_send_nothing_while_nothing_changes(arena: Arc<Arena>) {
    join_all(sizes().into_iter().map(|size| sends_nothing(&arena, size, Names::Shared, false))).await;
}

pub(super) async fn waiters_of_a_name_each_send_nothing_while_nothing_changes(arena: Arc<Arena>) {
    join_all(sizes().into_iter().map(|size| sends_nothing(&arena, size, Names::Distinct, false))).await;
}

pub(super) async fn waiters_behind_a_detached_hold_send_nothing_while_nothing_changes(arena: Arc<Arena>) {
    join_all(sizes().into_iter().map(|size| sends_nothing(&arena, size, Names::Shared, true))).await;
}
