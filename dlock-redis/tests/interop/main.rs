//! Tests of dlock beside Redisson, redis-py and redsync, on one Redis server.
//!
//! `DLOCK_FLEET` is the number of acquisitions of each contender of a mixed fleet, by default 50.
//! `DLOCK_REDISSON` is a list of further versions of Redisson, separated by commas.

mod cases;
#[path = "../common/mod.rs"]
mod common;

use std::{process::ExitCode, sync::Arc, time::Duration};

use async_trait::async_trait;
use common::{parse_command, raw};
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
    },
    servers::redis::{Brand, Flavour, start},
};
use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Runtime;

use PeerKind::{Fair, Fenced, Multi, Mutex, Read, Redlock, Write};

/// Ttl on both sides. A waiter that waits for the end of the ttl was not woken.
const TTL: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let runtime = Runtime::new().expect("a runtime can be built");
    let redis = runtime.block_on(start(Brand::Redis, Flavour::Standalone));
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
        let store = redis.as_ref().map(|redis| (redis.url(), Redis { url: redis.url().to_owned(), dialect }));
        match Border::new(program, store.map_err(Clone::clone), TTL) {
            Ok(border) => trials(&border),
            Err(unreachable) => vec![unreachable.trial(&program.name())],
        }
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// A function that returns the cases of a peer.
type Table = fn(&Arc<Border<Redis>>) -> Vec<Trial>;

fn redisson(border: &Arc<Border<Redis>>) -> Vec<Trial> {
    border_trials! { border;
        they_exclude_each_other(Mutex);
        they_exclude_each_other(Fair);
        they_exclude_each_other(Write);
        readers_of_both_share_and_keep_writers_of_both_out();
        each_wakes_the_other(Mutex);
        each_wakes_the_other(Fair);
        each_wakes_the_other(Read);
        each_wakes_the_other(Write);
        cases::whoever_asks_while_the_other_lets_go_is_woken(Mutex);
        cases::whoever_asks_while_the_other_lets_go_is_woken(Fair);
        cases::whoever_asks_while_the_other_lets_go_is_woken(Read);
        cases::whoever_asks_while_the_other_lets_go_is_woken(Write);
        cases::the_peer_is_excluded_while_permits_are_held(Mutex);
        cases::the_peer_is_excluded_while_permits_are_held(Fair);
        cases::the_peer_is_excluded_while_permits_are_held(Read);
        cases::the_peer_is_excluded_while_permits_are_held(Write);
        cases::a_downgrade_admits_readers_of_the_peer();
        cases::both_queue_in_order_of_arrival();
        cases::each_reports_what_the_other_holds(Mutex);
        cases::each_reports_what_the_other_holds(Fair);
        cases::each_reports_what_the_other_holds(Read);
        cases::each_reports_what_the_other_holds(Write);
        a_lock_that_dlock_breaks_is_its_waiters(Mutex);
        a_lock_that_dlock_breaks_is_its_waiters(Fair);
        a_lock_that_dlock_breaks_is_its_waiters(Write);
        cases::a_detached_hold_keeps_the_peer_out_until_it_is_released(Mutex);
        cases::a_detached_hold_keeps_the_peer_out_until_it_is_released(Fair);
        cases::a_detached_hold_keeps_the_peer_out_until_it_is_released(Read);
        cases::a_detached_hold_keeps_the_peer_out_until_it_is_released(Write);
        cases::a_detached_hold_ends_for_the_peer_after_its_time(Mutex);
        cases::a_detached_hold_ends_for_the_peer_after_its_time(Read);
        cases::readers_of_the_peer_overtake_a_waiting_writer();
        cases::readers_of_the_peer_do_not_shorten_a_detached_reader();
        cases::a_reader_of_the_peer_that_dies_may_end_a_detached_reader();
        what_it_held_when_it_was_killed_is_free_after_its_ttl();
        a_mixed_fleet_loses_nothing(&[Mutex]);
        a_mixed_fleet_loses_nothing(&[Fair]);
        a_mixed_fleet_loses_nothing(&[Read, Write]);
        cases::several_read_locks_of_one_thread_keep_writers_out();
        cases::several_locks_as_one_exclude_each_other(Multi);
        cases::several_locks_as_one_exclude_each_other(Redlock);
    }
}

fn redisson_4(border: &Arc<Border<Redis>>) -> Vec<Trial> {
    let fenced = border_trials! { border;
        they_exclude_each_other(Fenced);
        each_wakes_the_other(Fenced);
        cases::tokens_grow_across_the_border();
        cases::a_counter_whose_key_was_deleted_begins_at_1();
        cases::a_counter_that_both_use_does_not_end("");
        cases::a_counter_that_both_use_does_not_end("token_ttl=never");
        a_mixed_fleet_loses_nothing(&[Fenced]);
    };
    redisson(border).into_iter().chain(fenced).collect()
}

fn plain(border: &Arc<Border<Redis>>) -> Vec<Trial> {
    border_trials! { border;
        they_exclude_each_other(Mutex);
        a_mixed_fleet_loses_nothing(&[Mutex]);
    }
}

/// dlock on a Redis server.
struct Redis {
    url: String,
    /// The parameter `dialect` of its clients.
    dialect: &'static str,
}

#[async_trait]
impl Side for Redis {
    fn ttl(&self) -> Duration {
        TTL
    }

    async fn locks(&self) -> Locks {
        let url = format!("{}?dialect={}", self.url, self.dialect);
        let locks = Registry::new().with(dlock_redis::DRIVER).connect(&url).await.expect("Redis is running");
        locks.with_defaults(LockOptions::new().ttl(TTL))
    }

    /// Waits until a client subscribes to the lock's channel.
    async fn until_somebody_waits(&self, _: &Locks, name: &str) {
        let (mut raw, channels) = (raw(&self.url).await, parse_command(&format!("PUBSUB CHANNELS *{name}*")));
        while channels.query_async::<Vec<String>>(&mut raw).await.expect("a reply").is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Redis {
    /// Waits until `count` claims are in the queue of a fair lock.
    async fn queued(&self, name: &str, count: usize) {
        let mut raw = raw(&self.url).await;
        until(async || {
            let length = parse_command(&format!("LLEN redisson_lock_queue:{{{name}}}"));
            length.query_async::<usize>(&mut raw).await.expect("a reply") >= count
        })
        .await;
    }
}

async fn until(mut condition: impl AsyncFnMut() -> bool) {
    while !condition().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
