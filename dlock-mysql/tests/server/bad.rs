//! Servers, users and databases that are not as they should be.

use std::time::Duration;

use dlock_conformance::stores::Running;
use dlock_core::{Error, Locks, Registry, Result};
use dlock_mysql::DRIVER;
use tokio::time::sleep;

use crate::{SOON, ask, connect, named::WAITING, named_locks, status, stranger, tell, until};

async fn connect_as(server: &Running, user: &str, database: &str) -> Result<Locks> {
    let address = server.servers()[0].address();
    Registry::new().with(DRIVER).connect(&format!("mysql://{user}@{address}/{database}")).await
}

fn is_refused(told: Result<Locks>, word: &str) {
    let error = told.expect_err("it cannot be used");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let mut told = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(one) = source {
        told.push_str(&format!(": {one}"));
        source = one.source();
    }
    assert!(told.contains(word), "it does not say what to do: {told}");
    assert!(!told.contains("s3cret"), "a password is shown: {told}");
}

pub(crate) async fn a_database_that_is_not_there_is_refused(server: &Running) {
    is_refused(connect_as(server, "dlock:s3cret%3A%2F", "nowhere").await, "no such database");
    is_refused(connect_as(server, "dlock:wrong", "dlock").await, "user and password");
    is_refused(connect_as(server, "nobody:", "dlock").await, "user and password");
}

pub(crate) async fn few_rights_are_enough_once_the_tables_are_there(server: &Running) {
    let mut other = stranger(server).await;
    for right in
        ["CREATE USER app@'127.0.0.1' IDENTIFIED BY 'x'", "GRANT SELECT ON dlock.* TO app@'127.0.0.1'"]
    {
        tell(&mut other, right).await;
    }
    is_refused(connect_as(server, "app:x", "dlock").await, "GRANT");
    drop(connect(server, "").await.expect("it may make the tables"));
    tell(&mut other, "REVOKE SELECT ON dlock.* FROM app@'127.0.0.1'").await;
    for table in ["store", "fence", "queue"] {
        let grant = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON dlock.dlock_{table} TO app@'127.0.0.1'");
        tell(&mut other, &grant).await;
    }
    let locks = connect_as(server, "app:x", "dlock").await.expect("these rights are enough");
    let held = locks.mutex("job").lock().await.expect("nobody holds it");
    assert!(locks.inspect("job").await.expect("it may look").is_some());
    held.release().await.expect("held until now");
}

pub(crate) async fn a_tiny_packet_is_refused(server: &Running) {
    let mut other = stranger(server).await;
    drop(connect(server, "").await.expect("it runs"));
    tell(&mut other, "SET GLOBAL max_allowed_packet = 1024").await;
    is_refused(connect(server, "").await, "max_allowed_packet");
    tell(&mut other, "SET GLOBAL max_allowed_packet = 16777216").await;
    drop(connect(server, "").await.expect("it takes calls again"));
}

pub(crate) async fn sessions_that_end_when_idle_lose_no_lock(server: &Running) {
    let mut other = stranger(server).await;
    tell(&mut other, "SET GLOBAL wait_timeout = 1").await;
    let locks = connect(server, "").await.expect("it runs");
    let held = locks.mutex("job").lock().ttl(Duration::from_secs(30)).await.expect("nobody holds it");
    // Nothing renews in this time, so the server ends all sessions.
    sleep(Duration::from_secs(3)).await;
    assert!(locks.mutex("job").try_lock().await.expect("another session asks").is_none(), "two hold it");
    held.release().await.expect("held until now");
    tell(&mut other, "SET GLOBAL wait_timeout = 28800").await;
}

