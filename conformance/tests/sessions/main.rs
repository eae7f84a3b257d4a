//! A store that forgets clients, not claims, passes the suite: one session a client, as on ZooKeeper or etcd, in memory.

mod client;
mod fixture;
mod server;

use std::process::ExitCode;

use client::Bug;
use fixture::Sessions;

fn main() -> ExitCode {
    dlock_conformance::run(Ok(Sessions(Bug::None)))
}
