//! Tests of faults that only these servers can have, such as killed sessions and late commits, and
//! of named locks of other programs. Each test has a server of its own.

#![expect(clippy::disallowed_methods, reason = "contenders of tests are tasks")]

mod bad;
mod crowd;
mod disk;
mod failover;
mod late;
mod limits;
mod named;
mod pace;
mod reach;
mod storm;
mod swap;

use std::{process::ExitCode, time::Duration};

use dlock_conformance::Unreachable;
use dlock_core::{Error, Locks, Registry, Result};
use dlock_mysql::DRIVER;
use dlock_testbed::servers::{
    Running,
    mysql::{Brand, Flavour, start},
};
use libtest_mimic::{Arguments, Failed, Trial};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Row as _,
    mysql::{MySqlConnectOptions, MySqlConnection},
};
use tokio::{
    runtime::Runtime,
    time::{sleep, timeout},
};

/// Maximum time of an operation that waits for no ttl.
const SOON: Duration = Duration::from_secs(5);

/// Makes a list of cases, each with its name.
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
        named::a_lease_whose_session_is_killed_is_lost_at_once,
        named::tables_that_were_dropped_are_created_again_with_an_idle_session,
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
        named::the_lock_of_a_host_that_vanishes_is_granted_after_its_hold_is_lost,
        named::a_waiter_whose_client_has_vanished_delays_the_next_one_for_seconds,
        named::a_user_without_rights_sees_the_owners_connection_and_breaks_no_lock,
        bad::a_database_that_is_not_there_is_refused,
        bad::few_rights_are_enough_once_the_tables_are_there,
        bad::a_tiny_packet_is_refused,
        bad::sessions_that_end_when_idle_lose_no_lock,
        bad::a_server_without_autocommit_holds_no_transaction_open,
        bad::names_leave_no_rows,
        bad::a_hold_whose_release_fails_is_not_renewed,
        bad::a_locked_row_costs_no_other_lock,
        bad::a_refused_try_waits_for_no_locked_row,
        bad::a_transaction_that_locks_the_row_of_a_claim_costs_the_hold,
        bad::a_client_that_closes_aborts_no_connection,
        bad::an_expired_row_that_is_locked_delays_no_release,
        bad::locked_tables_collect_no_sessions,
        bad::a_call_that_fails_rings_no_doorbell,
        bad::a_hold_that_is_taken_back_late_has_its_own_ttl,
        crowd::a_waiter_looks_a_silent_holder_up_when_its_claim_expires,
        crowd::the_number_of_statements_does_not_grow_with_the_number_of_waiters,
        crowd::a_crowd_that_leaves_costs_its_client_no_lock,
        crowd::a_hold_outlives_sessions_that_cannot_be_opened,
        crowd::settings_of_the_server_cost_no_hold,
        crowd::tables_without_their_version_are_completed,
        crowd::all_of_many_first_clients_get_locks,
        crowd::a_fence_without_rows_refuses_locks,
        crowd::a_ticket_has_one_taker_and_a_waiting_claim_is_none,
        late::a_request_that_is_delivered_late_changes_nothing,
        late::a_waiter_whose_connection_breaks_in_silence_gets_the_lock,
        limits::an_error_about_too_many_connections_names_the_settings,
        limits::a_named_lock_without_a_connection_is_refused_and_costs_no_hold,
        limits::a_packet_of_64_kibibytes_is_enough,
        limits::waiters_without_a_connection_of_their_own_poll,
        limits::a_server_without_free_connections_costs_no_hold_and_no_waiter,
        limits::locked_tables_grant_no_lock_and_a_hold_ends_with_its_ttl,
        limits::the_longest_prefix_is_that_of_a_store,
        limits::a_client_with_one_connection_keeps_its_holds_beside_many_attempts,
        reach::of_several_hosts_the_one_that_takes_writes_is_used,
        reach::a_socket_leads_to_the_server,
        reach::a_named_lock_is_lost_when_its_server_becomes_read_only,
        reach::a_hold_continues_where_writes_are_accepted,
        reach::two_servers_that_accept_writes_grant_one_named_lock_twice,
        reach::a_waiter_listens_at_the_server_that_takes_writes,
        reach::a_session_from_before_a_restart_is_not_taken_for_another,
        reach::an_attempt_that_finds_no_connection_is_not_released,
        storm::no_two_hold_in_a_storm_of_kills,
        storm::holds_whose_sessions_have_ended_are_renewed_together,
        storm::many_locks_are_renewed_by_few_statements,
        swap::the_queue_works_where_a_proxy_swaps_sessions,
        swap::named_locks_are_refused_where_a_proxy_swaps_sessions,
        swap::a_hold_is_lost_when_a_proxy_begins_to_swap_and_its_lock_stays_taken,
        swap::without_doorbells_no_named_lock_is_requested,
    };
    let trials = [Brand::Mariadb, Brand::Mysql].into_iter().flat_map(|brand| {
        match runtime.block_on(start(brand, Flavour::Standalone)) {
            // This server only shows that servers can be started. Each case starts its own, which
            // it may kill and pause.
            Ok(_) => trials(brand, &cases),
            Err(unreachable) => vec![unreachable.trial(brand.name())],
        }
    });
    let trials = trials.collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Returns the trials of one brand of server.