pub(crate) async fn names_leave_no_rows(server: &Running) {
    for params in ["", "?mode=session"] {
        let locks = connect(server, params).await.expect("it runs");
        for number in 0..50 {
            let name = format!("{}\u{1f512} É {number}", "n".repeat(number * 4));
            locks.mutex(name).lock().await.expect("nobody holds it").release().await.expect("held until now");
        }
        locks.close().await;
    }
    let mut other = stranger(server).await;
    assert_eq!(ask(&mut other, "SELECT COUNT(*) FROM dlock_queue").await, 0, "a claim is left");
    assert_eq!(ask(&mut other, "SELECT COUNT(*) FROM dlock_fence").await, 1024, "the fence has grown");
    assert_eq!(named_locks(&mut other).await, 0, "a named lock is left");
}

pub(crate) async fn a_row_that_somebody_locks_costs_no_other_lock(server: &Running) {
    let (locks, mut other) = (connect(server, "").await.expect("it runs"), stranger(server).await);
    let (mut watcher, mut held) = (stranger(server).await, Vec::new());
    for number in 0..20 {
        let lock = locks.mutex(format!("job {number}"));
        held.push(lock.lock().ttl(Duration::from_secs(15)).await.expect("nobody holds it"));
    }
    let last = ask(&mut watcher, "SELECT MAX(expires) FROM dlock_queue").await;
    tell(&mut other, "START TRANSACTION; SELECT * FROM dlock_queue WHERE name = 'job 7' FOR UPDATE").await;
    let renewed = format!("SELECT COUNT(*) FROM dlock_queue WHERE expires > {last}");
    until(&mut watcher, &renewed, 19).await;
    let waits = status(&mut watcher, &["Innodb_row_lock_waits"]).await;
    assert_eq!(waits, 0, "a renewal waited for the locked row");
    tell(&mut other, "COMMIT").await;
    until(&mut watcher, &renewed, 20).await;
    for (number, held) in held.into_iter().enumerate() {
        assert!(!held.is_lost(), "job {number} is lost");
    }
}

