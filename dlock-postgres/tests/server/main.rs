//! Tests of faults and settings that only this server has. Each test has a server of its own.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use dlock_conformance::{Data, Unreachable};
use dlock_core::{Error, Guard, Locks, Registry, Result};
use dlock_postgres::DRIVER;
use dlock_testbed::servers::{
    Running, Server,
    postgres::{Flavour, Pooling, Version, pool, start},
};
use futures_util::future::join_all;
use libtest_mimic::{Arguments, Trial};
use tokio::{
    runtime::Runtime,
    time::{Instant, timeout},
};
use tokio_postgres::{NoTls, SimpleQueryMessage};

/// Maximum time of an operation that waits for no ttl.
const SOON: Duration = Duration::from_secs(10);

/// Makes a list of cases, each with its name.
macro_rules! cases {
    ($($case:ident),+ $(,)?) => {
        vec![$((stringify!($case), (|on, server| on.block_on($case(server))) as Case)),+]
    };
}

mod check_in;
mod disguise;
mod disk;
mod limits;
mod pauses;
mod pgbouncer;
mod pooler;
mod queue;
mod schema;
mod session;
mod standby;

type Case = fn(&Runtime, &Running);

fn main() -> ExitCode {
    let mut cases = cases! {
        a_waiter_of_another_client_is_woken_by_the_server,
        no_two_hold_while_sessions_are_terminated,
        clients_that_find_no_schema_create_it_together,
        the_default_isolation_level_of_the_database_has_no_effect,
        a_refused_try_writes_nothing,
        a_locked_row_delays_no_other_renewal,
        few_rights_are_enough_once_the_schema_exists,
        a_login_that_fails_is_refused_with_its_reason,
        a_password_is_found_in_the_password_file,
        a_read_only_server_is_refused,
        a_client_listens_only_while_it_has_waiters,
        many_marks_delay_no_other_lock_and_are_deleted_after_their_time,
    };
    cases.extend(check_in::cases());
    cases.extend(disguise::cases());
    cases.extend(limits::cases());
    cases.extend(pauses::cases());
    cases.extend(pooler::cases());
    cases.extend(session::cases());
    cases.extend(queue::cases());
    cases.extend(schema::cases());
    let runtime = Runtime::new().expect("a runtime");
    let mut trials = Vec::new();
    match runtime.block_on(start(Version::V17, Flavour::Standalone)) {
        // This server only shows that servers can be started.
        Ok(server) => {
            match runtime.block_on(pool(&server, Pooling::Session)) {
                Ok(_) => cases.extend(pgbouncer::cases()),
                Err(unreachable) => trials.push(unreachable.trial("pgbouncer")),
            }
            trials.extend(cases.into_iter().map(|case| trial(Flavour::Standalone, case)));
            trials.push(disk::trial());
            trials.extend(standby::cases().into_iter().map(|case| trial(Flavour::Replicated, case)));
        }
        Err(unreachable) => {
            let pgbouncer = Unreachable { name: "pgbouncer".to_owned(), ..unreachable.clone() };
            trials.extend([unreachable.trial("postgres"), pgbouncer.trial("pgbouncer")]);
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trial(flavour: Flavour, (name, case): (&str, Case)) -> Trial {
    Trial::test(name, move || {
        let runtime = Runtime::new()?;
        let server = runtime.block_on(start(Version::V17, flavour));
        let server = server.map_err(|Unreachable { reason, .. }| reason)?;
        case(&runtime, &server);
        Ok(())
    })
}

async fn connect(server: &Running) -> Result<Locks> {
    connect_to(server.url()).await
}

async fn connect_to(url: &str) -> Result<Locks> {
    Registry::new().with(DRIVER).connect(url).await
}

/// Executes statements as a program other than dlock, and returns the first column of the last row.
async fn sql(server: &Running, statements: &str) -> String {
    let (client, connection) = tokio_postgres::connect(server.url(), NoTls).await.expect("a session");
    let query = async move {
        let reply = client.simple_query(statements).await.expect(statements);
        let value = reply.iter().rev().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
            _ => None,
        });
        value.unwrap_or_default()
    };
    let (value, _) = tokio::join!(query, connection);
    value
}

async fn rows(server: &Running) -> String {
    sql(server, "SELECT count(*) FROM dlock.queue").await
}

/// Tries a lock until the server replies, which it may not do while it restarts.
async fn try_until_reply(locks: &Locks, name: &str) -> Option<Guard> {
    let reply = async {
        loop {
            match locks.mutex(name).try_lock().await {
                Ok(granted) => break granted,
                Err(error) => assert!(error.is_transient(), "{error:?}"),
            }
        }
    };
    timeout(SOON, reply).await.expect("a reply")
}

/// Starts a server that was killed. It does not start before the processes of its sessions have
/// ended.
async fn start_again(server: &Server) {
    let started = async { while server.start(Data::Kept).await.is_err() {} };
    timeout(SOON, started).await.expect("the server starts");
}

/// Hands a lock over from one client to another one, which has to poll.
async fn hand_over_to_a_poller(server: &Running, holder: &Locks, waiter: &Locks) {
    let guard = holder.mutex("job").lock().await.expect("the lock");
    // The waiter sends no attempt of its own within the time limit of the test.
    let waiting = waiter.mutex("job").lock().ttl(SOON * 12).into_future();
    let releasing = async {
        while rows(server).await != "2" {}
        guard.release().await.expect("released");
    };
    let handed_over = async { tokio::join!(waiting, releasing).0.expect("the lock") };
    let guard = timeout(SOON, handed_over).await.expect("the waiter polls");
    guard.release().await.expect("released");
}

async fn a_waiter_of_another_client_is_woken_by_the_server(server: &Running) {
    let [holder, waiter] =
        [connect(server).await.expect("connected"), connect(server).await.expect("connected")];
    for _ in 0..5 {
        let guard = holder.mutex("job").lock().await.expect("the lock");
        let mutex = waiter.mutex("job");
        let waiting = async { mutex.lock().await.expect("the lock") };
        let releasing = async {
            while rows(server).await != "2" {}
            guard.release().await.expect("released");
        };
        // Without the notification the waiter polls after two seconds.
        let handed_over = async { tokio::join!(waiting, releasing).0 };
        let guard = timeout(SOON, handed_over).await.expect("the waiter gets the lock");
        guard.release().await.expect("released");
    }
    assert_eq!(rows(server).await, "0");
}

async fn no_two_hold_while_sessions_are_terminated(server: &Running) {
    const CONTENDERS: usize = 6;
    const ROUNDS: usize = 10;
    const TERMINATE: &str = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity \
        WHERE application_name = 'dlock' ORDER BY random() LIMIT 3) AS sessions";
    let (holders, tokens) = (AtomicUsize::new(0), tokio::sync::Mutex::new(0));
    let clients = join_all((0..CONTENDERS).map(|_| connect(server))).await;
    let contend = |(index, locks): (usize, Result<Locks>)| {
        let (holders, tokens) = (&holders, &tokens);
        async move {
            let locks = locks.expect("connected");
            for round in 0..ROUNDS {
                let guard = loop {
                    let fair = locks.fair("storm");
                    match fair.lock().await {
                        Ok(guard) => break guard,
                        Err(error) => assert!(error.is_transient(), "{error:?}"),
                    }
                };
                assert_eq!(holders.fetch_add(1, Relaxed), 0, "two hold in round {round} of {index}");
                let token = guard.token().expect("each grant has a token").get();
                let before = std::mem::replace(&mut *tokens.lock().await, token);
                assert!(token > before, "the token {token} follows {before}");
                sql(server, TERMINATE).await;
                holders.fetch_sub(1, Relaxed);
                guard.release().await.expect("released");
            }
        }
    };
    let all = join_all(clients.into_iter().enumerate().map(contend));
    timeout(Duration::from_secs(100), all).await.expect("the contenders get the lock in turn");
    assert_eq!(rows(server).await, "0", "a claim is left");
}

