//! The suite on a store with sessions, in memory. Each client has one session, as on ZooKeeper and
//! etcd. The store deletes the claims of a client whose session ends, and knows no ttl of a single
//! claim.

mod client;
mod fixture;
mod server;

use std::process::ExitCode;

use client::Bug;
use fixture::Sessions;

fn main() -> ExitCode {
    dlock_conformance::run(Ok(Sessions(Bug::None)))
}
