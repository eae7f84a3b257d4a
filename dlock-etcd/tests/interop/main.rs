//! dlock beside etcd's Go client and `etcdctl lock`, on one member.
//!
//! `DLOCK_FLEET` says how often each contender of a mixed fleet takes its lock: 25 times if it does not. If it does, another fleet
//! runs while leaders die.

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod fleet;

use std::{
    env,
    process::ExitCode,
    sync::{Arc, OnceLock},
    time::Duration,
};

use dlock_conformance::{
    Unreachable,
    peer::{Built, Contender, Peer, Program},
    stores::{
        Running,
        etcd::{Flavour, start},
    },
};
use dlock_core::{LockOptions, Locks, Registry};
use libtest_mimic::{Arguments, Trial};

/// The ttl on both sides. A waiter that waits until it ends was not woken.
const TTL: Duration = Duration::from_secs(20);

macro_rules! trials {
    ($border:expr; $($module:ident::$test:ident,)*) => {
        vec![$({
            let border = Arc::clone($border);
            let name = format!("{}::{}", border.built.name(), stringify!($test));
            Trial::test(name, move || {
                runtime().block_on($module::$test(&border));
                Ok(())
            })
        }),*]
    };
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let etcd = runtime().block_on(start(Flavour::Standalone)).map(Arc::new);
    let trials = [Program::ETCD_GO, Program::ETCDCTL].into_iter().flat_map(|program| {
        match Border::new(&etcd, program) {
            Ok(border) => {
                let mut trials = trials(&border);
                // `etcdctl lock` ends when a leader dies, and leaves its key.
                if program.word() == Program::ETCD_GO.word() {
                    let long = trials! { &border; fleet::a_mixed_fleet_loses_nothing_though_leaders_die, };
                    let is_short = env::var("DLOCK_FLEET").is_err();
                    trials.extend(long.into_iter().map(|trial| trial.with_ignored_flag(is_short)));
                }
                trials
            }
            Err(unreachable) => vec![unreachable.trial(&program.name())],
        }
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn trials(border: &Arc<Border>) -> Vec<Trial> {
    trials! { border;
        cases::they_exclude_each_other,
        cases::each_wakes_the_other,
        cases::both_queue_in_order_of_arrival,
        cases::tokens_grow_across_the_border,
        cases::readers_and_permits_wait_for_it_and_it_for_them,
        cases::dlock_shows_and_breaks_what_it_holds,
        cases::a_detached_hold_keeps_it_out_until_it_is_released,
        fleet::a_mixed_fleet_loses_nothing,
        cases::nothing_is_left,
    }
}

/// A peer and dlock on one member.
struct Border {
    running: Arc<Running>,
    built: Built,
    peer: OnceLock<Peer>,
}

impl Border {
    fn new(etcd: &Result<Arc<Running>, Unreachable>, program: Program) -> Result<Arc<Self>, Unreachable> {
        // Without etcd the peer counts as missing, and `DLOCK_REQUIRE` may name the peer.
        let name = || program.word().to_owned();
        let running = etcd.clone().map_err(|etcd| Unreachable { name: name(), ..etcd })?;
        Ok(Arc::new(Self { running, built: program.build()?, peer: OnceLock::new() }))
    }

    /// The peer: one process for all cases.
    fn peer(&self) -> &Peer {
        self.peer.get_or_init(|| self.built.start(self.running.url(), TTL))
    }

    fn contender(&self) -> Contender {
        self.peer().contender()
    }

    /// A new client of dlock's.
    async fn locks(&self) -> Locks {
        let registry = Registry::new().with(dlock_etcd::DRIVER);
        let locks = registry.connect(self.running.url()).await.expect("etcd is there");
        locks.with_defaults(LockOptions::new().ttl(TTL))
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime can be built")
}
