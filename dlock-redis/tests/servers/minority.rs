//! Tests of a RedLock with a minority of members that fail, with default settings.

use std::net::SocketAddr;

use dlock_core::{Result, driver::Store};
use dlock_testbed::minority::{Fault, costs_no_lock};
use futures_util::future::join_all;

use crate::common::{connect, nodes::Nodes};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        one_of_three_members_behind_a_faulty_network_costs_no_lock on 2 threads,
        two_of_five_members_behind_a_faulty_network_cost_no_lock on 2 threads,
        two_of_five_members_that_are_stopped_cost_no_lock on 2 threads,
    }
}

async fn connect_at(members: Vec<SocketAddr>) -> Result<Store> {
    let members: Vec<_> = members.iter().map(ToString::to_string).collect();
    connect(&format!("redis+redlock://{}", members.join(","))).await
}

async fn all_faults_of_the_network(count: usize) {
    let Some(nodes) = dlock_conformance::or_ignore(Nodes::new(count, "").await) else { return };
    let servers = nodes.servers();
    join_all(Fault::OF_NETWORK.map(|fault| costs_no_lock(&servers, &[], fault, connect_at))).await;
}

async fn one_of_three_members_behind_a_faulty_network_costs_no_lock() {
    all_faults_of_the_network(3).await;
}

async fn two_of_five_members_behind_a_faulty_network_cost_no_lock() {
    all_faults_of_the_network(5).await;
}

async fn two_of_five_members_that_are_stopped_cost_no_lock() {
    let Some(nodes) = dlock_conformance::or_ignore(Nodes::new(5, "").await) else { return };
    costs_no_lock(&nodes.servers(), &[], Fault::Stopped, connect_at).await;
}
