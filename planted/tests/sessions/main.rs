//! A store with sessions, in memory, passes the suite. Each client has one session, as on ZooKeeper or etcd: the store forgets
//! a client, not a claim.

mod client;
mod fixture;
mod server;

use std::process::ExitCode;

use client::Bug;
use fixture::Sessions;

fn main() -> ExitCode {
    dlock_conformance::run(Ok(Sessions(Bug::None)))
}
