//! The command `dlock` on PostgreSQL, with the queue in a table.
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

use std::process::Command;

use dlock_testbed::servers::{
    Running,
    postgres::{Flavour, start},
};
use failover::{ClaimTimes, Contest};
use place::{Ended, Place, Started};

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_command_runs_under_a_lock_that_is_free_when_it_ends,
        a_ticket_outlives_its_process,
        a_command_that_is_cut_off_ends_before_the_next_one_begins on 2 threads,
        two_leaders_never_run_while_leaders_are_killed_stopped_and_cut_off on 2 threads,
    }])
}

struct OnPostgres {
    place: Place,
    running: Running,
}

impl OnPostgres {
    /// Returns `None` if PostgreSQL is not available and not required.
    async fn new() -> Option<Self> {
        let running = server::own(start(Flavour::Standalone).await)?;
        Some(Self { place: Place::new(), running })
    }

    fn dlock(&self, verb: &str, args: &[&str]) -> Command {
        self.place.dlock([&[verb, "--store", self.running.url()], args].concat())
    }

    fn run(&self, verb: &str, args: &[&str]) -> Ended {
        Ended::of(&mut self.dlock(verb, args))
    }

    /// Returns the address of the server, for a relay.
    fn address(&self) -> std::net::SocketAddr {
        self.running.servers()[0].address()
    }
}

async fn a_command_runs_under_a_lock_that_is_free_when_it_ends() {
    let Some(postgres) = OnPostgres::new().await else { return };
    let run = Started::of(&mut postgres.dlock("run", &["job/a", "-c", "echo $DLOCK_TOKEN; read _; exit 7"]));
    assert!(run.first.parse::<u64>().is_ok(), "no token: `{}`", run.first);
    assert_eq!(postgres.run("try", &["job/a"]).status, 75, "the lock was granted twice");
    place::until("the label of the holder is shown", || {
        postgres.run("ls", &["job/"]).out.contains("dlock run job/a")
    });
    let ended = run.let_go();
    assert_eq!((ended.status, &*ended.err), (7, ""));
    let free = postgres.run("inspect", &["job/a"]);
    assert_eq!((free.status, &*free.out), (1, "job/a is free\n"));
}

async fn a_ticket_outlives_its_process() {
    let Some(postgres) = OnPostgres::new().await else { return };
    let ticket = postgres.run("acquire", &["--for", "10m", "deploy"]);
    assert_eq!(ticket.status, 0, "{}", ticket.err);
    let ticket = ticket.out.trim();
    assert_eq!(postgres.run("try", &["deploy"]).status, 75, "the lock was granted twice");
    assert_eq!(postgres.run("run", &["--ticket", ticket, "deploy", "--", "true"]).status, 0);
    assert_eq!(postgres.run("try", &["deploy"]).status, 0);
}

async fn a_command_that_is_cut_off_ends_before_the_next_one_begins() {
    let Some(on) = OnPostgres::new().await else { return };
    let (server, store) = (on.address(), on.running.url());
    partition::the_command_ends_before_the_next_one_begins(&on.place, server, store, &["--ttl", "9s"]).await;
}

async fn two_leaders_never_run_while_leaders_are_killed_stopped_and_cut_off() {
    let Some(on) = OnPostgres::new().await else { return };
    let (server, store) = (on.address(), on.running.url());
    Contest::on_server(&on.place, server, store, ClaimTimes::WITHOUT_SESSION).await.run();
}
