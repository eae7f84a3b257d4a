//! What only these servers can do wrong: killed sessions, late commits, pauses; and other programs' named locks. Each test has a
//! server of its own.

#![expect(clippy::disallowed_methods, reason = "contenders of tests are tasks")]

mod bad;
mod crowd;
mod late;
mod named;
mod pace;
mod reach;
mod storm;
mod swap;

use std::{process::ExitCode, time::Duration};

use dlock_conformance::{
    Unreachable,
    stores::{
        Running,
        mysql::{Brand, Flavour, start},
    },
};
use dlock_core::{Error, Locks, Registry, Result};
use dlock_mysql::DRIVER;
use libtest_mimic::{Arguments, Trial};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Row as _,
    mysql::{MySqlConnectOptions, MySqlConnection},
};
use tokio::{
    runtime::Runtime,
    time::{sleep, timeout},
};

/// The longest that anything takes that needs no ttl to end.
const SOON: Duration = Duration::from_secs(5);

/// A list of cases, each with its name.
macro_rules! cases {
    ($($($part:ident)::+),+ $(,)?) => {
        vec![$((stringify!($($part)::+).replace(' ', ""), (|on, server| on.block_on($($part)::+(server))) as Case)),+]
    };
}

fn main() -> ExitCode {
    let runtime = Runtime::new().expect("a runtime");
    let cases = cases! {
        pace::a_waiter_is_woken_by_the_server,
        a_killed_session_loses_no_lock,
        orders_of_arrival_wait_for_the_commit_ahead,
        an_attempt_that_a_paused_server_does_late_leaves_nothing,
        a_later_version_is_refused,
        a_read_only_server_is_refused,
        named::get_lock_and_dlock_exclude_each_other,
        named::a_killed_session_has_lost_its_lock_at_once,
        named::a_hold_outlives_the_sessions_beside_it,
        named::a_hold_outlives_the_end_of_its_watch,
        named::a_hold_outlives_locked_tables,
        named::waiters_keep_their_order_while_tables_are_locked,
        named::statements_may_take_as_long_as_they_wait,
        named::a_dead_client_holds_nothing,
        named::a_wait_that_is_given_up_leaves_no_session_waiting,
        named::a_wait_that_is_given_up_as_it_is_granted_leaves_no_lock,
        named::a_wait_that_the_server_ends_is_no_answer,
        named::a_hundred_locks_leave_no_connection,
        named::a_watched_lock_is_released_at_once,
        named::a_release_that_the_server_does_late_is_no_loss,
        named::a_short_ttl_is_renewed_and_a_long_one_is,
        named::other_programs_are_shown_and_their_locks_are_broken,
        bad::a_database_that_is_not_there_is_refused,
        bad::few_rights_are_enough_once_the_tables_are_there,
        bad::a_tiny_packet_is_refused,
        bad::sessions_that_end_when_idle_lose_no_lock,
        bad::a_server_that_commits_nothing_by_itself_is_told_to,
        bad::names_leave_no_rows,
        bad::a_row_that_somebody_locks_costs_no_other_lock,
        bad::an_expired_row_that_somebody_locks_delays_no_release,
        bad::locked_tables_collect_no_sessions,
        bad::a_call_that_fails_rings_no_doorbell,
        bad::a_hold_that_is_taken_back_late_has_its_own_ttl,
        crowd::what_waiters_ask_for_does_not_grow_with_their_number,
        crowd::a_hold_outlives_sessions_that_cannot_be_opened,
        crowd::settings_of_the_server_cost_no_hold,
        crowd::tables_without_their_version_are_completed,
        crowd::a_fence_without_rows_refuses_locks,
        crowd::a_ticket_has_one_taker_and_a_waiting_claim_is_none,
        late::a_request_that_is_delivered_late_changes_nothing,
        late::a_waiter_whose_connection_breaks_in_silence_gets_the_lock,
        reach::of_several_hosts_the_one_that_takes_writes_is_used,
        reach::a_socket_leads_to_the_server,
        reach::a_named_lock_is_lost_when_its_server_becomes_read_only,
        reach::a_hold_goes_on_where_writes_are_taken,
        reach::a_waiter_listens_at_the_server_that_takes_writes,
        reach::a_session_from_before_a_restart_is_not_taken_for_another,
        storm::no_two_hold_in_a_storm_of_kills,
        storm::holds_whose_sessions_have_ended_are_renewed_together,
        storm::many_locks_are_renewed_by_few_statements,
        swap::the_queue_goes_on_where_a_proxy_swaps_sessions,
        swap::named_locks_are_refused_where_a_proxy_swaps_sessions,
        swap::without_doorbells_no_named_lock_is_asked_for,
    };
    let trials = [Brand::Mariadb, Brand::Mysql].into_iter().flat_map(|brand| {
        match runtime.block_on(start(brand, Flavour::Standalone)) {
            // It was a look whether there is one: each case kills and pauses its own.
            Ok(_) => trials(brand, &cases),
            Err(gone) => vec![gone.trial(brand.name())],
        }
    });
    let trials = trials.collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Each case on this brand.
fn trials(brand: Brand, cases: &[(String, Case)]) -> Vec<Trial> {
    let named = |name: &str| format!("{}::{name}", brand.name());
    let plain = cases.iter().map(|(name, case)| {
        let case = *case;
        Trial::test(named(name), move || run(brand, case))
    });
    let tls = Trial::test(named("a_certificate_is_looked_at"), move || {
        Runtime::new()?.block_on(a_certificate_is_looked_at(brand))
    });
    plain.chain([tls]).collect()
}

type Case = fn(&Runtime, &Running);

fn run(brand: Brand, case: Case) -> std::result::Result<(), libtest_mimic::Failed> {
    let runtime = Runtime::new()?;
    let server = runtime.block_on(start(brand, Flavour::Standalone));
    let server = server.map_err(|Unreachable { reason, .. }| reason)?;
    case(&runtime, &server);
    Ok(())
}

async fn connect(server: &Running, params: &str) -> Result<Locks> {
    Registry::new().with(DRIVER).connect(&format!("{}{params}", server.url())).await
}

/// A program that is not dlock.
async fn stranger(server: &Running) -> MySqlConnection {
    let address = server.servers()[0].address();
    let options = MySqlConnectOptions::new().host("127.0.0.1").port(address.port());
    let options = options.username("dlock").password("s3cret:/").database("dlock");
    options.connect().await.expect("the server runs")
}

/// The first column of the first row, as a number.
async fn ask(session: &mut MySqlConnection, sql: &str) -> i64 {
    let row = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_one(session).await.expect("a row");
    row.try_get_unchecked(0).expect("a number")
}

/// Ends all other sessions of clients.
async fn end_sessions(session: &mut MySqlConnection) {
    let ids = "SELECT id FROM information_schema.processlist WHERE user = 'dlock' AND id <> CONNECTION_ID()";
    let ids = sqlx::raw_sql(ids).fetch_all(&mut *session).await.expect("rows");
    for id in ids {
        let id: i64 = id.try_get_unchecked(0).expect("a number");
        // It may have ended meanwhile.
        sqlx::raw_sql(AssertSqlSafe(format!("KILL {id}"))).execute(&mut *session).await.ok();
    }
}

/// How many named locks somebody has. MySQL 8.0 may wait for the next call of a session with TLS that was killed at the wrong moment,
/// on a socket that it has closed; such a session keeps its locks.
async fn named_locks(session: &mut MySqlConnection) -> i64 {
    let list = match brand(session).await {
        Brand::Mariadb => "information_schema.metadata_lock_info WHERE lock_type = 'User lock'",
        Brand::Mysql => {
            "performance_schema.metadata_locks JOIN performance_schema.threads ON thread_id = owner_thread_id
            WHERE object_type = 'USER LEVEL LOCK' AND processlist_command <> 'Killed'"
        }
    };
    ask(session, &format!("SELECT COUNT(*) FROM {list}")).await
}

/// The sum of what the server has counted under these names.
async fn status(session: &mut MySqlConnection, names: &[&str]) -> i64 {
    let names = names.join("', '");
    let counted = AssertSqlSafe(format!("SHOW GLOBAL STATUS WHERE variable_name IN ('{names}')"));
    let counted = sqlx::raw_sql(counted).fetch_all(session).await.expect("rows");
    counted.iter().map(|row| row.try_get_unchecked::<i64, _>(1).expect("a number")).sum()
}

async fn brand(session: &mut MySqlConnection) -> Brand {
    match ask(session, "SELECT VERSION() LIKE '%MariaDB%'").await {
        0 => Brand::Mysql,
        _ => Brand::Mariadb,
    }
}

async fn tell(session: &mut MySqlConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(session).await.expect("it does that");
}

/// Waits until a question has this answer. Renewals may be what it waits for.
async fn until(session: &mut MySqlConnection, sql: &str, answer: i64) {
    let answered = async {
        while ask(session, sql).await != answer {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON * 4, answered).await.unwrap_or_else(|_| panic!("never {answer}: {sql}"));
}

async fn a_killed_session_loses_no_lock(server: &Running) {
    let (locks, mut other) = (connect(server, "").await.expect("it runs"), stranger(server).await);
    let held = locks.mutex("job").lock().ttl(Duration::from_secs(3)).await.expect("nobody holds it");
    let behind = connect(server, "").await.expect("it runs");
    let waits = tokio::spawn(async move { behind.mutex("job").lock().await });
    for _ in 0..5 {
        sleep(Duration::from_millis(300)).await;
        end_sessions(&mut other).await;
    }
    assert!(!held.is_lost(), "the row is there, whatever sessions there are");
    assert!(!waits.is_finished(), "two hold it");
    held.release().await.expect("held until now");
    timeout(SOON, waits)
        .await
        .expect("it looks by itself")
        .expect("no panic")
        .expect("it is free")
        .release()
        .await
        .expect("held");
}

async fn orders_of_arrival_wait_for_the_commit_ahead(server: &Running) {
    let (locks, mut other) = (connect(server, "").await.expect("it runs"), stranger(server).await);
    let enqueue = "START TRANSACTION;
        UPDATE dlock_fence SET last = LAST_INSERT_ID(last + 1) WHERE bucket = CRC32('job') % 1024;
        INSERT INTO dlock_queue SELECT 'job', LAST_INSERT_ID(), REPEAT('x', 16), 'mutex', 1, 1,
            TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + 1500000, 'a slow one'";
    tell(&mut other, enqueue).await;
    let job = locks.mutex("job");
    let (tried, ()) = tokio::join!(job.try_lock(), async {
        sleep(Duration::from_millis(200)).await;
        tell(&mut other, "COMMIT").await;
    });
    assert!(tried.expect("the server answers").is_none(), "it overtook a claim that came first");
    let held = timeout(SOON, job.lock()).await.expect("the other expires").expect("it is free");
    assert!(
        locks.inspect("job").await.expect("the server answers").is_some_and(|state| state.queue.is_empty())
    );
    held.release().await.expect("held until now");
    assert_eq!(ask(&mut other, "SELECT COUNT(*) FROM dlock_queue").await, 0, "something is left");
}

async fn an_attempt_that_a_paused_server_does_late_leaves_nothing(server: &Running) {
    let locks = connect(server, "?timeout=500ms").await.expect("it runs");
    let job = locks.mutex("job");
    job.lock().await.expect("nobody holds it").release().await.expect("held until now");
    let machine = &server.servers()[0];
    machine.pause().await.expect("it runs");
    let told = job.lock().wait(Duration::from_secs(1)).await;
    assert!(told.is_err(), "the server answers nothing, and the lock is granted");
    machine.resume().await.expect("it is paused");
    locks.close().await;
    let mut other = stranger(server).await;
    sleep(Duration::from_millis(300)).await;
    assert_eq!(
        ask(&mut other, "SELECT COUNT(*) FROM dlock_queue").await,
        0,
        "a late attempt was carried out"
    );
}

/// Takes a lock with TLS, with the right authority and with none.
async fn a_certificate_is_looked_at(brand: Brand) -> std::result::Result<(), libtest_mimic::Failed> {
    let server = start(brand, Flavour::Tls).await.map_err(|Unreachable { reason, .. }| reason)?;
    let ca = server.ca().expect("the recipe has one");
    let locks = connect(&server, &format!("&ca={}", ca.display())).await.expect("the certificate is right");
    locks.mutex("job").lock().await.expect("nobody holds it").release().await.expect("held until now");
    let told = connect(&server, "").await.expect_err("nobody knows the authority");
    assert!(matches!(told, Error::Refused { .. }), "{told:?}");
    Ok(())
}

async fn a_later_version_is_refused(server: &Running) {
    let (locks, mut other) = (connect(server, "").await.expect("it runs"), stranger(server).await);
    tell(&mut other, "UPDATE dlock_store SET version = 2").await;
    let told = connect(server, "").await.expect_err("a later version");
    assert!(matches!(told, Error::Refused { .. }), "{told:?}");
    drop(locks);
}

async fn a_read_only_server_is_refused(server: &Running) {
    let mut other = stranger(server).await;
    tell(&mut other, "SET GLOBAL read_only = 1").await;
    let told = connect(server, "").await.expect_err("it takes no writes");
    assert!(matches!(told, Error::Unwritable { .. }), "{told:?}");
    tell(&mut other, "SET GLOBAL read_only = 0").await;
    connect(server, "").await.expect("it takes writes again");
}