fn trials(brand: Brand, cases: &[(String, Case)]) -> Vec<Trial> {
    let named = |name: &str| format!("{}::{name}", brand.name());
    let plain = cases.iter().map(|(name, case)| {
        let case = *case;
        Trial::test(named(name), move || run(brand, case))
    });
    let with_own_servers: [(&str, CaseWithOwnServers); 6] = [
        ("a_certificate_is_verified", |on, brand| on.block_on(a_certificate_is_verified(brand))),
        ("a_binary_log_of_statements_is_refused_and_the_other_formats_work", |on, brand| {
            on.block_on(a_binary_log_of_statements_is_refused_and_the_other_formats_work(brand))
        }),
        ("failover::a_hold_outlives_a_failover_to_a_replica_that_has_received_it", |on, brand| {
            on.block_on(failover::a_hold_outlives_a_failover_to_a_replica_that_has_received_it(brand))
        }),
        ("failover::a_replica_forgets_the_holds_that_it_has_not_received", |on, brand| {
            on.block_on(failover::a_replica_forgets_the_holds_that_it_has_not_received(brand))
        }),
        ("failover::a_named_lock_is_lost_with_its_server", |on, brand| {
            on.block_on(failover::a_named_lock_is_lost_with_its_server(brand))
        }),
        ("failover::a_replica_that_lags_behind_and_accepts_writes_grants_a_held_lock", |on, brand| {
            on.block_on(failover::a_replica_that_lags_behind_and_accepts_writes_grants_a_held_lock(brand))
        }),
    ];
    let with_own_servers = with_own_servers
        .into_iter()
        .map(|(name, case)| Trial::test(named(name), move || case(&Runtime::new()?, brand)));
    plain.chain(with_own_servers).chain([disk::trial(brand)]).collect()
}

type Case = fn(&Runtime, &Running);

/// A case that starts servers other than the standalone one.
type CaseWithOwnServers = fn(&Runtime, Brand) -> std::result::Result<(), Failed>;

fn run(brand: Brand, case: Case) -> std::result::Result<(), Failed> {
    let runtime = Runtime::new()?;
    let server = runtime.block_on(start(brand, Flavour::Standalone));
    case(&runtime, &or_failed(server)?);
    Ok(())
}

/// Makes a case fail whose server cannot be started.
fn or_failed(started: std::result::Result<Running, Unreachable>) -> std::result::Result<Running, Failed> {
    started.map_err(|Unreachable { reason, .. }| reason.into())
}

async fn connect(server: &Running, params: &str) -> Result<Locks> {
    Registry::new().with(DRIVER).connect(&format!("{}{params}", server.url())).await
}

/// Connects as a program other than dlock.
async fn plain_session(server: &Running) -> MySqlConnection {
    let address = server.servers()[0].address();
    let options = MySqlConnectOptions::new().host("127.0.0.1").port(address.port());
    let options = options.username("dlock").password("s3cret:/").database("dlock");
    options.connect().await.expect("the server runs")
}

/// Returns the first column of the first row, as a number.
async fn query(session: &mut MySqlConnection, sql: &str) -> i64 {
    let row = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_one(session).await.expect("a row");
    row.try_get_unchecked(0).expect("a number")
}