async fn clients_that_find_no_schema_create_it_together(server: &Running) {
    for _ in 0..3 {
        sql(server, "DROP SCHEMA IF EXISTS dlock CASCADE").await;
        let clients = join_all((0..20).map(|_| connect(server))).await;
        let clients: Vec<_> = clients.into_iter().map(|client| client.expect("connected")).collect();
        let tries =
            clients.iter().map(|client| async { client.mutex("first").try_lock().await.expect("a reply") });
        let guards: Vec<_> = join_all(tries).await.into_iter().flatten().collect();
        assert_eq!(guards.len(), 1, "one of the clients holds the lock");
    }
}

async fn the_default_isolation_level_of_the_database_has_no_effect(server: &Running) {
    for level in ["repeatable read", "serializable"] {
        sql(server, &format!("ALTER DATABASE postgres SET default_transaction_isolation = '{level}'")).await;
        a_waiter_of_another_client_is_woken_by_the_server(server).await;
    }
}

async fn a_refused_try_writes_nothing(server: &Running) {
    let [holder, other] =
        [connect(server).await.expect("connected"), connect(server).await.expect("connected")];
    let guard = holder.mutex("taken").lock().await.expect("the lock");
    assert!(other.mutex("taken").try_lock().await.expect("a reply").is_none());
    let next_transaction = || sql(server, "SELECT pg_snapshot_xmax(pg_current_snapshot())");
    let before = next_transaction().await;
    for _ in 0..20 {
        assert!(other.mutex("taken").try_lock().await.expect("a reply").is_none());
    }
    assert_eq!(next_transaction().await, before, "a refused try has used a transaction id");
    guard.release().await.expect("released");
}

