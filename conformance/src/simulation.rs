//! A store under clients that do anything at any time, over lines that do anything wrong, in virtual time.
//!
//! Some contenders of random kinds, on three clients, ask for two locks: they wait, try, give up, re-enter, hold too long,
//! write with tokens that went stale. Meanwhile lines are cut, frozen and deaf, the process stalls, the machine is
//! suspended, locks are broken. All of it follows from one seed, so a failure can be replayed. Works only with stores that
//! wait for nothing but tokio's timers.
//!
//! [`simulate`] disturbs the lines between clients and one store. [`simulate_majority`] disturbs the lines inside of a
//! RedLock: those from each client to each member.

mod contender;
mod register;
mod trouble;

use std::{
    fmt,
    sync::{
        Arc, Mutex,
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
use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    history::{Counts, History, Rule, Violation},
    wrap::{Chaos, Switch, fast_clock, queueless},
};

use contender::Contender;
use register::Register;

/// Long beside what a debug build needs, as the engine's other clock is not paused.
const TTL: Duration = Duration::from_secs(30);

/// The longest that a line stays frozen or cut.
const LONGEST_TROUBLE: Duration = Duration::from_secs(75);

/// The longest virtual time that a run may take. No run needs as much.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

const CLIENTS: usize = 3;
const NAMES: [&str; 2] = ["a", "b"];

/// The largest limit of a semaphore.
const PERMITS: u32 = 4;

/// By how many thousandths a member's clock may run faster than a client's: RedLock allows for ten.
const DRIFT: u32 = 9;

/// The result of one run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The seed of the run.
    pub seed: u64,
    /// The rules that were violated.
    pub violations: Vec<Violation>,
    /// How much happened.
    pub counts: Counts,
    /// Acquisitions that were dropped before they ended.
    pub cancelled: usize,
    /// Guards that an owner got by entering again.
    pub reentered: usize,
    /// Holds that were turned into read holds.
    pub downgraded: usize,
    /// Holds that went on without a guard.
    pub detached: usize,
    /// Answers that were lost after the store acted.
    pub lost_answers: usize,
    /// Locks that were taken by force.
    pub broken: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {} violations", self.seed, self.violations.len())?;
        self.violations.iter().try_for_each(|violation| writeln!(f, "  {violation}"))
    }
}

/// What everybody in a run shares.
struct World {
    history: History,
    clients: Vec<Client>,
    registers: [Register; NAMES.len()],
    tally: Tally,
    /// Until when a member of a majority may keep its part of a hold that was handed over without it.
    parts_until: Mutex<Option<Moment>>,
}

/// A client, and its lines: one to the store, or one to each member.
struct Client {
    locks: Locks,
    lines: Vec<Switch>,
}

#[derive(Default)]
struct Tally {
    cancelled: AtomicUsize,
    reentered: AtomicUsize,
    downgraded: AtomicUsize,
    detached: AtomicUsize,
    broken: AtomicUsize,
}

/// Runs the troubles and contenders that follow from `seed` on an empty store. Every fourth seed also takes locks by force.
///
/// # Panics
/// If a contender panics, or if called inside of another runtime.
pub fn simulate(store: Store, seed: u64) -> Report {
    run(seed, |dice| {
        let chaos = Chaos::new(dice.u64(..), TTL);
        let client = |_| {
            let line = Switch::default();
            let locks = Locks::new(line.wrap(chaos.wrap(store.clone())));
            Client { locks, lines: vec![line] }
        };
        let clients = (0..CLIENTS).map(client).collect();
        (clients, vec![chaos], store)
    })
}

/// Runs what follows from `seed` on a RedLock of so many empty memory stores. Each client's line to each member misbehaves
/// by itself. The members' clocks run faster than the clients', within what RedLock allows for. In half of the seeds the
/// members keep no queues, like a mutex on Redis.
///
/// # Panics
/// If a contender panics, or if called inside of another runtime.
pub fn simulate_majority(members: usize, seed: u64) -> Report {
    run(seed, |dice| {
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
            let lines: Vec<_> = members.iter().map(|_| Switch::default()).collect();
            let wrapped = members.iter().zip(&lines).map(|(member, line)| {
                let noise = Chaos::new(dice.u64(..), TTL);
                let member = line.wrap(noise.wrap(member.clone()));
                chaos.push(noise);
                member
            });
            Client { locks: Locks::new(majority(wrapped.collect())), lines }
        };
        let clients = (0..CLIENTS).map(&mut client).collect();
        (clients, chaos, majority(members))
    })
}

/// Runs one seed. `make` draws the clients, the lines between them and the store, and the store to look into at the end.
fn run(seed: u64, make: impl FnOnce(&mut Rng) -> (Vec<Client>, Vec<Chaos>, Store)) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    // Makes the keepers' jitter follow from the seed.
    fastrand::seed(seed);
    let whole = async {
        pretend_clock();
        let mut dice = Rng::with_seed(seed);
        let (clients, chaos, store) = make(&mut dice);
        play(clients, &chaos, &store, dice, seed).await
    };
    runtime.expect("a runtime without I/O can be built").block_on(whole)
}

async fn play(clients: Vec<Client>, chaos: &[Chaos], store: &Store, mut dice: Rng, seed: u64) -> Report {
    let world = Arc::new(World {
        history: History::new(),
        clients,
        registers: Default::default(),
        tally: Tally::default(),
        parts_until: Mutex::new(None),
    });
    let mut contenders = JoinSet::new();
    for _ in 0..dice.usize(6..=10) {
        contenders.spawn(Contender::new(Arc::clone(&world), dice.fork()).live());
    }
    if timeout(LIMIT, go_on(&world, contenders, dice, seed)).await.is_err() {
        world.history.note(Rule::Progress, format!("after {LIMIT:?} of virtual time"));
    } else {
        let parts_until = world.parts_until.lock().expect("no contender panicked").take();
        if let Some(until) = parts_until {
            sleep(until.remaining()).await;
        }
        residue(&world, store).await;
    }
    let World { history, tally, .. } = &*world;
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

/// Runs until the last contender has gone and every client is closed.
async fn go_on(world: &World, mut contenders: JoinSet<()>, dice: Rng, seed: u64) {
    let all_gone = async {
        while let Some(ended) = contenders.join_next().await {
            ended.expect("a contender panicked");
        }
    };
    tokio::select! {
        biased;
        () = all_gone => {}
        () = trouble::make(world, dice, seed.is_multiple_of(4)) => {}
    }
    for client in &world.clients {
        client.lines.iter().for_each(Switch::connect);
        client.locks.close().await;
    }
}

async fn residue(world: &World, store: &Store) {
    if let Some(inspect) = &store.inspect {
        let left = inspect.list("").await;
        if !left.as_ref().is_ok_and(Vec::is_empty) {
            world.history.note(Rule::Residue, format!("in the store: {left:?}"));
        }
    }
    let alive = Handle::current().metrics().num_alive_tasks();
    if alive > 0 {
        world.history.note(Rule::Residue, format!("{alive} tasks"));
    }
}

/// Whole milliseconds, as tokio's timers count them. So the result does not depend on when in a millisecond the run began.
fn up_to(dice: &mut Rng, most: Duration) -> Duration {
    Duration::from_millis(dice.u64(0..=u64::try_from(most.as_millis()).unwrap_or(u64::MAX)))
}
