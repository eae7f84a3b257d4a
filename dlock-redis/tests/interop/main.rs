//! dlock beside Redisson, redis-py and redsync, on one Redis.
//!
//! `DLOCK_FLEET` says how often each contender of a mixed fleet takes its lock: 50 times if it does not. `DLOCK_REDISSON` names more
//! versions of Redisson, with commas between.

mod cases;
#[path = "../common/mod.rs"]
mod common;

use std::{
    process::ExitCode,
    sync::{Arc, OnceLock},
    time::Duration,
};

use common::{raw, words};
use dlock_conformance::{
    Unreachable,
    peer::{Built, Contender, Peer, PeerKind, Program},
    stores::{
        Running,
        redis::{Brand, Flavour, start},
    },
};
use dlock_core::{LockOptions, Locks, Registry};
use libtest_mimic::{Arguments, Trial};

use PeerKind::{Fair, Fenced, Multi, Mutex, Read, Redlock, Write};

/// The ttl on both sides. A waiter that waits until it ends was not woken.
const TTL: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let redis = runtime().block_on(start(Brand::Redis, Flavour::Standalone)).map(Arc::new);
    let programs: [(Program, &str, Table); 4] = [
        (Program::REDISSON, "redisson", redisson_4),
        (Program::REDISSON_3, "redisson", redisson),
        (Program::REDIS_PY, "plain", plain),
        (Program::REDSYNC, "plain", plain),
    ];
    let more = std::env::var("DLOCK_REDISSON").unwrap_or_default();
    let more = more.split(',').filter(|version| !version.is_empty()).map(|version| {
        // Leaked, because the names of the other peers are `'static` too.
        let version: &'static str = version.to_owned().leak();
        (Program::redisson(version), "redisson", redisson as Table)
    });
    let trials = programs.into_iter().chain(more).flat_map(|(program, dialect, trials)| {
        match Border::new(&redis, program, dialect) {
            Ok(border) => trials(&border),
            Err(unreachable) => vec![unreachable.trial(&program.name())],
        }
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// The cases of a peer.
type Table = fn(&Arc<Border>) -> Vec<Trial>;

/// A peer and dlock on one Redis.
struct Border {
    running: Arc<Running>,
    /// The `dialect` parameter of dlock's clients.
    dialect: &'static str,
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

fn redisson(border: &Arc<Border>) -> Vec<Trial> {
    trials! { border;
        they_exclude_each_other(Mutex);
        they_exclude_each_other(Fair);
        they_exclude_each_other(Write);
        readers_of_both_share_and_keep_writers_of_both_out();
        each_wakes_the_other(Mutex);
        each_wakes_the_other(Fair);
        each_wakes_the_other(Read);
        each_wakes_the_other(Write);
        whoever_asks_while_the_other_lets_go_is_woken(Mutex);
        whoever_asks_while_the_other_lets_go_is_woken(Fair);
        whoever_asks_while_the_other_lets_go_is_woken(Read);
        whoever_asks_while_the_other_lets_go_is_woken(Write);
        it_stays_out_while_permits_are_held(Mutex);
        it_stays_out_while_permits_are_held(Fair);
        it_stays_out_while_permits_are_held(Read);
        it_stays_out_while_permits_are_held(Write);
        a_downgrade_lets_its_readers_in();
        both_queue_in_order_of_arrival();
        each_sees_what_the_other_holds(Mutex);
        each_sees_what_the_other_holds(Fair);
        each_sees_what_the_other_holds(Read);
        each_sees_what_the_other_holds(Write);
        a_lock_that_dlock_breaks_is_its_waiters(Mutex);
        a_lock_that_dlock_breaks_is_its_waiters(Fair);
        a_lock_that_dlock_breaks_is_its_waiters(Write);
        a_detached_hold_keeps_the_peer_out_until_it_is_released(Mutex);
        a_detached_hold_keeps_the_peer_out_until_it_is_released(Fair);
        a_detached_hold_keeps_the_peer_out_until_it_is_released(Read);
        a_detached_hold_keeps_the_peer_out_until_it_is_released(Write);
        a_detached_hold_ends_for_the_peer_after_its_time(Mutex);
        a_detached_hold_ends_for_the_peer_after_its_time(Read);
        readers_of_the_peer_leave_a_detached_reader_its_time();
        a_reader_of_the_peer_that_dies_may_end_a_detached_reader();
        what_it_held_when_it_was_killed_is_free_after_its_ttl();
        a_mixed_fleet_loses_nothing(&[Mutex]);
        a_mixed_fleet_loses_nothing(&[Fair]);
        a_mixed_fleet_loses_nothing(&[Read, Write]);
        several_read_locks_of_one_thread_keep_writers_out();
        several_locks_as_one_exclude_each_other(Multi);
        several_locks_as_one_exclude_each_other(Redlock);
    }
}

fn redisson_4(border: &Arc<Border>) -> Vec<Trial> {
    let fenced = trials! { border;
        they_exclude_each_other(Fenced);
        each_wakes_the_other(Fenced);
        tokens_grow_across_the_border();
        a_counter_that_both_use_does_not_end("");
        a_counter_that_both_use_does_not_end("token_ttl=never");
        a_mixed_fleet_loses_nothing(&[Fenced]);
    };
    redisson(border).into_iter().chain(fenced).collect()
}

fn plain(border: &Arc<Border>) -> Vec<Trial> {
    trials! { border;
        they_exclude_each_other(Mutex);
        a_mixed_fleet_loses_nothing(&[Mutex]);
    }
}

impl Border {
    fn new(
        redis: &Result<Arc<Running>, Unreachable>,
        program: Program,
        dialect: &'static str,
    ) -> Result<Arc<Self>, Unreachable> {
        // Without a Redis the peer counts as missing, and `DLOCK_REQUIRE` may name the peer.
        let name = || program.word().to_owned();
        let running = redis.clone().map_err(|redis| Unreachable { name: name(), ..redis })?;
        Ok(Arc::new(Self { running, dialect, built: program.build()?, peer: OnceLock::new() }))
    }

    /// The peer: one process for all cases.
    fn peer(&self) -> &Peer {
        self.peer.get_or_init(|| self.built.start(self.running.url(), TTL))
    }

    fn contender(&self, kind: PeerKind) -> Contender {
        assert!(self.peer().can(kind), "{} has no kind {kind}", self.peer().name());
        self.peer().contender()
    }

    /// A new client of dlock's.
    async fn locks(&self) -> Locks {
        let url = format!("{}?dialect={}", self.running.url(), self.dialect);
        let locks = Registry::new().with(dlock_redis::DRIVER).connect(&url).await.expect("Redis is there");
        locks.with_defaults(LockOptions::new().ttl(TTL))
    }

    /// Waits until somebody listens for a lock.
    async fn waiters(&self, name: &str) {
        let mut raw = raw(self.running.url()).await;
        until(async || {
            let asked = words(&format!("PUBSUB CHANNELS *{name}*"));
            let channels: Vec<String> = asked.query_async(&mut raw).await.expect("an answer");
            !channels.is_empty()
        })
        .await;
    }

    /// Waits until that many claims queue for a fair lock.
    async fn queued(&self, name: &str, count: usize) {
        let mut raw = raw(self.running.url()).await;
        until(async || {
            let asked = words(&format!("LLEN redisson_lock_queue:{{{name}}}"));
            asked.query_async::<usize>(&mut raw).await.expect("an answer") >= count
        })
        .await;
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
