//! A fleet of contenders of dlock and of a peer on one lock.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use dlock_conformance::history::{Rule, Violation};
use dlock_core::Locks;
use dlock_testbed::{
    peer::{Border, Fleet, PeerKind::Fenced, Side as _},
    servers::etcd::{Flavour, start},
};
use tokio::time::sleep;

use crate::{
    Etcd,
    common::{connect, kill_leader, unique},
};

/// Runs the fleet on three members, and kills the leader every few seconds. Requests and hand-offs
/// during an election wait for the new leader. A tenth of the ttl is enough time for an election.
pub(crate) async fn a_mixed_fleet_loses_nothing_though_leaders_die(border: &Border<Etcd>) {
    const TTL: Duration = Duration::from_secs(120);
    let running =
        start(Flavour::Cluster).await.unwrap_or_else(|unreachable| panic!("{}", unreachable.reason));
    let url = format!("{}?session=150s&timeout=30s", running.url());
    let connect = async || Locks::new(connect(&url).await.expect("the server is running"));
    let (locks, peer) = ([connect().await, connect().await], border.start_at(running.url(), TTL));
    let (name, is_over, mut kills) = (unique(), AtomicBool::new(false), 0);
    let fleet = Fleet {
        locks: &locks,
        peer: &peer,
        name: &name,
        kinds: &[Fenced],
        contenders: 4,
        acquisitions: Fleet::acquisitions(border.side.acquisitions()),
        ttl: TTL,
    };
    let run = async {
        let report = fleet.run().await;
        is_over.store(true, Relaxed);
        report
    };
    let kill = async {
        while !is_over.load(Relaxed) {
            kill_leader(&running).await;
            kills += 1;
            sleep(Duration::from_secs(2)).await;
        }
    };
    let (report, ()) = tokio::join!(run, kill);
    // While the queue is empty, the Go client may wait minutes for the reply to its first request,
    // because it sends the request to one leader after the other, and each is killed.
    let is_of_go =
        |violation: &Violation| violation.rule == Rule::Progress && violation.what.starts_with(border.name());
    assert!(report.violations.iter().all(is_of_go), "{report}: {:?}", report.violations);
    print_report(border, &format!("{kills} leaders killed: {report}; {:?}", report.violations));
    for locks in locks {
        locks.close().await;
    }
}

#[expect(clippy::print_stderr, reason = "the test reports a measurement")]
fn print_report(border: &Border<Etcd>, report: &str) {
    eprintln!("{}: {report}", border.name());
}
