//! The suite, on every flavour of Redis and Valkey. `cargo test -p dlock-redis --test conformance
//! cluster` runs the cases with that word in their names. `redis::` selects the cases of a single
//! Redis server.

#[path = "../common/mod.rs"]
mod common;
mod one;
mod redlock;

use std::{alloc::System, process::ExitCode};

use cap::Cap;
use dlock_conformance::{Row, Suite, run_suites, wrap::Habit::Flaky};
use dlock_testbed::servers::redis::{
    Brand::{self, Redis, Redis5, Redis6, Valkey},
    Flavour::{self, Cluster, Sentinel, Standalone, Tls},
};

/// Counts the allocated bytes, for the case that detects memory growth.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// A single Redis server and the plain dialect run in all rows. The other flavours have the same
/// claims with other connections, so wrappers reveal little more about them. Lost replies are
/// repeated where replies arrive in another way, and where an older server needs other scripts.
fn main() -> ExitCode {
    let plain = [Row::Plain];
    let and_lost_replies = [Row::Plain, Row::Habit(Flaky)];
    run_suites([
        suite("redis", Redis, Standalone, ""),
        suite("plain_dialect", Redis, Standalone, "dialect=plain"),
        suite("tls", Redis, Tls, "").in_rows(plain),
        suite("sentinel", Redis, Sentinel, "").in_rows(plain),
        suite("cluster", Redis, Cluster, "").in_rows(and_lost_replies),
        // The oldest versions that the README supports.
        suite("redis5", Redis5, Standalone, "").in_rows(and_lost_replies),
        suite("redis6_cluster", Redis6, Cluster, "").in_rows(plain),
        suite("valkey", Valkey, Standalone, "").in_rows(plain),
        // All rows of a majority, and of its members, run in memory.
        Suite::new("redlock_of_3", redlock::Majority::of(3)).in_rows(plain),
        Suite::new("redlock_of_5", redlock::Majority::of(5)).in_rows(plain),
    ])
}

fn suite(name: &'static str, brand: Brand, flavour: Flavour, params: &'static str) -> Suite {
    Suite::new(name, one::Redis::start(brand, flavour, params))
}
