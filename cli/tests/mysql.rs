//! The command `dlock` on MariaDB, with the queue in a table. Also together with other programs that
//! use the server's named locks.
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
    mysql::{Brand, Flavour, start},
};
use failover::{ClaimTimes, Contest};
use place::{Ended, Place, Started};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, Row as _, mysql::MySqlConnection};

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_command_runs_under_a_lock_that_is_free_when_it_ends,
        a_ticket_outlives_its_process,
        init_creates_the_tables_for_users_that_may_not,
        what_get_lock_holds_is_shown_waited_for_and_broken,
        more_jobs_than_the_server_allows_connections_all_run,
        a_command_that_is_cut_off_ends_before_the_next_one_begins on 2 threads,
        two_leaders_never_run_while_leaders_are_killed_stopped_and_cut_off on 2 threads,
    }])
}

struct OnMariadb {
    place: Place,
    running: Running,
    /// URL of the store, with its mode.
    store: String,
}

impl OnMariadb {
    /// Returns `None` if MariaDB is not available and not required.
    async fn new(params: &str) -> Option<Self> {
        let running = server::own(start(Brand::Mariadb, Flavour::Standalone).await)?;
        let store = format!("{}{params}", running.url());
        Some(Self { place: Place::new(), running, store })
    }

    fn dlock(&self, verb: &str, args: &[&str]) -> Command {
        self.place.dlock([&[verb, "--store", &self.store], args].concat())
    }

    fn run(&self, verb: &str, args: &[&str]) -> Ended {
        Ended::of(&mut self.dlock(verb, args))
    }

    fn json(&self, verb: &str, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(verb, &[&["--json"], args].concat()).out).unwrap()
    }

    /// Returns a connection of another program.
    async fn other_program(&self) -> MySqlConnection {
        MySqlConnection::connect(self.running.url()).await.unwrap()
    }
}

async fn query(session: &mut MySqlConnection, sql: &str) -> i64 {
    let row = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_one(session).await.unwrap();
    row.try_get_unchecked(0).unwrap()
}

async fn a_command_runs_under_a_lock_that_is_free_when_it_ends() {
    for params in ["", "?mode=session"] {
        let Some(mariadb) = OnMariadb::new(params).await else { return };
        let run =
            Started::of(&mut mariadb.dlock("run", &["job/a", "-c", "echo $DLOCK_TOKEN; read _; exit 7"]));
        assert!(run.first.parse::<u64>().is_ok(), "no token: `{}`", run.first);
        assert_eq!(mariadb.run("try", &["job/a"]).status, 75, "the lock was granted twice");
        place::until("the label of the holder is shown", || {
            let all = mariadb.json("ls", &["job/"]);
            let who = all["locks"][0]["holders"][0]["who"].as_str().unwrap_or_default();
            all["locks"][0]["name"] == "job/a" && who.contains("dlock run job/a")
        });
        let ended = run.let_go();
        assert_eq!((ended.status, &*ended.err), (7, ""));
        let free = mariadb.run("inspect", &["job/a"]);
        assert_eq!((free.status, &*free.out), (1, "job/a is free\n"));
        let mut other = mariadb.other_program().await;
        assert_eq!(query(&mut other, "SELECT COUNT(*) FROM dlock_queue").await, 0, "a row is left");
    }
}

async fn a_ticket_outlives_its_process() {
    let Some(mariadb) = OnMariadb::new("").await else { return };
    let ticket = mariadb.run("acquire", &["--for", "10m", "deploy"]);
    assert_eq!(ticket.status, 0, "{}", ticket.err);
    let ticket = ticket.out.trim();
    assert_eq!(mariadb.run("try", &["deploy"]).status, 75, "the lock was granted twice");
    assert_eq!(mariadb.run("run", &["--ticket", ticket, "deploy", "--", "true"]).status, 0);
    assert_eq!(mariadb.run("try", &["deploy"]).status, 0);
}

