//! One of three servers that fails, with default settings.

mod common;

use std::net::SocketAddr;

use common::{connect, some, store};
use dlock_conformance::{ignore, or_ignore};
use dlock_core::{Result, driver::Store};
use dlock_testbed::{
    minority::{Fault, costs_no_lock},
    servers::{
        Running, Server, check_own_disks,
        zookeeper::{self, Flavour},
    },
};
use futures_util::future::join_all;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_server_behind_a_faulty_network_costs_no_lock on 2 threads,
        a_follower_that_is_stopped_costs_no_lock on 2 threads,
        a_leader_whose_disk_hangs_costs_no_lock on 2 threads,
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

/// While the leader is suspended, no client can connect until the others have elected a new one,
/// which takes some seconds. `ensemble` tests that case.
async fn a_follower_that_is_stopped_costs_no_lock() {
    let Some(running) = store(Flavour::Ensemble).await else { return };
    let [follower, _] = some(&running, "Mode: follower").await;
    costs_no_lock(running.servers(), &[index_of(&running, &follower)], Fault::Stopped, connect_at).await;
}

async fn a_leader_whose_disk_hangs_costs_no_lock() {
    if let Err(reason) = check_own_disks() {
        return ignore(&reason);
    }
    let Some(running) = or_ignore(zookeeper::start_with_disks().await) else { return };
    let [leader] = some(&running, "Mode: leader").await;
    costs_no_lock(running.servers(), &[index_of(&running, &leader)], Fault::DiskHung, connect_at).await;
}

fn index_of(running: &Running, server: &Server) -> usize {
    let is_it = |other: &Server| other.address() == server.address();
    running.servers().iter().position(is_it).expect("it is one of the servers")
}
