//! The suite, on every flavour of Redis and Valkey. `cargo test -p dlock-redis --test conformance cluster` runs the cases with that
//! word in their names. `redis::` selects those of a single Redis server.

#[path = "../common/mod.rs"]
mod common;
mod one;
mod redlock;

use std::{alloc::System, process::ExitCode};

use cap::Cap;
use dlock_conformance::{
    Suite, run_suites,
    stores::redis::{
        Brand::{self, Redis, Redis5, Redis6, Valkey},
        Flavour::{self, Cluster, Sentinel, Standalone, Tls},
    },
};

/// Counts bytes for the case that looks for leaks.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

fn main() -> ExitCode {
    run_suites([
        suite("redis", Redis, Standalone, ""),
        suite("plain_dialect", Redis, Standalone, "dialect=plain"),
        suite("tls", Redis, Tls, ""),
        suite("sentinel", Redis, Sentinel, ""),
        suite("cluster", Redis, Cluster, ""),
        // The oldest versions that the README promises.
        suite("redis5", Redis5, Standalone, ""),
        suite("redis6_cluster", Redis6, Cluster, ""),
        suite("valkey", Valkey, Standalone, ""),
        Suite::new("redlock_of_3", redlock::Majority::of(3)),
        Suite::new("redlock_of_5", redlock::Majority::of(5)),
    ])
}

fn suite(name: &'static str, brand: Brand, flavour: Flavour, params: &'static str) -> Suite {
    Suite::new(name, one::Redis::start(brand, flavour, params))
}
