//! A store under contenders with random behaviour, over connections with random faults, in virtual
//! time.
//!
//! Contenders of random kinds use three clients to request two locks. They wait, try, abandon
//! acquisitions, re-enter, hold for too long, and write with stale tokens. At the same time
//! connections are cut, frozen or lose replies, the process stalls, the machine is suspended, and
//! locks are force-released. Everything follows from one seed, so a failure can be replayed. Works
//! only with stores that wait for nothing but tokio's timers.
//!
//! [`simulate`] disturbs the connections between the clients and one store. [`simulate_majority`]
//! disturbs the connections inside a RedLock, from each client to each member.

mod contender;
mod fault;
mod register;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{
    Locks, RedLock,
    driver::{Moment, Store, pretend_clock},
    memory::MemoryBackend,
};
use fastrand::Rng;
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    history::{Counts, History, Rule, Violation},
    wrap::{Chaos, Switch, fast_clock, queueless},
};

use contender::Contender;
use register::Register;

/// Long compared with the time that a debug build needs, because the engine's other clock is not
/// paused.
const TTL: Duration = Duration::from_secs(30);

/// Maximum time for which a connection stays frozen or cut.
const LONGEST_FAULT: Duration = Duration::from_secs(75);

/// Limit of virtual time for a run. No run needs as much.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

const CLIENTS: usize = 3;
const NAMES: [&str; 2] = ["a", "b"];

/// Greatest limit of a semaphore.
const PERMITS: u32 = 4;

/// Greatest drift of a member's clock, in thousandths faster than the client's. RedLock allows ten.
const DRIFT: u32 = 9;

/// Maximum time in which a RedLock whose clients are closed releases the members that a majority did
/// not need. A call to such a member may take a ttl, and the release that follows it another one.
const MINORITY_RELEASE: Duration = Duration::from_secs(4 * TTL.as_secs());

/// Interval at which the tasks of closed clients are counted.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Result of one run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Seed of the run.
    pub seed: u64,
    /// Violations of the rules.
    pub violations: Vec<Violation>,
    /// Numbers of events.
    pub counts: Counts,
    /// Number of acquisitions that were dropped before they ended.
    pub cancelled: usize,
    /// Number of guards from re-entry.
    pub reentered: usize,
    /// Number of downgraded holds.
    pub downgraded: usize,
    /// Number of detached holds.
    pub detached: usize,
    /// Number of replies that were lost after the store had executed the request.
    pub lost_answers: usize,
    /// Number of locks that were force-released.
    pub broken: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {} violations", self.seed, self.violations.len())?;
        self.violations.iter().try_for_each(|violation| writeln!(f, "  {violation}"))
    }
}

/// State that all tasks of a run share.
struct Run {
    history: History,
    clients: Vec<Client>,
    registers: [Register; NAMES.len()],
    tally: Tally,
    /// Time up to which a member of a majority may keep its part of a hold that was detached
    /// without this member.
    parts_until: Mutex<Option<Moment>>,
}

/// A client, with the switch of its connection to the store or to each member.
struct Client {
    locks: Locks,
    switches: Vec<Switch>,
}

#[derive(Default)]
struct Tally {
    cancelled: AtomicUsize,
    reentered: AtomicUsize,
    downgraded: AtomicUsize,
    detached: AtomicUsize,
    broken: AtomicUsize,
}

/// Runs the faults and contenders that follow from `seed` on an empty store. Every fourth seed also
/// force-releases locks.
///
/// # Panics
/// If a contender panics, or if called inside another runtime.
pub fn simulate(store: Store, seed: u64) -> Report {
    run_seed(seed, Duration::ZERO, |dice| {
        let chaos = Chaos::new(dice.u64(..), TTL);
        let client = |_| {
            let switch = Switch::default();
            let locks = Locks::new(switch.wrap(chaos.wrap(store.clone())));
            Client { locks, switches: vec![switch] }
        };
        let clients = (0..CLIENTS).map(client).collect();
        (clients, vec![chaos], store)
    })
}

