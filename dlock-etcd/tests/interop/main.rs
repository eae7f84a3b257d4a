//! Interop tests of dlock with etcd's Go client, `etcdctl lock` and `etcdctl elect`, on one member.
//!
//! `DLOCK_FLEET` is the number of acquisitions of each contender of a mixed fleet. The default is
//! 25. If the variable is set, a second fleet runs while leaders are killed.

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod fleet;

use std::{env, process::ExitCode, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{LockOptions, Locks, Registry};
use dlock_testbed::{
    border_trials,
    peer::{
        Border,
        PeerKind::{Candidate, Fenced, Mutex},
        Program, Side,
        cases::{a_mixed_fleet_loses_nothing, each_wakes_the_other},
        elections::{
            a_leader_that_was_killed_is_followed_by_a_candidate_of_dlock,
            a_resignation_elects_a_candidate_of_the_other_side, both_sides_know_the_one_leader_by_its_label,
            candidates_of_both_lead_one_after_the_other,
        },
    },
    servers::etcd::{Flavour, start},
};
use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Runtime;

/// Ttl of both sides. A waiter that waits for longer was not woken.
const TTL: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let runtime = Runtime::new().expect("a runtime");
    let etcd = runtime.block_on(start(Flavour::Standalone));
    let trials = [Program::ETCD_GO, Program::ETCDCTL].into_iter().flat_map(|program| {
        let store = etcd.as_ref().map(|etcd| (etcd.url(), Etcd { url: etcd.url().to_owned() }));
        match Border::new(program, store.map_err(Clone::clone), TTL) {
            Ok(border) => {
                let mut trials = trials(&border);
                if program.word() == Program::ETCD_GO.word() {
                    // `etcdctl elect` has a ttl of a minute, and no option for it.
                    trials.extend(border_trials! { &border;
                        a_leader_that_was_killed_is_followed_by_a_candidate_of_dlock(Candidate);
                    });
                    // `etcdctl lock` exits when a leader is killed, and leaves its key.
                    let fleet =
                        border_trials! { &border; fleet::a_mixed_fleet_loses_nothing_though_leaders_die(); };
                    let is_skipped = env::var("DLOCK_FLEET").is_err();
                    trials.extend(fleet.into_iter().map(|trial| trial.with_ignored_flag(is_skipped)));
                }
                trials
            }
            Err(unreachable) => vec![unreachable.trial(&program.name())],
        }
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn trials(border: &Arc<Border<Etcd>>) -> Vec<Trial> {
    border_trials! { border;
        cases::they_exclude_each_other();
        each_wakes_the_other(Mutex);
        cases::both_queue_in_order_of_arrival();
        cases::tokens_grow_across_the_border();
        cases::readers_and_permits_wait_for_the_peer_and_it_waits_for_them();
        cases::dlock_shows_and_breaks_a_hold_of_the_peer();
        cases::a_detached_hold_excludes_the_peer_until_it_is_released();
        a_mixed_fleet_loses_nothing(&[Fenced]);
        both_sides_know_the_one_leader_by_its_label(Candidate);
        a_resignation_elects_a_candidate_of_the_other_side(Candidate);
        candidates_of_both_lead_one_after_the_other(Candidate);
        cases::no_claim_is_left();
    }
}

/// The side of dlock, on one member.
struct Etcd {
    url: String,
}

#[async_trait]
impl Side for Etcd {
    fn ttl(&self) -> Duration {
        TTL
    }

    async fn locks(&self) -> Locks {
        let registry = Registry::new().with(dlock_etcd::DRIVER);
        let locks = registry.connect(&self.url).await.expect("etcd is running");
        locks.with_defaults(LockOptions::new().ttl(TTL))
    }

    /// The programs of etcd need a tenth of a second for a hand-off.
    fn acquisitions(&self) -> usize {
        25
    }
}
