//! Many waiters of one client: they cost it no held lock, their retries do not add up, and waiting sends no requests.

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
    arena::Line,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    [of("crowd", Kind::Mutex), of("crowd_fair", Kind::Fair)].concat()
}

fn of(topic: &'static str, kind: Kind) -> Vec<Case> {
    cases! {
        topic (kind) [Need::Driver] {
            waiters_of_one_name_cost_their_client_no_lock_when_the_server_is_silent_for_a_while,
            waiters_of_a_name_each_cost_their_client_no_lock_when_the_server_is_silent_for_a_while,
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

/// Numbers of waiters: `DLOCK_CROWD`, such as `1000,5000`. The default takes a few seconds.
fn sizes() -> Vec<usize> {
    let listed = env::var("DLOCK_CROWD").unwrap_or_else(|_| "10,100".to_owned());
    listed.split(',').map(|size| size.trim().parse().expect("DLOCK_CROWD lists numbers")).collect()
}

/// Round trips that the proxy adds.
const ROUND_TRIPS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(10)];

/// Longest silence of the server.
const SILENCE: Duration = Duration::from_secs(4);

/// The waiters have arrived once the client has sent nothing for this long.
const QUIET: Duration = Duration::from_millis(500);

/// Time that the first waiters may need to arrive on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time in which the requests of waiters are counted. Well below a third of the waiters' ttl, when their keep-alive is due.
const WINDOW: Duration = Duration::from_secs(3);

/// Bytes that a client may send in [`WINDOW`] for itself, whatever the number of its waiters: heartbeats of its session,
/// pings, a periodic check.
const OWN_TRAFFIC: usize = 16 * 1024;

/// Bytes of a waiter's keep-alive in a store without sessions, with those of the requests that go along with it.
const KEEP_ALIVE: usize = 2048;

/// How many names the waiters share.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    One,
    Each,
}

/// A client with a crowd of waiters, and another client that holds what they wait for.
struct Crowd<'a> {
    arena: &'a Arena,
    client: Locks,
    line: Line,
    other: Locks,
    names: Vec<String>,
    waiters: FuturesUnordered<JoinHandle<Result<Guard>>>,
    /// Bytes that the client sent until all had arrived.
    arrival: usize,
}

impl<'a> Crowd<'a> {
    /// A ttl so long that no keep-alive is due while requests are counted.
    fn ttl(&self) -> Duration {
        self.arena.long_ttl(&self.client)
    }

    /// A client, another one, and the names that `size` waiters will share.
    async fn new(arena: &'a Arena, size: usize, label: &str, names: Names) -> Self {
        let (client, line) = arena.client_with_line().await;
        let other = arena.client().await;
        let count = if names == Names::One { 1 } else { size };
        let names = (0..count).map(|number| arena.name_with(&format!("-{label}-{number}"))).collect();
        Self { arena, client, line, other, names, waiters: FuturesUnordered::new(), arrival: 0 }
    }

    /// Takes all names as the other client, few at a time.
    async fn take_all(&self) -> Vec<Guard> {
        let options = self.arena.options().ttl(self.ttl());
        let take = |name: &String| {
            let lock = self.other.of(self.arena.kind(), name);
            let options = options.clone();
            async move { lock.lock(&options).await.expect("nobody holds it") }
        };
        let taken: Vec<_> = self.names.iter().map(take).collect();
        iter(taken).buffer_unordered(16).collect().await
    }

    /// Starts the waiters, and waits until the client is quiet. Returns whether it became quiet.
    async fn arrive(&mut self, size: usize) -> bool {
        let options = self.arena.options().ttl(self.ttl());
        let before = self.line.requested();
        for number in 0..size {
            let lock = self.client.of(self.arena.kind(), &self.names[number % self.names.len()]);
            let options = options.clone();
            self.waiters.push(self.arena.go(async move { lock.lock(&options).await }));
        }
        let began = Instant::now();
        let is_quiet = loop {
            let sent = self.line.requested();
            sleep(QUIET).await;
            if sent == self.line.requested() || sent + OWN_TRAFFIC / 8 > self.line.requested() {
                break true;
            }
            if began.elapsed() > self.limit(size) + PATIENCE {
                break false;
            }
        };
        self.arrival = self.line.requested() - before;
        is_quiet
    }

    /// Time that a busy machine may need for so many waiters.
    fn limit(&self, size: usize) -> Duration {
        Duration::from_millis(20) * u32::try_from(size).unwrap_or(u32::MAX)
    }

