//! Fleets of dlock and a peer on one lock.

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

/// The same on three members, of which the one that leads is killed every few seconds. Whoever asks meanwhile waits for another
/// leader, and a hand-off as well: a tenth of the ttl is time enough for that.
pub(crate) async fn a_mixed_fleet_loses_nothing_though_leaders_die(border: &Border<Etcd>) {
    const TTL: Duration = Duration::from_secs(120);
    let running = start(Flavour::Cluster).await.unwrap_or_else(|gone| panic!("{}", gone.reason));
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
    // Go's client may wait minutes for an answer to its first request, while the queue is empty: it sends the request to one member
    // that leads and dies after the other.
    let is_go = |one: &Violation| one.rule == Rule::Progress && one.what.starts_with(border.name());
    assert!(report.violations.iter().all(is_go), "{report}: {:?}", report.violations);
    tell(border, &format!("{kills} leaders killed: {report}; {:?}", report.violations));
    for locks in locks {
        locks.close().await;
    }
}

#[expect(clippy::print_stderr, reason = "a figure that somebody asked for")]
fn tell(border: &Border<Etcd>, report: &str) {
    eprintln!("{}: {report}", border.name());
}
