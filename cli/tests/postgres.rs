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
    postgres::{Flavour, Version, start},
};
use failover::{ClaimTimes, Contest};
use place::{Ended, Place, Started};
use sqlx::{Connection as _, Executor as _, PgConnection};

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_command_runs_under_a_lock_that_is_free_when_it_ends,
        a_ticket_outlives_its_process,
        init_creates_the_schema_for_users_that_may_not,
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
        let running = server::own(start(Version::V17, Flavour::Standalone).await)?;
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

async fn init_creates_the_schema_for_users_that_may_not() {
    let Some(on) = OnPostgres::new().await else { return };
    let mut admin = PgConnection::connect(on.running.url()).await.expect("a session");
    admin.execute("CREATE ROLE app LOGIN PASSWORD 'app'").await.expect("created");
    let (before, address) = on.running.url().split_once('@').expect("a login");
    let as_app = |args: &[&str]| {
        on.place.run([&["run", "--store", &format!("postgres://app:app@{address}")], args].concat())
    };
    let refused = as_app(&["job", "--", "true"]);
    assert_eq!(refused.status, 78, "{}", refused.err);
    assert!(refused.err.contains("dlock init"), "{}", refused.err);

    assert_eq!(on.place.run(["init", "-g", "staff", on.running.url()]).status, 64);
    let created = on.place.run(["init", on.running.url()]);
    assert_eq!(created.status, 0, "{}", created.err);
    assert!(created.out.starts_with("postgres://127.0.0.1:"), "{}", created.out);
    assert!(created.out.ends_with("[dlock]\n"), "{}", created.out);
    let login = before.trim_start_matches("postgres://");
    assert!(!created.out.contains(login), "the login is shown: {}", created.out);
    assert_eq!(on.place.run(["init", on.running.url()]).out, created.out, "a second time");

    let rights = "GRANT USAGE ON SCHEMA dlock TO app; \
                  GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dlock TO app";
    admin.execute(rights).await.expect("granted");
    let ended = as_app(&["job", "--", "true"]);
    assert_eq!(ended.status, 0, "{}", ended.err);
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