/// Kills all other sessions of clients.
async fn end_sessions(session: &mut MySqlConnection) {
    let ids = "SELECT id FROM information_schema.processlist WHERE user = 'dlock' AND id <> CONNECTION_ID()";
    let ids = sqlx::raw_sql(ids).fetch_all(&mut *session).await.expect("rows");
    for id in ids {
        let id: i64 = id.try_get_unchecked(0).expect("a number");
        // The session may have ended since the list was read.
        sqlx::raw_sql(AssertSqlSafe(format!("KILL {id}"))).execute(&mut *session).await.ok();
    }
}

/// Returns the number of named locks that sessions own. Does not count killed sessions of MySQL
/// 8.0. Such a session may keep its locks, because the server waits for its next call on a socket
/// that the server has closed.
async fn named_locks(session: &mut MySqlConnection) -> i64 {
    let list = match brand(session).await {
        Brand::Mariadb => "information_schema.metadata_lock_info WHERE lock_type = 'User lock'",
        Brand::Mysql => {
            "performance_schema.metadata_locks JOIN performance_schema.threads ON thread_id = owner_thread_id
            WHERE object_type = 'USER LEVEL LOCK' AND processlist_command <> 'Killed'"
        }
    };
    query(session, &format!("SELECT COUNT(*) FROM {list}")).await
}

/// Returns the sum of these status counters of the server.
async fn status(session: &mut MySqlConnection, names: &[&str]) -> i64 {
    let names = names.join("', '");
    let counted = AssertSqlSafe(format!("SHOW GLOBAL STATUS WHERE variable_name IN ('{names}')"));
    let counted = sqlx::raw_sql(counted).fetch_all(session).await.expect("rows");
    counted.iter().map(|row| row.try_get_unchecked::<i64, _>(1).expect("a number")).sum()
}

async fn brand(session: &mut MySqlConnection) -> Brand {
    match query(session, "SELECT VERSION() LIKE '%MariaDB%'").await {
        0 => Brand::Mysql,
        _ => Brand::Mariadb,
    }
}

async fn execute(session: &mut MySqlConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(session).await.expect("the server executes it");
}

