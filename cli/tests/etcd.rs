//! The command `dlock` on etcd, together with `etcdctl lock`.
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

use std::{
    process::Command,
    time::{Duration, Instant},
};

use dlock_testbed::servers::{
    Running,
    etcd::{Flavour, start},
};
use failover::{ClaimTimes, Contest};
use place::{Ended, Place, Started};
use serde_json::Value;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_command_runs_under_a_lock_that_is_free_when_it_ends,
        a_ticket_outlives_its_process,
        what_etcdctl_holds_is_shown_waited_for_and_broken,
        a_lock_is_broken_and_its_command_is_stopped,
        names_with_slashes_and_dots_are_locks_of_their_own,
        a_cluster_without_a_majority_is_69_in_bounded_time,
        a_command_that_is_cut_off_ends_before_the_next_one_begins on 2 threads,
        two_leaders_never_run_while_leaders_are_killed_stopped_and_cut_off on 2 threads,
    }])
}

struct OnEtcd {
    place: Place,
    running: Running,
}

impl OnEtcd {
    /// Returns `None` if etcd is not available and not required.
    async fn new() -> Option<Self> {
        Self::on(Flavour::Standalone).await
    }

    async fn on(flavour: Flavour) -> Option<Self> {
        let running = server::own(start(flavour).await)?;
        Some(Self { place: Place::new(), running })
    }

    fn dlock(&self, verb: &str, args: &[&str]) -> Command {
        self.place.dlock([&[verb, "--store", self.running.url()], args].concat())
    }

    fn run(&self, verb: &str, args: &[&str]) -> Ended {
        Ended::of(&mut self.dlock(verb, args))
    }

    fn etcdctl(&self, args: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        let endpoint = self.running.servers()[0].address().to_string();
        command.env("ETCDCTL_API", "3").args(["--endpoints", &endpoint]).args(args);
        command
    }

    /// Returns all keys of the cluster. `None` if `etcdctl` is not installed.
    fn keys(&self) -> Option<String> {
        let output = self.etcdctl(&["get", "", "--prefix", "--keys-only"]).output().ok()?;
        Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }
}

async fn a_command_runs_under_a_lock_that_is_free_when_it_ends() {
    let Some(etcd) = OnEtcd::new().await else { return };
    let run = Started::of(&mut etcd.dlock("run", &["job/a", "-c", "echo $DLOCK_TOKEN; read _; exit 7"]));
    assert!(run.first.parse::<u64>().is_ok(), "no token: `{}`", run.first);
    assert_eq!(etcd.run("try", &["job/a"]).status, 75, "the lock was granted twice");
    let all: Value = serde_json::from_str(&etcd.run("ls", &["--json", "job/"]).out).unwrap();
    assert_eq!(all["locks"][0]["name"], "job/a", "{all}");
    assert!(all["locks"][0]["holders"][0]["who"].as_str().unwrap().contains("dlock run job/a"), "{all}");
    let ended = run.let_go();
    assert_eq!((ended.status, &*ended.err), (7, ""));
    let free = etcd.run("inspect", &["job/a"]);
    assert_eq!((free.status, &*free.out), (1, "job/a is free\n"));
    assert!(etcd.keys().is_none_or(|keys| keys.is_empty()), "a key is left: {:?}", etcd.keys());
}

async fn a_ticket_outlives_its_process() {
    let Some(etcd) = OnEtcd::new().await else { return };
    let ticket = etcd.run("acquire", &["--for", "10m", "deploy"]);
    assert_eq!(ticket.status, 0, "{}", ticket.err);
    let ticket = ticket.out.trim();
    assert_eq!(etcd.run("try", &["deploy"]).status, 75, "the lock was granted twice");
    assert_eq!(etcd.run("run", &["--ticket", ticket, "deploy", "--", "true"]).status, 0);
    assert_eq!(etcd.run("try", &["deploy"]).status, 0);
}