    /// The guard of the waiter that is granted next.
    async fn next(&mut self, size: usize) -> Guard {
        let limit = self.limit(size) + PATIENCE;
        let next = self.arena.within(limit, "the lock is free, and no waiter gets it", self.waiters.next());
        let told = next.await.expect("as many waiters as grants").expect("no panic");
        told.expect("a waiter fails though it would wait for ever")
    }

    fn leave(&self) {
        self.waiters.iter().for_each(JoinHandle::abort);
    }
}

/// Every number of waiters with every round trip, concurrently.
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
    let own = arena.soon("nobody holds it", own).await.expect("nobody holds it");
    let busy = crowd.take_all().await;
    crowd.line.delay(round_trip / 2);
    crowd.arrive(size).await;
    let before = crowd.line.requested();
    crowd.line.stall();
    sleep(SILENCE.min(ttl / 3)).await;
    crowd.line.pass();
    crowd.line.delay(round_trip / 2);
    let end = Instant::now() + own.remaining();
    let renewed = || own.is_lost() || Instant::now() + own.remaining() > end;
    arena.until("it was not renewed when the server answered again", renewed).await;
    assert_eq!(own.lost().now_or_never(), None, "{size} waiters of its client starved its renewals");
    if let Some(Some(told)) = crowd.waiters.next().now_or_never() {
        panic!("a waiter ended while others held its lock: {told:?}");
    }
    drop(busy);
    let grants = if names == Names::One { size.min(5) } else { size };
    for _ in 0..grants {
        drop(crowd.next(size).await);
    }
    let (sent, most) = (crowd.line.requested() - before, 64 * 1024 + 4 * crowd.arrival);
    assert!(
        sent <= most,
        "{size} waiters arrived with {} bytes, and sent {sent} after a silence of the server: retries add up",
        crowd.arrival
    );
    crowd.leave();
    assert_eq!(own.lost().now_or_never(), None, "{size} waiters of its client starved its renewals");
    own.release().await.expect("held until now");
}

pub(super) async fn waiters_of_one_name_cost_their_client_no_lock_when_the_server_is_silent_for_a_while(
    arena: Arc<Arena>,
) {
    for_all(|size, round_trip| outlives_a_silence(&arena, size, round_trip, Names::One)).await;
}

pub(super) async fn waiters_of_a_name_each_cost_their_client_no_lock_when_the_server_is_silent_for_a_while(
    arena: Arc<Arena>,
) {
    for_all(|size, round_trip| outlives_a_silence(&arena, size, round_trip, Names::Each)).await;
}

/// What the other client holds the names with.
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
        Holds::Detached(tickets.map(|ticket| ticket.expect("held until now")).collect())
    } else {
        Holds::Guards(guards)
    };
    // Waiters on many names may never be quiet together: each may have to be kept alive three times in its ttl.
    crowd.arrive(size).await;
    let before = crowd.line.requested();
    sleep(WINDOW).await;
    let sent = crowd.line.requested() - before;
    let beats = WINDOW.div_duration_f64(crowd.ttl() / 3).ceil() as usize;
    let has_session = crowd.client.info().session.is_some();
    let allowed = OWN_TRAFFIC + if has_session { 0 } else { beats * size * KEEP_ALIVE };
    assert!(sent <= allowed, "{size} waiters sent {sent} bytes in {WINDOW:?} while nothing changed");
    if let Some(Some(told)) = crowd.waiters.next().now_or_never() {
        panic!("a waiter ended while others held its lock: {told:?}");
    }
    match holds {
        Holds::Guards(guards) => drop(guards),
        Holds::Detached(tickets) => {
            for ticket in tickets {
                crowd.other.release(&ticket).await.expect("held until now");
            }
        }
    }
    drop(crowd.next(size).await);
    crowd.leave();
}

pub(super) async fn waiters_of_one_name_send_nothing_while_nothing_changes(arena: Arc<Arena>) {
    join_all(sizes().into_iter().map(|size| sends_nothing(&arena, size, Names::One, false))).await;
}

pub(super) async fn waiters_of_a_name_each_send_nothing_while_nothing_changes(arena: Arc<Arena>) {
    join_all(sizes().into_iter().map(|size| sends_nothing(&arena, size, Names::Each, false))).await;
}

pub(super) async fn waiters_behind_a_detached_hold_send_nothing_while_nothing_changes(arena: Arc<Arena>) {
    join_all(sizes().into_iter().map(|size| sends_nothing(&arena, size, Names::One, true))).await;
}