/// Waits until a query returns this number. It waits long enough for a renewal to happen.
async fn until(session: &mut MySqlConnection, sql: &str, number: i64) {
    let reached = async {
        while query(session, sql).await != number {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON * 4, reached).await.unwrap_or_else(|_| panic!("the number never became {number}: {sql}"));
}

/// Repeats a request that fails with a transient error, for up to `limit`.
async fn until_reply<T, F>(limit: Duration, request: impl Fn() -> F + Sync) -> T
where
    T: Send,
    F: Future<Output = Result<T>> + Send,
{
    let mut last = None;
    let reply = async {
        loop {
            match request().await {
                Ok(reply) => break reply,
                Err(error) => {
                    assert!(error.is_transient(), "{error:?}");
                    last = Some(error);
                }
            }
        }
    };
    let reply = timeout(limit, reply).await;
    reply.unwrap_or_else(|_| panic!("no reply within {limit:?}, the last error: {last:?}"))
}

async fn a_killed_session_loses_no_lock(server: &Running) {
    let (locks, mut other) =
        (connect(server, "").await.expect("the server runs"), plain_session(server).await);
    let held = locks.mutex("job").lock().ttl(Duration::from_secs(3)).await.expect("the lock is free");
    let behind = connect(server, "").await.expect("the server runs");
    let waits = tokio::spawn(async move { behind.mutex("job").lock().await });
    for _ in 0..5 {
        sleep(Duration::from_millis(300)).await;
        end_sessions(&mut other).await;
    }
    assert!(!held.is_lost(), "the hold does not depend on sessions");
    assert!(!waits.is_finished(), "two clients hold the lock");
    held.release().await.expect("the lock is still held");
    timeout(SOON, waits)
        .await
        .expect("a waiter without a doorbell polls")
        .expect("the task does not panic")
        .expect("the lock is granted")
        .release()
        .await
        .expect("the lock is still held");
}

async fn orders_of_arrival_wait_for_the_commit_ahead(server: &Running) {
    let (locks, mut other) =
        (connect(server, "").await.expect("the server runs"), plain_session(server).await);
    let enqueue = "START TRANSACTION;
        UPDATE dlock_fence SET last = LAST_INSERT_ID(last + 1) WHERE bucket = CRC32('job') % 1024;
        INSERT INTO dlock_queue SELECT 'job', LAST_INSERT_ID(), REPEAT('x', 16), 'mutex', 1, 1,
            TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + 1500000, 'a slow one'";
    execute(&mut other, enqueue).await;
    let job = locks.mutex("job");
    let (tried, ()) = tokio::join!(job.try_lock(), async {
        sleep(Duration::from_millis(200)).await;
        execute(&mut other, "COMMIT").await;
    });
    assert!(
        tried.expect("the server replies").is_none(),
        "the claim overtook a claim that arrived before it"
    );
    let held =
        timeout(SOON, job.lock()).await.expect("the other claim expires").expect("the lock is granted");
    assert!(
        locks.inspect("job").await.expect("the server replies").is_some_and(|state| state.queue.is_empty())
    );
    held.release().await.expect("the lock is still held");
    assert_eq!(
        query(&mut other, "SELECT COUNT(*) FROM dlock_queue").await,
        0,
        "a claim is left in the queue"
    );
}

async fn an_attempt_that_a_paused_server_does_late_leaves_nothing(server: &Running) {
    let locks = connect(server, "?timeout=500ms").await.expect("the server runs");
    let job = locks.mutex("job");
    job.lock().await.expect("the lock is free").release().await.expect("the lock is still held");
    let machine = &server.servers()[0];
    machine.pause().await.expect("the server runs");
    let result = job.lock().wait(Duration::from_secs(1)).await;
    assert!(result.is_err(), "the lock is granted without a reply of the server");
    machine.resume().await.expect("the server is paused");
    locks.close().await;
    let mut other = plain_session(server).await;
    sleep(Duration::from_millis(300)).await;
    assert_eq!(query(&mut other, "SELECT COUNT(*) FROM dlock_queue").await, 0, "a late attempt was executed");
}

/// Connects with TLS, with the certificate's authority and without it.
async fn a_certificate_is_verified(brand: Brand) -> std::result::Result<(), Failed> {
    let server = or_failed(start(brand, Flavour::Tls).await)?;
    let ca = server.ca().expect("the server has a certificate");
    let locks = connect(&server, &format!("&ca={}", ca.display())).await.expect("the certificate is valid");
    locks
        .mutex("job")
        .lock()
        .await
        .expect("the lock is free")
        .release()
        .await
        .expect("the lock is still held");
    let error = connect(&server, "").await.expect_err("the authority is unknown");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    Ok(())
}

async fn a_binary_log_of_statements_is_refused_and_the_other_formats_work(
    brand: Brand,
) -> std::result::Result<(), Failed> {
    let server = or_failed(start(brand, Flavour::Logged).await)?;
    let mut other = plain_session(&server).await;
    let lock_and_release = async || {
        let locks = connect(&server, "").await?;
        locks.mutex("job").lock().await?.release().await.map(|()| locks)
    };
    for format in ["ROW", "MIXED"] {
        execute(&mut other, &format!("SET GLOBAL binlog_format = {format}")).await;
        lock_and_release().await.expect(format);
    }
    execute(&mut other, "SET GLOBAL binlog_format = STATEMENT").await;
    bad::is_refused(lock_and_release().await, "set it to ROW or MIXED");
    Ok(())
}

async fn a_later_version_is_refused(server: &Running) {
    let (locks, mut other) =
        (connect(server, "").await.expect("the server runs"), plain_session(server).await);
    execute(&mut other, "UPDATE dlock_store SET version = 2").await;
    let error = connect(server, "").await.expect_err("the tables have a later version");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    drop(locks);
}

async fn a_read_only_server_is_refused(server: &Running) {
    let mut other = plain_session(server).await;
    execute(&mut other, "SET GLOBAL read_only = 1").await;
    let error = connect(server, "").await.expect_err("the server is read-only");
    assert!(matches!(error, Error::Unwritable { .. }), "{error:?}");
    execute(&mut other, "SET GLOBAL read_only = 0").await;
    connect(server, "").await.expect("the server accepts writes again");
}
