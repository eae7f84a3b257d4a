//! A store under clients that do anything at any time, over lines that do anything wrong, in virtual time.
//!
//! Some contenders of random kinds, on three clients, ask for two locks: they wait, try, give up, re-enter, hold too
//! long, write with tokens that went stale. Meanwhile lines are cut, frozen and deaf, the process stalls, locks are broken.
//! All of it follows from one seed, so a failure can be replayed, but for stalls of the real machine, whose clock the
//! engine also looks at. Only for stores that wait for nothing but tokio's timers.

mod contender;
mod register;
mod trouble;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{Locks, Store};
use fastrand::Rng;
use tokio::{runtime::Handle, task::JoinSet, time::timeout};

use crate::{
    history::{Counts, History, Rule, Violation},
    wrap::{Chaos, Switch},
};

use contender::Contender;
use register::Register;

/// Long beside what a debug build needs, as the engine's other clock is not paused.
const TTL: Duration = Duration::from_secs(30);

/// Virtual time that no run needs.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

const CLIENTS: usize = 3;
const NAMES: [&str; 2] = ["a", "b"];

/// What became of one seed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Where it came from.
    pub seed: u64,
    /// What should not have happened.
    pub violations: Vec<Violation>,
    /// What did happen.
    pub counts: Counts,
    /// Acquisitions that were dropped before they ended.
    pub cancelled: usize,
    /// Guards that an owner got by entering again.
    pub reentered: usize,
    /// Holds that were turned into read holds.
    pub downgraded: usize,
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
    clients: Vec<(Locks, Switch)>,
    registers: [Register; NAMES.len()],
    tally: Tally,
}

#[derive(Default)]
struct Tally {
    cancelled: AtomicUsize,
    reentered: AtomicUsize,
    downgraded: AtomicUsize,
    broken: AtomicUsize,
}

/// Lets everything happen to an empty store that follows from `seed`. Every fourth seed also breaks locks.
///
/// # Panics
/// If a contender does; inside of another runtime.
pub fn simulate(store: Store, seed: u64) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    // The keepers' jitter.
    fastrand::seed(seed);
    runtime.expect("a runtime without I/O can be built").block_on(run(store, Rng::with_seed(seed), seed))
}

async fn run(store: Store, mut dice: Rng, seed: u64) -> Report {
    let chaos = Chaos::new(dice.u64(..), TTL);
    let client = |_| {
        let switch = Switch::default();
        (Locks::new(switch.wrap(chaos.wrap(store.clone()))), switch)
    };
    let world = Arc::new(World {
        history: History::new(),
        clients: (0..CLIENTS).map(client).collect(),
        registers: Default::default(),
        tally: Tally::default(),
    });
    let mut contenders = JoinSet::new();
    for _ in 0..dice.usize(6..=10) {
        contenders.spawn(Contender::new(Arc::clone(&world), dice.fork()).live());
    }
    if timeout(LIMIT, go_on(&world, contenders, dice, seed)).await.is_err() {
        world.history.note(Rule::Progress, format!("after {LIMIT:?} of virtual time"));
    } else {
        residue(&world, &store).await;
    }
    let World { history, tally, .. } = &*world;
    Report {
        seed,
        violations: history.check(&Counts::default()),
        counts: history.counts(),
        cancelled: tally.cancelled.load(Relaxed),
        reentered: tally.reentered.load(Relaxed),
        downgraded: tally.downgraded.load(Relaxed),
        lost_answers: chaos.lost_answers(),
        broken: tally.broken.load(Relaxed),
    }
}

/// Until the last contender has gone and every client is closed.
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
    for (locks, switch) in &world.clients {
        switch.connect();
        locks.close().await;
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

/// Whole milliseconds, as tokio's timers are: so nothing depends on how a run's clock began.
fn up_to(dice: &mut Rng, most: Duration) -> Duration {
    Duration::from_millis(dice.u64(0..=u64::try_from(most.as_millis()).unwrap_or(u64::MAX)))
}