/// Runs the faults and contenders that follow from `seed` on a RedLock of `members` empty memory
/// stores. The connection from each client to each member misbehaves by itself. The members' clocks
/// run faster than the clients' clocks, within the drift that RedLock allows. In half of the seeds
/// the members keep no queues, like a mutex on Redis.
///
/// # Panics
/// If a contender panics, or if called inside another runtime.
pub fn simulate_majority(members: usize, seed: u64) -> Report {
    run_seed(seed, MINORITY_RELEASE, |dice| {
        let queues = dice.bool();
        let members: Vec<_> = (0..members)
            .map(|_| {
                let store = fast_clock(MemoryBackend::new().into_store(), dice.u32(0..=DRIFT));
                if queues { store } else { queueless(store) }
            })
            .collect();
        let majority = |members: Vec<Store>| RedLock::new(members).expect("independent members").into_store();
        let mut chaos = Vec::new();
        let mut client = |_| {
            let switches: Vec<_> = members.iter().map(|_| Switch::default()).collect();
            let wrapped = members.iter().zip(&switches).map(|(member, switch)| {
                let chaos_of_member = Chaos::new(dice.u64(..), TTL);
                let member = switch.wrap(chaos_of_member.wrap(member.clone()));
                chaos.push(chaos_of_member);
                member
            });
            Client { locks: Locks::new(majority(wrapped.collect())), switches }
        };
        let clients = (0..CLIENTS).map(&mut client).collect();
        (clients, chaos, majority(members))
    })
}

/// Runs one seed. `settles_in` is the time in which the tasks of the closed clients must end. When
/// they have ended, nothing may be left behind. `make` draws the clients, their connections, and the store that is inspected then.
fn run_seed(
    seed: u64,
    settles_in: Duration,
    make: impl FnOnce(&mut Rng) -> (Vec<Client>, Vec<Chaos>, Store),
) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    // The keepers' jitter then follows from the seed.
    fastrand::seed(seed);
    let whole = async {
        pretend_clock();
        let mut dice = Rng::with_seed(seed);
        let (clients, chaos, store) = make(&mut dice);
        play(clients, &chaos, &store, dice, seed, settles_in).await
    };
    runtime.expect("a runtime without I/O can be built").block_on(whole)
}

async fn play(
    clients: Vec<Client>,
    chaos: &[Chaos],
    store: &Store,
    mut dice: Rng,
    seed: u64,
    settles_in: Duration,
) -> Report {
    let run = Arc::new(Run {
        history: History::new(),
        clients,
        registers: Default::default(),
        tally: Tally::default(),
        parts_until: Mutex::new(None),
    });
    let mut contenders = JoinSet::new();
    for _ in 0..dice.usize(6..=10) {
        contenders.spawn(Contender::new(Arc::clone(&run), dice.fork()).run_rounds());
    }
    if timeout(LIMIT, run_to_the_end(&run, contenders, dice, seed)).await.is_err() {
        run.history.note(Rule::Progress, format!("after {LIMIT:?} of virtual time"));
    } else {
        let parts_until = run.parts_until.lock().take();
        if let Some(until) = parts_until {
            sleep(until.remaining()).await;
        }
        let settled_at = Instant::now() + settles_in;
        while Handle::current().metrics().num_alive_tasks() > 0 && Instant::now() < settled_at {
            sleep(CHECK_INTERVAL).await;
        }
        check_residue(&run, store).await;
    }
    let Run { history, tally, .. } = &*run;
    Report {
        seed,
        violations: history.check(&Counts::default()),
        counts: history.counts(),
        cancelled: tally.cancelled.load(Relaxed),
        reentered: tally.reentered.load(Relaxed),
        downgraded: tally.downgraded.load(Relaxed),
        detached: tally.detached.load(Relaxed),
        lost_answers: chaos.iter().map(Chaos::lost_answers).sum(),
        broken: tally.broken.load(Relaxed),
    }
}

/// Runs until the last contender has ended and every client is closed.
async fn run_to_the_end(run: &Run, mut contenders: JoinSet<()>, dice: Rng, seed: u64) {
    let all_ended = async {
        while let Some(result) = contenders.join_next().await {
            result.expect("a contender panicked");
        }
    };
    tokio::select! {
        biased;
        () = all_ended => {}
        () = fault::inject(run, dice, seed.is_multiple_of(4)) => {}
    }
    for client in &run.clients {
        client.switches.iter().for_each(Switch::connect);
        client.locks.close().await;
    }
}

async fn check_residue(run: &Run, store: &Store) {
    if let Some(inspect) = &store.inspect {
        let left = inspect.list("").await;
        if !left.as_ref().is_ok_and(Vec::is_empty) {
            run.history.note(Rule::Residue, format!("in the store: {left:?}"));
        }
    }
    let alive = Handle::current().metrics().num_alive_tasks();
    if alive > 0 {
        run.history.note(Rule::Residue, format!("{alive} tasks"));
    }
}

/// Draws a duration of whole milliseconds, as tokio's timers count them, so that the result does
/// not depend on the fraction of a millisecond at which the run began.
fn up_to(dice: &mut Rng, longest: Duration) -> Duration {
    Duration::from_millis(dice.u64(0..=u64::try_from(longest.as_millis()).unwrap_or(u64::MAX)))
}
