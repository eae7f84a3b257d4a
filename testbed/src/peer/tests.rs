//! Tests of the harness with correct and faulty peers, each a few lines of shell.

use std::{process::Command, time::Duration};

use dlock_conformance::history::{Rule, Violation};
use dlock_core::{Locks, Token};

use super::{Contest, Fleet, Peer, PeerKind};

const LONG: Duration = Duration::from_secs(60);

fn peer(script: &str) -> Peer {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    Peer::start("shell", command)
}

#[tokio::test]
async fn a_reply_goes_to_the_contender_of_its_request() {
    let peer = peer(
        "echo ready mutex fenced; read a; read b; echo noise; echo \"${b%% *} held 7\"; echo \"${a%% *} busy\"; read c",
    );
    assert!(peer.can(PeerKind::Fenced) && !peer.can(PeerKind::Fair));
    let (one, other) = (peer.contender(), peer.contender());
    let (busy, held) =
        tokio::join!(one.lock(PeerKind::Fenced, "x", LONG), other.lock(PeerKind::Fenced, "x", LONG));
    assert_eq!(busy.unwrap(), None);
    assert_eq!(held.unwrap().unwrap().token, Token::new(7));
}

#[tokio::test]
async fn a_peer_that_ends_is_an_error_at_once() {
    let peer = peer("echo ready mutex; read a");
    let (one, other) = (peer.contender(), peer.contender());
    one.lock(PeerKind::Mutex, "x", LONG).await.expect_err("the peer ended");
    other.try_lock(PeerKind::Mutex, "x").await.expect_err("the peer has ended");
}

#[tokio::test]
async fn an_error_of_a_peer_is_reported() {
    let peer = peer("echo ready mutex; read n rest; echo \"$n error no such kind\"; read a");
    let error = peer
        .contender()
        .try_lock(PeerKind::Fair, "x")
        .await
        .expect_err("the peer replied with an error")
        .to_string();
    assert_eq!(error, "shell #1, asked for `try fair x`, replied `error no such kind`");
}

#[tokio::test]
async fn every_figure_that_a_peer_measures_is_returned() {
    let peer = peer(
        "echo ready mutex; while read n verb rest; do
             case $verb in time) echo \"$n took 1500 2\" ;; handoff) echo \"$n took\" ;; *) echo \"$n took 1 x\" ;; esac
         done",
    );
    let one = peer.contender();
    let durations = one.time(PeerKind::Mutex, "x", 2).await.unwrap();
    assert_eq!(durations, [1500, 2].map(Duration::from_nanos));
    assert_eq!(one.handoff(PeerKind::Mutex, "x", 0, LONG).await.unwrap().len(), 0);
    let contest = Contest { clients: 1, tasks: 2, turns: 1, hold: Duration::from_millis(1) };
    let error =
        one.contend(PeerKind::Mutex, "x", &contest).await.expect_err("`x` is not a number").to_string();
    assert_eq!(error, "shell #1, asked for `contend mutex x 1 2 1 1`, replied `took 1 x`");
}

#[tokio::test]
async fn a_fleet_catches_a_peer_that_excludes_no_contender() {
    let peer = peer(
        "echo ready mutex; while read n verb rest; do
             case $verb in unlock) echo \"$n free\" ;; *) echo \"$n held\" ;; esac
         done",
    );
    let locks = [Locks::memory()];
    let kinds = &[PeerKind::Mutex];
    let fleet =
        Fleet { locks: &locks, peer: &peer, name: "x", kinds, contenders: 2, acquisitions: 50, ttl: LONG };
    let report = fleet.run().await;
    let is_expected = |violation: &Violation| violation.rule == Rule::Exclusive;
    assert!(report.violations.iter().any(is_expected), "{report}: {:?}", report.violations);
    assert_eq!(report.counts.grants, 200);
}
