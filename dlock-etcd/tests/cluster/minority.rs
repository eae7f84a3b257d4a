//! Tests of one of three members that fails, with default settings.

use std::net::SocketAddr;

use dlock_conformance::{ignore, or_ignore};
use dlock_core::{Result, driver::Store};
use dlock_testbed::{
    minority::{Fault, costs_no_lock},
    servers::{
        check_own_disks,
        etcd::{Flavour, start, start_with_disks},
    },
};
use futures_util::future::join_all;

use crate::common::{connect, leader};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_member_behind_a_faulty_network_costs_no_lock on 2 threads,
        a_leader_that_is_stopped_costs_no_lock on 2 threads,
        a_leader_whose_disk_hangs_costs_no_lock on 2 threads,
    }
}

async fn connect_at(members: Vec<SocketAddr>) -> Result<Store> {
    let members: Vec<_> = members.iter().map(ToString::to_string).collect();
    connect(&format!("etcd://{}", members.join(","))).await
}

async fn a_member_behind_a_faulty_network_costs_no_lock() {
    let Some(running) = or_ignore(start(Flavour::Cluster).await) else { return };
    join_all(Fault::OF_NETWORK.map(|fault| costs_no_lock(running.servers(), &[], fault, connect_at))).await;
}

async fn a_leader_that_is_stopped_costs_no_lock() {
    let Some(running) = or_ignore(start(Flavour::Cluster).await) else { return };
    let leader = leader(&running).await;
    costs_no_lock(running.servers(), &[leader], Fault::Stopped, connect_at).await;
}

async fn a_leader_whose_disk_hangs_costs_no_lock() {
    if let Err(reason) = check_own_disks() {
        return ignore(&reason);
    }
    let Some(running) = or_ignore(start_with_disks().await) else { return };
    let leader = leader(&running).await;
    costs_no_lock(running.servers(), &[leader], Fault::DiskHung, connect_at).await;
}