/// Rows of dead clients are deleted with the releases of others.
pub(crate) async fn an_expired_row_that_somebody_locks_delays_no_release(server: &Running) {
    let (locks, mut other, mut watcher) =
        (connect(server, "").await.expect("it runs"), stranger(server).await, stranger(server).await);
    let expired = "INSERT INTO dlock_queue SELECT 'dead', 1, REPEAT('x', 16), 'mutex', 1, 1, 1, 'a dead one'";
    tell(&mut other, expired).await;
    // It locks the row, and no gap where others would be.
    tell(&mut other, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await;
    tell(&mut other, "START TRANSACTION; SELECT * FROM dlock_queue WHERE name = 'dead' FOR UPDATE").await;
    for _ in 0..20 {
        locks.mutex("job").lock().await.expect("nobody holds it").release().await.expect("held until now");
    }
    let waits = status(&mut watcher, &["Innodb_row_lock_waits"]).await;
    assert_eq!(waits, 0, "a release waited for the locked row");
    tell(&mut other, "COMMIT").await;
    for _ in 0..20 {
        locks.mutex("job").lock().await.expect("nobody holds it").release().await.expect("held until now");
    }
    assert_eq!(ask(&mut other, "SELECT COUNT(*) FROM dlock_queue").await, 0, "it stays for ever");
}

/// Who gives up while the tables are locked leaves a session that waits at the server, and these must not become many.
pub(crate) async fn locked_tables_collect_no_sessions(server: &Running) {
    const LEFT: &str = "SELECT COUNT(*) FROM information_schema.processlist
        WHERE state LIKE 'Waiting for table%' AND time >= 5";
    let (locks, mut other) = (connect(server, "").await.expect("it runs"), stranger(server).await);
    tell(&mut other, "LOCK TABLES dlock_queue WRITE, dlock_fence WRITE, dlock_store WRITE").await;
    let lockers = (0..8).map(|number| {
        let lock = locks.mutex(format!("job {number}"));
        tokio::spawn(async move {
            loop {
                match lock.lock().ttl(Duration::from_secs(60)).await {
                    Err(error) => assert!(error.is_transient(), "{error:?}"),
                    Ok(held) => return held.release().await.expect("held until now"),
                }
            }
        })
    });
    let lockers: Vec<_> = lockers.collect();
    sleep(SOON * 2).await;
    // A statement waits for a second, and no call for more than three.
    let left = ask(&mut other, LEFT).await;
    tell(&mut other, "UNLOCK TABLES").await;
    for locker in lockers {
        locker.await.expect("no panic");
    }
    assert_eq!(left, 0, "sessions wait whose callers have given up");
}

pub(crate) async fn a_call_that_fails_rings_no_doorbell(server: &Running) {
    let mut other = stranger(server).await;
    let ttl = Duration::from_secs(60);
    let first = connect(server, "").await.expect("it runs");
    let held = first.mutex("job").lock().ttl(ttl).await.expect("nobody holds it");
    let mut waiting = Vec::new();
    for behind in 1..=2 {
        let locks = connect(server, "").await.expect("it runs");
        waiting.push(tokio::spawn(async move {
            let held = locks.mutex("job").lock().ttl(ttl).await;
            held.expect("its turn comes").release().await.expect("held until now");
        }));
        until(&mut other, WAITING, behind).await;
    }
    tell(&mut other, "LOCK TABLES dlock_queue WRITE").await;
    // Those who wait look every two seconds, in vain.
    sleep(SOON).await;
    let listening = ask(&mut other, WAITING).await;
    tell(&mut other, "UNLOCK TABLES").await;
    assert_eq!(listening, 2, "one was rung, and has to poll from now on");
    held.release().await.expect("held until now");
    for waiting in waiting {
        waiting.await.expect("no panic");
    }
}

pub(crate) async fn a_hold_that_is_taken_back_late_has_its_own_ttl(server: &Running) {
    let (locks, mut other) = (connect(server, "").await.expect("it runs"), stranger(server).await);
    let job = locks.mutex("job");
    let held = job.lock().await.expect("nobody holds it");
    let ticket = held.detach(Duration::from_secs(24 * 3600)).await.expect("held until now");
    tell(&mut other, "LOCK TABLES dlock_queue WRITE").await;
    let resumed = tokio::spawn({
        let locks = locks.clone();
        async move { locks.resume(&ticket).await }
    });
    // The first calls are in vain.
    sleep(SOON / 2).await;
    tell(&mut other, "UNLOCK TABLES").await;
    let held = resumed.await.expect("no panic").expect("it was kept");
    let left = "SELECT (MAX(expires) - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) DIV 1000000 FROM dlock_queue";
    let left = ask(&mut other, left).await;
    assert!(left < 3600, "if its client dies now, it stays for {left} s");
    held.release().await.expect("held until now");
}

pub(crate) async fn a_server_that_commits_nothing_by_itself_is_told_to(server: &Running) {
    let mut other = stranger(server).await;
    // A commit would end the session.
    tell(&mut other, "SET GLOBAL autocommit = 0, GLOBAL completion_type = 'RELEASE'").await;
    for mode in ["", "?mode=session"] {
        let locks = connect(server, mode).await.expect("it runs");
        let held = locks.mutex("job").lock().await.expect("nobody holds it");
        let open = ask(&mut other, "SELECT COUNT(*) FROM information_schema.innodb_trx").await;
        assert_eq!(open, 0, "{mode}: a transaction stays open, and keeps others from writing");
        held.release().await.expect("held until now");
        let sessions = status(&mut other, &["Connections"]).await;
        for _ in 0..2 {
            let held = locks.mutex("job").lock().await.expect("it was released");
            held.release().await.expect("held until now");
        }
        assert_eq!(status(&mut other, &["Connections"]).await, sessions, "{mode}: a session has ended");
        let next = connect(server, mode).await.expect("it runs");
        drop(next.mutex("job").try_lock().await.expect("it answers").expect("it was released"));
    }
}
