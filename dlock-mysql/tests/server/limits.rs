//! Limits of the server on connections and on the size of a call.

use std::time::Duration;

use dlock_core::{Error, Locks, LostReason, Registry, Result};
use dlock_mysql::DRIVER;
use dlock_testbed::servers::Running;
use futures_util::future::{join_all, try_join_all};
use sqlx::{
    ConnectOptions as _,
    mysql::{MySqlConnectOptions, MySqlConnection},
};
use tokio::time::{Instant, sleep, timeout};

use crate::{SOON, bad::is_refused, connect, end_sessions, execute, plain_session, until};

/// Creates a user who may open this number of sessions.
async fn create_user(other: &mut MySqlConnection, sessions: u32) {
    let user = format!("CREATE USER few@'127.0.0.1' IDENTIFIED BY 'x' WITH MAX_USER_CONNECTIONS {sessions}");
    execute(other, &user).await;
    execute(other, "GRANT ALL ON dlock.* TO few@'127.0.0.1'").await;
}

async fn connect_as_user(server: &Running, params: &str) -> Result<Locks> {
    let address = server.servers()[0].address();
    Registry::new().with(DRIVER).connect(&format!("mysql://few:x@{address}/dlock{params}")).await
}

/// Asserts that no connection is available, and that the error names the settings.
fn lacks_connections(error: &Error) {
    let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(
        source.contains("max_connections") && source.contains("max_user_connections"),
        "the error does not name the settings: {source}"
    );
}

pub(crate) async fn an_error_about_too_many_connections_names_the_settings(server: &Running) {
    create_user(&mut plain_session(server).await, 2).await;
    let port = server.servers()[0].address().port();
    let options = MySqlConnectOptions::new().host("127.0.0.1").port(port).username("few").password("x");
    let sessions = try_join_all([options.connect(), options.connect()]).await.expect("two are allowed");
    for params in ["", "?mode=session"] {
        lacks_connections(&connect_as_user(server, params).await.expect_err("no session is free"));
    }
    drop(sessions);
}

/// In session mode each hold has a connection.
pub(crate) async fn a_named_lock_without_a_connection_is_refused_and_costs_no_hold(server: &Running) {
    const SESSIONS: u32 = 8;
    let ttl = Duration::from_secs(5);
    create_user(&mut plain_session(server).await, SESSIONS).await;
    let locks = connect_as_user(server, "?mode=session").await.expect("sessions are free");
    let mut held = Vec::new();
    let refused = loop {
        match locks.mutex(format!("job {}", held.len())).lock().ttl(ttl).await {
            Ok(guard) => held.push(guard),
            Err(error) => break error,
        }
        assert!(held.len() < SESSIONS as usize, "a hold has no connection of its own");
    };
    lacks_connections(&refused);
    assert!(!held.is_empty(), "the shared connections have used up the limit");
    sleep(ttl * 2).await;
    let lost = held.iter().filter(|guard| guard.is_lost()).count();
    assert_eq!(lost, 0, "of {} holds are lost", held.len());
    held.remove(0).release().await.expect("the lock is still held");
    let next = timeout(SOON, locks.mutex("next").lock().ttl(ttl).into_future()).await;
    held.push(next.expect("a connection is idle").expect("a connection is idle"));
    for released in join_all(held.into_iter().map(|guard| guard.release())).await {
        released.expect("the lock is still held");
    }
}

