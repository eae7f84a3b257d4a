//! dlock beside Curator and kazoo, on one ZooKeeper server and on an ensemble.
//!
//! `DLOCK_FLEET` is the number of times that each contender of a mixed fleet takes its lock.
//! Default: 50.

mod cases;
#[path = "../common/mod.rs"]
mod common;

use std::{process::ExitCode, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_conformance::Unreachable;
use dlock_core::{LockOptions, Locks, Registry};
use dlock_testbed::{
    border_trials,
    peer::{
        Border, PeerKind, Program, Side,
        cases::{
            a_lock_that_dlock_breaks_is_its_waiters, a_mixed_fleet_loses_nothing, each_wakes_the_other,
            readers_of_both_share_and_keep_writers_of_both_out, they_exclude_each_other,
            what_it_held_when_it_was_killed_is_free_after_its_ttl,
        },
        elections::{
            a_leader_that_was_killed_is_followed_by_a_candidate_of_dlock,
            a_resignation_elects_a_candidate_of_the_other_side, both_sides_know_the_one_leader_by_its_label,
            candidates_of_both_lead_one_after_the_other,
        },
    },
    servers::{
        Running,
        zookeeper::{Flavour, start},
    },
};
use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Runtime;

use PeerKind::{Candidate, Latch, Mutex, Read, Write};

/// Session timeout on both sides. A waiter that waits until a session ends was not woken.
const SESSION: Duration = Duration::from_secs(20);

/// Ttl of dlock's claims.
const TTL: Duration = Duration::from_secs(10);

/// Node above the locks.
const BASE: &str = "/it";

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let runtime = Runtime::new().expect("a runtime can be built");
    let mut trials = Vec::new();
    let one = runtime.block_on(start(Flavour::Standalone)).map(Arc::new);
    for program in [Program::CURATOR, Program::KAZOO] {
        match border(&one, program) {
            Ok(border) => trials.extend(of_a_peer(&border)),
            Err(unreachable) => trials.push(unreachable.trial(&program.name())),
        }
    }
    if let Ok(border) = border(&one, Program::CURATOR) {
        trials.extend(of_curator(&border));
        trials.extend(of_an_election(&border, Candidate));
    }
    if let Ok(border) = border_with(&one, Program::CURATOR, "elections=latch") {
        trials.extend(of_an_election(&border, Latch));
        trials.extend(of_a_latch(&border));
    }
    let three = runtime.block_on(start(Flavour::Ensemble)).map(Arc::new);
    if let Ok(border) = border(&three, Program::CURATOR) {
        trials.extend(of_an_ensemble(&border));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn of_a_peer(border: &Arc<Border<Zookeeper>>) -> Vec<Trial> {
    border_trials! { border;
        they_exclude_each_other(Mutex);
        they_exclude_each_other(Write);
        readers_of_both_share_and_keep_writers_of_both_out();
        each_wakes_the_other(Mutex);
        each_wakes_the_other(Read);
        each_wakes_the_other(Write);
        a_lock_that_dlock_breaks_is_its_waiters(Mutex);
        a_lock_that_dlock_breaks_is_its_waiters(Write);
        cases::dlock_shows_what_the_other_holds(Mutex);
        cases::dlock_shows_what_the_other_holds(Write);
        cases::a_fair_hold_and_a_permit_keep_its_mutex_out();
        cases::a_mutex_of_dlock_refuses_a_directory_of_its_read_and_write_locks();
        cases::a_read_or_write_lock_of_dlock_refuses_a_directory_of_its_mutex();
        what_it_held_when_it_was_killed_is_free_after_its_ttl();
        a_mixed_fleet_loses_nothing(&[Mutex]);
        a_mixed_fleet_loses_nothing(&[Read, Write]);
    }
}

fn of_curator(border: &Arc<Border<Zookeeper>>) -> Vec<Trial> {
    border_trials! { border;
        cases::its_writer_stays_out_of_a_downgraded_hold();
        cases::its_read_and_write_locks_are_granted_beside_a_mutex_of_dlock();
    }
}

/// `kind` is Curator's `LeaderSelector` or its `LeaderLatch`.
fn of_an_election(border: &Arc<Border<Zookeeper>>, kind: PeerKind) -> Vec<Trial> {
    border_trials! { border;
        both_sides_know_the_one_leader_by_its_label(kind);
        a_resignation_elects_a_candidate_of_the_other_side(kind);
        a_leader_that_was_killed_is_followed_by_a_candidate_of_dlock(kind);
        candidates_of_both_lead_one_after_the_other(kind);
    }
}

fn of_a_latch(border: &Arc<Border<Zookeeper>>) -> Vec<Trial> {
    border_trials! { border;
        cases::a_mutex_of_dlock_refuses_a_directory_of_its_latch();
    }
}

fn of_an_ensemble(border: &Arc<Border<Zookeeper>>) -> Vec<Trial> {
    border_trials! { border;
        cases::a_mixed_fleet_survives_killed_leaders(&[Mutex]);
        cases::a_mixed_fleet_survives_killed_leaders(&[Read, Write]);
    }
}

fn border(
    running: &Result<Arc<Running>, Unreachable>,
    program: Program,
) -> Result<Arc<Border<Zookeeper>>, Unreachable> {
    border_with(running, program, "elections=selector")
}

fn border_with(
    running: &Result<Arc<Running>, Unreachable>,
    program: Program,
    param: &'static str,
) -> Result<Arc<Border<Zookeeper>>, Unreachable> {
    let store =
        running.as_ref().map(|running| (running.url(), Zookeeper { running: Arc::clone(running), param }));
    Border::new(program, store.map_err(Clone::clone), SESSION)
}

/// dlock on a ZooKeeper.
struct Zookeeper {
    running: Arc<Running>,
    /// Parameter of dlock's URL.
    param: &'static str,
}

#[async_trait]
impl Side for Zookeeper {
    fn ttl(&self) -> Duration {
        TTL
    }

    /// The lock `x` is the peer's `/it/x`.
    async fn locks(&self) -> Locks {
        let url = format!("{}{BASE}?session={}s&{}", self.running.url(), SESSION.as_secs(), self.param);
        let locks = Registry::new().with(dlock_zk::DRIVER).connect(&url).await.expect("a server is running");
        locks.with_defaults(LockOptions::new().ttl(TTL))
    }
}