async fn what_etcdctl_holds_is_shown_waited_for_and_broken() {
    let Some(etcd) = OnEtcd::new().await else { return };
    if Command::new("etcdctl").arg("version").output().is_err() {
        return dlock_conformance::ignore("there is no etcdctl");
    }
    let held = Started::of(&mut etcd.etcdctl(&["lock", "stock"]));
    assert!(held.first.starts_with("stock/"), "{}", held.first);
    assert_eq!(etcd.run("run", &["-n", "stock", "--", "true"]).status, 75, "the lock was granted twice");
    let state: Value = serde_json::from_str(&etcd.run("inspect", &["--json", "stock"]).out).unwrap();
    assert_eq!(state["holders"][0]["kind"], "mutex", "{state}");
    assert!(etcd.run("ls", &[]).out.contains("stock"));
    assert_eq!(etcd.run("unlock", &["--force", "stock"]).status, 0);
    assert_eq!(
        etcd.run("run", &["-n", "stock", "--", "true"]).status,
        0,
        "the lock is not free after unlock"
    );
    drop(held);
    // The other direction: etcdctl waits for a lock that dlock holds.
    let run = Started::of(&mut etcd.dlock("run", &["stock", "-c", "echo held; read _"]));
    let etcdctl =
        etcd.etcdctl(&["lock", "stock", "echo", "mine"]).stdout(std::process::Stdio::piped()).spawn();
    let etcdctl = etcdctl.unwrap();
    run.let_go();
    let output = etcdctl.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "mine\n");
}

async fn a_lock_is_broken_and_its_command_is_stopped() {
    let Some(etcd) = OnEtcd::new().await else { return };
    let run = Started::of(&mut etcd.dlock("run", &["job/b", "--", "sh", "-c", "echo in; read _"]));
    assert_eq!(etcd.run("unlock", &["--force", "job/b"]).status, 0);
    let ended = run.end();
    assert_eq!(ended.status, 74, "{ended:?}");
    assert_eq!(etcd.run("try", &["job/b"]).status, 0, "the lock is not free after unlock");
}

async fn names_with_slashes_and_dots_are_locks_of_their_own() {
    let Some(etcd) = OnEtcd::new().await else { return };
    let run = Started::of(&mut etcd.dlock("run", &["a/../b", "--", "sh", "-c", "echo in; read _; exit 0"]));
    for other in ["a", "b", "a/..", "..", "a/../b/c"] {
        assert_eq!(etcd.run("try", &[other]).status, 0, "`a/../b` blocks `{other}`");
    }
    assert_eq!(etcd.run("try", &["a/../b"]).status, 75, "the lock was granted twice");
    assert!(etcd.run("ls", &[]).out.contains("a/../b"));
    assert_eq!(run.let_go().status, 0);
}

async fn a_cluster_without_a_majority_is_69_in_bounded_time() {
    let Some(etcd) = OnEtcd::on(Flavour::Cluster).await else { return };
    for member in &etcd.running.servers()[..2] {
        member.pause().await.unwrap();
    }
    let run = ["-n", "x", "--", "true"];
    for (verb, args) in [("run", &run[..]), ("try", &["x"]), ("ls", &[]), ("inspect", &["x"])] {
        let began = Instant::now();
        let ended = etcd.run(verb, args);
        assert_eq!(ended.status, 69, "{verb}: {ended:?}");
        assert!(began.elapsed() < Duration::from_secs(30), "{verb} took {:?}", began.elapsed());
    }
}

async fn a_command_that_is_cut_off_ends_before_the_next_one_begins() {
    let Some(on) = OnEtcd::new().await else { return };
    let server = on.running.servers()[0].address();
    partition::the_command_ends_before_the_next_one_begins(
        &on.place,
        server,
        &format!("{}?session=12s", on.running.url()),
        &[],
    )
    .await;
}

async fn two_leaders_never_run_while_leaders_are_killed_stopped_and_cut_off() {
    let Some(on) = OnEtcd::new().await else { return };
    let server = on.running.servers()[0].address();
    let times = ClaimTimes { ttl: Duration::from_secs(4), limit: Duration::from_secs(5) };
    let store = format!("{}?session=5s", on.running.url());
    Contest::on_server(&on.place, server, &store, times).await.run();
}