pub(crate) async fn a_packet_of_64_kibibytes_is_enough(server: &Running) {
    const LOCKS: usize = 600;
    let ttl = Duration::from_secs(10);
    let mut other = plain_session(server).await;
    execute(&mut other, "SET GLOBAL max_allowed_packet = 65535").await;
    is_refused(connect(server, "").await, "max_allowed_packet");
    execute(&mut other, "SET GLOBAL max_allowed_packet = 65536").await;
    let [holder, waiter] = [connect(server, "").await, connect(server, "").await]
        .map(|locks| locks.expect("the server accepts calls of 64 KiB"));
    // A quote has two bytes in a statement.
    let (odd, label) = ("'".repeat(1024), "'".repeat(200));
    let names: Vec<_> = (0..LOCKS).map(|number| format!("{number:'>60}")).collect();
    let lock = |name: &String| holder.mutex(name.as_str()).lock().ttl(ttl).into_future();
    let mut held = try_join_all(names.iter().map(lock)).await.expect("the locks are free");
    held.push(holder.mutex(odd.as_str()).lock().label(label).ttl(ttl).await.expect("the lock is free"));
    let wait = |name: &String| tokio::spawn(waiter.mutex(name.as_str()).lock().ttl(ttl).into_future());
    let waiting: Vec<_> = names.iter().map(wait).collect();
    let claims = i64::try_from(LOCKS * 2 + 1).expect("the number is small");
    until(&mut other, "SELECT COUNT(*) FROM dlock_queue", claims).await;
    // The calls that follow are sent on new sessions. Many renewals share a call.
    end_sessions(&mut other).await;
    sleep(ttl * 3 / 2).await;
    let lost = held.iter().filter(|guard| guard.is_lost()).count();
    assert_eq!(lost, 0, "of {} holds are lost", held.len());
    for released in join_all(held.into_iter().map(|guard| guard.release())).await {
        released.expect("the lock is still held");
    }
    for next in waiting {
        let next = timeout(SOON * 4, next).await.expect("the waiter is woken").expect("no panic");
        next.expect("the lock is granted").release().await.expect("the lock is still held");
    }
}

const CLAIMS: &str = "SELECT COUNT(*) FROM dlock_queue";

/// Waiters that check every two seconds whether the claim ahead still exists would take longer.
pub(crate) async fn waiters_without_a_connection_of_their_own_poll(server: &Running) {
    const LOCKS: usize = 16;
    let holder = connect(server, "").await.expect("the server runs");
    let waiter = connect(server, "?waits=1").await.expect("the server runs");
    let names: Vec<_> = (0..LOCKS).map(|number| format!("job {number}")).collect();
    let held = try_join_all(names.iter().map(|name| holder.mutex(name).lock().into_future()));
    let held = held.await.expect("the locks are free");
    let wait = |name: &String| tokio::spawn(waiter.mutex(name).lock().into_future());
    let waiting: Vec<_> = names.iter().map(wait).collect();
    until(&mut plain_session(server).await, CLAIMS, 2 * LOCKS as i64).await;
    let hand_offs = async {
        for (held, next) in held.into_iter().zip(waiting) {
            held.release().await.expect("the lock is still held");
            next.await.expect("no panic").expect("the lock is granted").release().await.expect("held");
        }
    };
    timeout(Duration::from_millis(700) * LOCKS as u32, hand_offs).await.expect("the waiters poll");
}

pub(crate) async fn a_server_without_free_connections_costs_no_hold_and_no_waiter(server: &Running) {
    let ttl = Duration::from_secs(8);
    let mut other = plain_session(server).await;
    let (holder, waiter) = (connect(server, "").await, connect(server, "").await);
    let (holder, waiter) = (holder.expect("the server runs"), waiter.expect("the server runs"));
    let held = holder.mutex("job").lock().ttl(ttl).await.expect("the lock is free");
    // The client of the waiter has a connection for its calls, and none that waits for a doorbell.
    drop(waiter.mutex("other").lock().await.expect("the lock is free"));
    execute(&mut other, "CREATE USER many@'127.0.0.1' IDENTIFIED BY 'x'").await;
    execute(&mut other, "SET GLOBAL max_connections = 20").await;
    let port = server.servers()[0].address().port();
    let options = MySqlConnectOptions::new().host("127.0.0.1").port(port).username("many").password("x");
    let mut sessions = Vec::new();
    while let Ok(session) = options.connect().await {
        sessions.push(session);
        assert!(sessions.len() < 40, "the server accepts more connections than it allows");
    }
    let next = tokio::spawn(waiter.mutex("job").lock().ttl(ttl).into_future());
    until(&mut other, "SELECT COUNT(*) FROM dlock_queue WHERE name = 'job'", 2).await;
    sleep(ttl * 3).await;
    assert!(!held.is_lost(), "the hold is lost");
    assert!(!next.is_finished(), "the waiter has ended");
    held.release().await.expect("the lock is still held");
    let next = timeout(SOON, next).await.expect("the waiter polls").expect("no panic");
    next.expect("the lock is granted").release().await.expect("the lock is still held");
    drop(sessions);
}

