//! One of three servers that fails, with default settings.

mod common;

use std::net::SocketAddr;

use common::{connect, some, store};
use dlock_core::{Result, driver::Store};
use dlock_testbed::{
    minority::{Fault, costs_no_lock},
    servers::{Server, zookeeper::Flavour},
};
use futures_util::future::join_all;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_server_behind_a_faulty_network_costs_no_lock on 2 threads,
        a_follower_that_is_stopped_costs_no_lock on 2 threads,
    }])
}

async fn connect_at(servers: Vec<SocketAddr>) -> Result<Store> {
    let servers: Vec<_> = servers.iter().map(ToString::to_string).collect();
    connect(&format!("zk://{}/test", servers.join(","))).await
}

async fn a_server_behind_a_faulty_network_costs_no_lock() {
    let Some(running) = store(Flavour::Ensemble).await else { return };
    join_all(Fault::OF_NETWORK.map(|fault| costs_no_lock(running.servers(), &[], fault, connect_at))).await;
}

/// While the leader is stopped, no client can connect until the others have elected a new one, which
/// takes some seconds. `ensemble` tests that case.
async fn a_follower_that_is_stopped_costs_no_lock() {
    let Some(running) = store(Flavour::Ensemble).await else { return };
    let [follower, _] = some(&running, "Mode: follower").await;
    let is_follower = |server: &Server| server.address() == follower.address();
    let victim = running.servers().iter().position(is_follower).expect("it is one of the servers");
    costs_no_lock(running.servers(), &[victim], Fault::Stopped, connect_at).await;
}