async fn init_creates_the_tables_for_users_that_may_not() {
    let Some(on) = OnMariadb::new("").await else { return };
    let mut admin = on.other_program().await;
    let mut execute = async |sql: &str| {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut admin).await.expect("the user may do this");
    };
    execute("CREATE USER app@'127.0.0.1' IDENTIFIED BY 'x'").await;
    execute("GRANT SELECT ON dlock.* TO app@'127.0.0.1'").await;
    let (login, address) = on.store.trim_start_matches("mysql://").split_once('@').expect("a login");
    let as_app =
        || on.place.run(["run", "--store", &format!("mysql://app:x@{address}"), "job", "--", "true"]);
    let refused = as_app();
    assert_eq!(refused.status, 78, "{}", refused.err);
    assert!(refused.err.contains("dlock init"), "{}", refused.err);

    let created = on.place.run(["init", &on.store]);
    assert_eq!(created.status, 0, "{}", created.err);
    assert!(created.out.starts_with("mysql://127.0.0.1:"), "{}", created.out);
    assert!(!created.out.contains(login), "the login is shown: {}", created.out);
    for table in ["store", "fence", "queue"] {
        execute(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON dlock.dlock_{table} TO app@'127.0.0.1'"))
            .await;
    }
    let ended = as_app();
    assert_eq!(ended.status, 0, "{}", ended.err);
}

async fn what_get_lock_holds_is_shown_waited_for_and_broken() {
    let Some(mariadb) = OnMariadb::new("?mode=session").await else { return };
    let mut other = mariadb.other_program().await;
    assert_eq!(query(&mut other, "SELECT GET_LOCK('stock', 0)").await, 1);
    let id = query(&mut other, "SELECT CONNECTION_ID()").await;
    assert_eq!(mariadb.run("run", &["-n", "stock", "--", "true"]).status, 75, "the lock was granted twice");
    let state = mariadb.json("inspect", &["stock"]);
    assert_eq!(state["holders"][0]["id"], format!("connection {id}"), "{state}");
    assert!(mariadb.run("ls", &[]).out.contains("stock"));
    assert_eq!(mariadb.run("unlock", &["--force", "stock"]).status, 0);
    assert_eq!(
        mariadb.run("run", &["-n", "stock", "--", "true"]).status,
        0,
        "the lock is not free after unlock"
    );
    // The other direction: another program waits for a lock that dlock holds.
    let mut other = mariadb.other_program().await;
    let run = Started::of(&mut mariadb.dlock("run", &["stock", "-c", "echo held; read _; exit 0"]));
    assert_eq!(query(&mut other, "SELECT GET_LOCK('stock', 0)").await, 0, "the lock was granted twice");
    let waits = tokio::spawn(async move { query(&mut other, "SELECT GET_LOCK('stock', 60)").await });
    assert_eq!(run.let_go().status, 0);
    assert_eq!(waits.await.unwrap(), 1);
}

async fn more_jobs_than_the_server_allows_connections_all_run() {
    const JOBS: usize = 12;
    let Some(mariadb) = OnMariadb::new("").await else { return };
    assert_eq!(mariadb.run("try", &["pool"]).status, 0, "the tables are created");
    let mut other = mariadb.other_program().await;
    for sql in [
        "CREATE USER few@'127.0.0.1' IDENTIFIED BY 'x' WITH MAX_USER_CONNECTIONS 3",
        "GRANT ALL ON dlock.* TO few@'127.0.0.1'",
    ] {
        sqlx::raw_sql(sql).execute(&mut other).await.unwrap();
    }
    let url = format!("mysql://few:x@{}/dlock", mariadb.running.servers()[0].address());
    // A job keeps its connection while its command runs, so that others find none.
    let job = || {
        let words = ["run", "--store", &url, "--slots", "12", "pool", "--", "sleep", "0.1"];
        Ended::of(&mut mariadb.place.dlock(words))
    };
    let jobs: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..JOBS).map(|_| scope.spawn(job)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for ended in jobs {
        assert_eq!((ended.status, &*ended.err), (0, ""));
    }
}

async fn a_command_that_is_cut_off_ends_before_the_next_one_begins() {
    let Some(on) = OnMariadb::new("").await else { return };
    let server = on.running.servers()[0].address();
    partition::the_command_ends_before_the_next_one_begins(&on.place, server, &on.store, &["--ttl", "9s"])
        .await;
}

async fn two_leaders_never_run_while_leaders_are_killed_stopped_and_cut_off() {
    let Some(on) = OnMariadb::new("").await else { return };
    let server = on.running.servers()[0].address();
    let times = ClaimTimes::WITHOUT_SESSION;
    Contest::on_server(&on.place, server, &on.store, times).await.run();
}
