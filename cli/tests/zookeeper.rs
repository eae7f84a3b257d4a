//! The command `dlock` on ZooKeeper.
#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "the tests start processes, not tasks")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "cli/failover.rs"]
mod failover;
#[path = "cli/partition.rs"]
mod partition;
#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "cli/place.rs"]
mod place;
#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "cli/server.rs"]
mod server;

use std::{process::Command, time::Duration};

use dlock_testbed::{
    peer::{Peer, PeerKind, Program},
    servers::{
        Running,
        zookeeper::{Flavour, start},
    },
};
use failover::{ClaimTimes, Contest};
use place::{Ended, Place, Started};
use serde_json::Value;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_command_runs_under_a_lock_that_is_free_when_it_ends,
        a_lock_is_broken_and_its_command_is_stopped,
        what_needs_a_hold_without_its_holder_is_refused_with_the_reason,
        what_curator_holds_is_refused_shown_listed_and_broken on 2 threads,
        a_command_that_is_cut_off_ends_before_the_next_one_begins on 2 threads,
        two_leaders_never_run_while_leaders_are_killed_stopped_and_cut_off on 2 threads,
    }])
}

struct OnZooKeeper {
    place: Place,
    running: Running,
}

impl OnZooKeeper {
    /// Returns `None` if ZooKeeper is not available and not required.
    async fn new() -> Option<Self> {
        let running = server::own(start(Flavour::Standalone).await)?;
        Some(Self { place: Place::new(), running })
    }

    fn dlock(&self, params: &str, verb: &str, args: &[&str]) -> Command {
        let url = format!("{}{params}", self.running.url());
        self.place.dlock([&[verb, "--store", &url], args].concat())
    }

    fn run(&self, verb: &str, args: &[&str]) -> Ended {
        Ended::of(&mut self.dlock("", verb, args))
    }
}

async fn a_command_runs_under_a_lock_that_is_free_when_it_ends() {
    let Some(zookeeper) = OnZooKeeper::new().await else { return };
    let text = "echo $DLOCK_TOKEN; read _; exit 7";
    let args = ["--who", "the nightly job", "job/a", "--", "sh", "-c", text];
    // The longest ttl of this session is 10 s, which is less than the usual default of 30 s.
    let run = Started::of(&mut zookeeper.dlock("?session=20s", "run", &args));
    assert!(run.first.parse::<u64>().is_ok(), "no token: `{}`", run.first);
    assert_eq!(zookeeper.run("try", &["job/a"]).status, 75, "the lock was granted twice");
    let state: Value = serde_json::from_str(&zookeeper.run("inspect", &["--json", "job/a"]).out).unwrap();
    assert_eq!(state["holders"][0]["who"], "the nightly job", "{state}");
    assert_eq!(state["holders"][0]["token"].to_string(), run.first, "{state}");
    assert!(state["holders"][0]["since"].as_f64().is_some_and(|since| since < 60.0), "{state}");
    let listed = zookeeper.run("ls", &["job/"]);
    assert!(listed.status == 0 && listed.out.contains("job/a"), "{listed:?}");
    let ended = run.let_go();
    assert_eq!((ended.status, &*ended.err), (7, ""));
    let free = zookeeper.run("inspect", &["job/a"]);
    assert_eq!((free.status, &*free.out), (1, "job/a is free\n"));
}

async fn a_lock_is_broken_and_its_command_is_stopped() {
    let Some(zookeeper) = OnZooKeeper::new().await else { return };
    let run = Started::of(&mut zookeeper.dlock("", "run", &["job/b", "--", "sh", "-c", "echo in; read _"]));
    let broken = zookeeper.run("unlock", &["--force", "job/b"]);
    assert_eq!(broken.status, 0, "{broken:?}");
    let ended = run.end();
    assert_eq!(ended.status, 74, "{ended:?}");
}

async fn what_needs_a_hold_without_its_holder_is_refused_with_the_reason() {
    let Some(zookeeper) = OnZooKeeper::new().await else { return };
    for (verb, args) in
        [("acquire", &["--for", "1h", "deploy"][..]), ("run", &["--at-least", "1h", "deploy", "--", "true"])]
    {
        let refused = zookeeper.run(verb, args);
        assert!(refused.status != 0 && refused.err.contains("session"), "{refused:?}");
    }
}

/// Starts Curator on the same server. Returns `None` if it is not available and not required.
fn curator(zookeeper: &OnZooKeeper) -> Option<Peer> {
    let built = dlock_conformance::or_ignore(Program::CURATOR.build())?;
    Some(built.start(zookeeper.running.url(), Duration::from_secs(20)))
}

async fn what_curator_holds_is_refused_shown_listed_and_broken() {
    let Some(zookeeper) = OnZooKeeper::new().await else { return };
    let Some(curator) = curator(&zookeeper) else { return };
    let [holder, waiter] = [curator.contender(), curator.contender()];
    let long = Duration::from_secs(60);
    holder.lock(PeerKind::Mutex, "stock", long).await.unwrap().unwrap();
    // The path of the peer's locks.
    let run = |verb, args: &[&str]| Ended::of(&mut zookeeper.dlock("/it", verb, args));
    assert_eq!(run("try", &["stock"]).status, 75, "the lock was granted twice");
    assert_eq!(
        run("run", &["--wait", "100ms", "stock", "--", "true"]).status,
        75,
        "the lock was granted twice"
    );

    let waits = tokio::spawn(async move { waiter.lock(PeerKind::Mutex, "stock", long).await });
    let state = loop {
        let state: Value = serde_json::from_str(&run("inspect", &["--json", "stock"]).out).unwrap();
        if state["queue"].as_array().is_some_and(|queue| !queue.is_empty()) {
            break state;
        }
    };
    for contender in [&state["holders"][0], &state["queue"][0]] {
        // Curator writes the address of its host into its nodes.
        assert!(contender["who"].as_str().is_some_and(|who| who.contains('.')), "{state}");
        assert!(contender["since"].as_f64().is_some_and(|since| since < 60.0), "{state}");
        assert!(contender["id"].as_str().is_some_and(|id| id.contains("-lock-")), "{state}");
    }
    let listed = run("ls", &[]);
    assert!(listed.status == 0 && listed.out.contains("stock"), "{listed:?}");

    assert_eq!(run("unlock", &["--force", "stock"]).status, 0);
    assert!(waits.await.unwrap().unwrap().is_some(), "Curator's waiter did not get the lock");
    assert_eq!(run("unlock", &["--force", "stock"]).status, 0);
    let ran = run("run", &["stock", "--", "sh", "-c", "exit 7"]);
    assert_eq!((ran.status, &*ran.err), (7, ""));
    assert_eq!(run("inspect", &["stock"]).status, 1, "the lock is not free");
}

async fn a_command_that_is_cut_off_ends_before_the_next_one_begins() {
    let Some(on) = OnZooKeeper::new().await else { return };
    let server = on.running.servers()[0].address();
    partition::the_command_ends_before_the_next_one_begins(
        &on.place,
        server,
        &format!("{}?session=20s", on.running.url()),
        &[],
    )
    .await;
}

async fn two_leaders_never_run_while_leaders_are_killed_stopped_and_cut_off() {
    let Some(on) = OnZooKeeper::new().await else { return };
    let server = on.running.servers()[0].address();
    let times = ClaimTimes { ttl: Duration::from_secs(3), limit: Duration::from_secs(6) };
    let store = format!("{}?session=6s", on.running.url());
    Contest::on_server(&on.place, server, &store, times).await.run();
}