pub(crate) async fn locked_tables_grant_no_lock_and_a_hold_ends_with_its_ttl(server: &Running) {
    let ttl = Duration::from_secs(4);
    let mut other = plain_session(server).await;
    let (holder, waiter) = (connect(server, "").await, connect(server, "").await);
    let (holder, waiter) = (holder.expect("the server runs"), waiter.expect("the server runs"));
    let held = holder.mutex("job").lock().ttl(ttl).await.expect("the lock is free");
    let next = tokio::spawn(waiter.mutex("job").lock().ttl(ttl * 10).into_future());
    until(&mut other, CLAIMS, 2).await;
    execute(&mut other, "FLUSH TABLES WITH READ LOCK").await;
    let reason = timeout(ttl * 2, held.lost()).await.expect("the loss is reported");
    assert_eq!(reason, LostReason::Expired);
    sleep(ttl).await;
    assert!(!next.is_finished(), "a lock is granted, or a waiter fails, while the tables are locked");
    execute(&mut other, "UNLOCK TABLES").await;
    let next = timeout(SOON * 2, next).await.expect("the waiter continues").expect("no panic");
    next.expect("the lock is granted").release().await.expect("the lock is still held");
}

pub(crate) async fn the_longest_prefix_is_that_of_a_store(server: &Running) {
    let prefixes = ["a", "b"].map(|end| format!("{}{end}", "x".repeat(47)));
    for mode in ["queue", "session"] {
        let params = prefixes.each_ref().map(|prefix| format!("?mode={mode}&prefix={prefix}"));
        let holder = connect(server, &params[0]).await.expect("the tables can be created");
        let waiter = connect(server, &params[0]).await.expect("the tables can be used");
        let held = holder.mutex("job").lock().await.expect("the lock is free");
        assert!(waiter.mutex("job").try_lock().await.expect("the store replies").is_none(), "two hold");
        let other = connect(server, &params[1]).await.expect("the tables can be created");
        let tried = other.mutex("job").try_lock().await.expect("the store replies");
        // Named locks belong to the server.
        assert_eq!(tried.is_some(), mode == "queue", "the tables of two prefixes are the same");
        let next = tokio::spawn(waiter.mutex("job").lock().into_future());
        held.release().await.expect("the lock is still held");
        let next = timeout(SOON, next).await.expect("the waiter is woken").expect("no panic");
        next.expect("the lock is granted").release().await.expect("the lock is still held");
    }
}

pub(crate) async fn a_client_with_one_connection_keeps_its_holds_beside_many_attempts(server: &Running) {
    let ttl = Duration::from_secs(8);
    let locks = connect(server, "?connections=1").await.expect("the server runs");
    let held = locks.mutex("precious").lock().ttl(ttl).await.expect("the lock is free");
    let began = Instant::now();
    let contend = |number: usize| {
        let lock = locks.mutex(format!("job {}", number % 4));
        async move {
            while began.elapsed() < ttl * 3 {
                let granted = lock.lock().ttl(ttl).await.expect("one connection is enough");
                granted.release().await.expect("the lock is still held");
            }
        }
    };
    let finished = timeout(ttl * 3 + SOON * 4, join_all((0..64).map(contend))).await;
    finished.expect("each contender gets the lock");
    assert!(!held.is_lost(), "the hold is lost");
    held.release().await.expect("the lock is still held");
}
