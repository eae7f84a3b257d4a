//! dlock beside Curator and kazoo, on one ZooKeeper server and on an ensemble.
//!
//! `DLOCK_FLEET` says how often each contender of a mixed fleet takes its lock: 50 times if it does not.

mod cases;
#[path = "../common/mod.rs"]
mod common;

use std::{
    process::ExitCode,
    sync::{Arc, OnceLock},
    time::Duration,
};

use dlock_conformance::{
    Unreachable,
    peer::{Built, Contender, Peer, PeerKind, Program},
    stores::{
        Running,
        zookeeper::{Flavour, start},
    },
};
use dlock_core::{LockOptions, Locks, Registry};
use libtest_mimic::{Arguments, Trial};

use PeerKind::{Mutex, Read, Write};

/// The sessions on both sides. A waiter that waits until one ends was not woken.
const SESSION: Duration = Duration::from_secs(20);

/// dlock's ttl.
const TTL: Duration = Duration::from_secs(10);

/// The node above the locks.
const BASE: &str = "/it";

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    let one = runtime().block_on(start(Flavour::Standalone)).map(Arc::new);
    for program in [Program::CURATOR, Program::KAZOO] {
        match Border::new(&one, program) {
            Ok(border) => trials.extend(of_a_peer(&border)),
            Err(unreachable) => trials.push(unreachable.trial(&program.name())),
        }
    }
    if let Ok(border) = Border::new(&one, Program::CURATOR) {
        trials.extend(of_curator(&border));
    }
    let three = runtime().block_on(start(Flavour::Ensemble)).map(Arc::new);
    if let Ok(border) = Border::new(&three, Program::CURATOR) {
        trials.extend(of_an_ensemble(&border));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A peer and dlock on one store.
struct Border {
    running: Arc<Running>,
    built: Built,
    peer: OnceLock<Peer>,
}

macro_rules! trials {
    ($border:expr; $($test:ident($($argument:expr),*);)*) => {
        vec![$({
            let border = Arc::clone($border);
            let details: &[String] = &[$(format!(" {:?}", $argument).to_lowercase()),*];
            let name = format!("{}::{}{}", border.built.name(), stringify!($test), details.concat());
            Trial::test(name, move || {
                runtime().block_on(cases::$test(&border, $($argument),*));
                Ok(())
            })
        }),*]
    };
}

fn of_a_peer(border: &Arc<Border>) -> Vec<Trial> {
    trials! { border;
        they_exclude_each_other(Mutex);
        they_exclude_each_other(Write);
        readers_of_both_share_and_keep_writers_of_both_out();
        each_wakes_the_other(Mutex);
        each_wakes_the_other(Read);
        each_wakes_the_other(Write);
        a_lock_that_dlock_breaks_is_its_waiters(Mutex);
        a_lock_that_dlock_breaks_is_its_waiters(Write);
        dlock_shows_what_the_other_holds(Mutex);
        dlock_shows_what_the_other_holds(Write);
        a_fair_hold_and_a_permit_keep_its_mutex_out();
        a_mutex_of_dlock_refuses_a_directory_of_its_read_and_write_locks();
        what_it_held_when_it_was_killed_is_free_after_its_session();
        a_mixed_fleet_loses_nothing(&[Mutex]);
        a_mixed_fleet_loses_nothing(&[Read, Write]);
    }
}

fn of_curator(border: &Arc<Border>) -> Vec<Trial> {
    trials! { border;
        its_writer_stays_out_of_a_downgraded_hold();
    }
}

fn of_an_ensemble(border: &Arc<Border>) -> Vec<Trial> {
    trials! { border;
        a_mixed_fleet_survives_killed_leaders(&[Mutex]);
        a_mixed_fleet_survives_killed_leaders(&[Read, Write]);
    }
}

impl Border {
    fn new(running: &Result<Arc<Running>, Unreachable>, program: Program) -> Result<Arc<Self>, Unreachable> {
        // Without servers the peer counts as missing, and `DLOCK_REQUIRE` may name the peer.
        let name = || program.word().to_owned();
        let running = running.clone().map_err(|gone| Unreachable { name: name(), ..gone })?;
        Ok(Arc::new(Self { running, built: program.build()?, peer: OnceLock::new() }))
    }

    /// The peer: one process for all cases.
    fn peer(&self) -> &Peer {
        self.peer.get_or_init(|| self.built.start(self.running.url(), SESSION))
    }

    fn contender(&self, kind: PeerKind) -> Contender {
        assert!(self.peer().can(kind), "{} has no kind {kind}", self.peer().name());
        self.peer().contender()
    }

    /// A new client of dlock's. A lock `x` is the peer's `/it/x`.
    async fn locks(&self) -> Locks {
        let url = format!("{}{BASE}?session={}s", self.running.url(), SESSION.as_secs());
        let locks =
            Registry::new().with(dlock_zookeeper::DRIVER).connect(&url).await.expect("a server is there");
        locks.with_defaults(LockOptions::new().ttl(TTL))
    }
}

async fn until(mut condition: impl AsyncFnMut() -> bool) {
    while !condition().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime can be built")
}