async fn a_locked_row_delays_no_other_renewal(server: &Running) {
    let ttl = Duration::from_secs(6);
    let locks = connect(server).await.expect("connected");
    let locked = locks.mutex("locked").lock().ttl(ttl).await.expect("the lock");
    let others = join_all((0..10).map(|index| {
        let mutex = locks.mutex(format!("other/{index}"));
        async move { mutex.lock().ttl(ttl).await.expect("the lock") }
    }));
    let others = others.await;
    // The transaction keeps the row locked for longer than the ttl.
    sql(
        server,
        "BEGIN; SELECT 1 FROM dlock.queue WHERE name = 'locked' FOR UPDATE; SELECT pg_sleep(8); COMMIT",
    )
    .await;
    assert!(others.iter().all(|guard| !guard.is_lost()), "the hold of another row was not renewed");
    for guard in others {
        guard.release().await.expect("released");
    }
    drop(locked);
}

async fn few_rights_are_enough_once_the_schema_exists(server: &Running) {
    sql(server, "CREATE ROLE app LOGIN PASSWORD 'app'").await;
    let url = server.url().replace("dlock:s3cret%3A%2F@", "app:app@");
    let error = connect_to(&url).await.expect_err("the user must not create a schema");
    assert!(format!("{error:?}").contains("GRANT USAGE ON SCHEMA"), "{error:?}");
    connect(server).await.expect("connected");
    sql(
        server,
        "GRANT USAGE ON SCHEMA dlock TO app; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dlock TO app",
    )
    .await;
    let locks = connect_to(&url).await.expect("connected");
    let guard = locks.mutex("job").lock().await.expect("the lock");
    guard.release().await.expect("released");
}

async fn a_login_that_fails_is_refused_with_its_reason(server: &Running) {
    for (from, to, reason) in [
        ("s3cret%3A%2F", "wrong", "does not accept this user and password"),
        ("/postgres", "/missing", "no such database"),
    ] {
        let error = connect_to(&server.url().replace(from, to)).await.expect_err(to);
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(format!("{error:?}").contains(reason), "{error:?}");
    }
}

async fn a_password_is_found_in_the_password_file(server: &Running) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pgpass");
    let port = server.servers()[0].address().port();
    let url = server.url().replace(":s3cret%3A%2F@", "@");
    let error = connect_to(&url).await.expect_err("the server requires a password");
    assert!(format!("{error:?}").contains("password_file"), "{error:?}");
    let write = |lines: &str| {
        fs::write(&path, lines).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
    };
    write(&format!("127.0.0.1:{port}:postgres:other:wrong\n127.0.0.1:*:postgres:dlock:s3cret\\:/\n"));
    let with_file = format!("{url}?passfile={}", path.display());
    let locks = connect_to(&with_file).await.expect("the second line has the password");
    drop(locks.mutex("job").lock().await.expect("the lock"));
    write("*:*:*:dlock:wrong\n");
    let error = connect_to(&with_file).await.expect_err("the password is wrong");
    assert!(format!("{error:?}").contains("does not accept this user and password"), "{error:?}");
}

async fn a_read_only_server_is_refused(server: &Running) {
    let locks = connect(server).await.expect("connected");
    sql(server, "ALTER DATABASE postgres SET default_transaction_read_only = on").await;
    let error = connect(server).await.expect_err("the server is read-only");
    assert!(matches!(error, Error::Unwritable { .. }), "{error:?}");
    // Existing sessions keep the old default.
    let guard = locks.mutex("job").lock().await.expect("the lock");
    guard.release().await.expect("released");
}

async fn a_client_listens_only_while_it_has_waiters(server: &Running) {
    let listeners = || {
        sql(
            server,
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock' AND query LIKE 'LISTEN%'",
        )
    };
    let [holder, waiter] =
        [connect(server).await.expect("connected"), connect(server).await.expect("connected")];
    let guard = holder.mutex("job").lock().await.expect("the lock");
    assert_eq!(listeners().await, "0", "a client without waiters listens");
    let mutex = waiter.mutex("job");
    let waiting = async { mutex.lock().await.expect("the lock") };
    let releasing = async {
        while listeners().await != "1" {}
        guard.release().await.expect("released");
    };
    let (guard, ()) = timeout(SOON, async { tokio::join!(waiting, releasing) }).await.expect("a listener");
    guard.release().await.expect("released");
    let ceases = async { while listeners().await != "0" {} };
    timeout(SOON * 2, ceases).await.expect("the client ceases to listen");
}

/// Inserts marks as `Occurrence::run` would. They end `interval` from now.
async fn add_marks(server: &Running, first: u32, last: u32, interval: &str) {
    let statement = format!(
        "INSERT INTO dlock.queue (name, seq, claim, kind, slots, held, since, expires, channel, who)
         SELECT convert_to('dlock-once:report:' || i || ':6', 'UTF8'), i, gen_random_uuid(), 1, 1, true,
                clock_timestamp(), clock_timestamp() + interval '{interval}', '', 'cron'
         FROM generate_series({first}, {last}) AS i"
    );
    sql(server, &statement).await;
}

#[expect(clippy::print_stdout, reason = "libtest shows it with --nocapture")]
async fn many_marks_delay_no_other_lock_and_are_deleted_after_their_time(server: &Running) {
    const PAIRS: u32 = 800;
    let locks = connect(server).await.expect("connected");
    let pairs = async || {
        let began = Instant::now();
        for _ in 0..PAIRS {
            locks.mutex("other").lock().await.expect("free").release().await.expect("held until now");
        }
        began.elapsed() / PAIRS
    };
    let before = pairs().await;
    add_marks(server, 1, 100_000, "7 days").await;
    add_marks(server, 100_001, 110_000, "-1 second").await;
    let after = timeout(SOON * 6, pairs()).await.expect("marks delay an unrelated lock");
    println!("an acquire and release took {before:?} without marks, and {after:?} beside 110000 marks");
    let expired = "SELECT count(*) FROM dlock.queue WHERE expires <= clock_timestamp()";
    let count: u32 = sql(server, expired).await.parse().expect("a number");
    assert!(count < 10_000, "no mark was deleted after its time");
    assert_eq!(rows(server).await, (100_000 + count).to_string(), "a mark was deleted before its time");
    let done = locks.mutex("report").once("7").is_done().await.expect("the server is reachable");
    assert!(done, "a mark is not found among many");
}
