//! Tests on misconfigured servers, users and databases, and with locked rows and tables.

use std::time::Duration;

use dlock_core::{Error, Locks, LostReason, Registry, Result};
use dlock_mysql::DRIVER;
use dlock_testbed::servers::Running;
use sqlx::mysql::MySqlConnection;
use tokio::time::{sleep, timeout};

use crate::{SOON, connect, execute, named::WAITING, named_locks, plain_session, query, status, until};

async fn connect_as(server: &Running, user: &str, database: &str) -> Result<Locks> {
    let address = server.servers()[0].address();
    Registry::new().with(DRIVER).connect(&format!("mysql://{user}@{address}/{database}")).await
}

/// Asserts that a connection is refused, with an error that contains `word`.
pub(crate) fn is_refused(result: Result<Locks>, word: &str) {
    let error = result.expect_err("the store cannot be used");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let mut message = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        message.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    assert!(message.contains(word), "the error does not say how to fix the problem: {message}");
    assert!(!message.contains("s3cret"), "the error shows a password: {message}");
}

pub(crate) async fn a_database_that_is_not_there_is_refused(server: &Running) {
    is_refused(connect_as(server, "dlock:s3cret%3A%2F", "nowhere").await, "no such database");
    is_refused(connect_as(server, "dlock:wrong", "dlock").await, "user and password");
    is_refused(connect_as(server, "nobody:", "dlock").await, "user and password");
}

pub(crate) async fn few_rights_are_enough_once_the_tables_are_there(server: &Running) {
    let mut other = plain_session(server).await;
    for right in
        ["CREATE USER app@'127.0.0.1' IDENTIFIED BY 'x'", "GRANT SELECT ON dlock.* TO app@'127.0.0.1'"]
    {
        execute(&mut other, right).await;
    }
    is_refused(connect_as(server, "app:x", "dlock").await, "GRANT");
    drop(connect(server, "").await.expect("the user may create the tables"));
    execute(&mut other, "REVOKE SELECT ON dlock.* FROM app@'127.0.0.1'").await;
    for table in ["store", "fence", "queue"] {
        let grant = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON dlock.dlock_{table} TO app@'127.0.0.1'");
        execute(&mut other, &grant).await;
    }
    let locks = connect_as(server, "app:x", "dlock").await.expect("these rights are enough");
    let held = locks.mutex("job").lock().await.expect("the lock is free");
    assert!(locks.inspect("job").await.expect("the user may read the queue").is_some());
    held.release().await.expect("the lock is still held");
}

pub(crate) async fn a_tiny_packet_is_refused(server: &Running) {
    let mut other = plain_session(server).await;
    drop(connect(server, "").await.expect("the server runs"));
    execute(&mut other, "SET GLOBAL max_allowed_packet = 1024").await;
    is_refused(connect(server, "").await, "max_allowed_packet");
    execute(&mut other, "SET GLOBAL max_allowed_packet = 16777216").await;
    drop(connect(server, "").await.expect("the server accepts calls again"));
}

pub(crate) async fn sessions_that_end_when_idle_lose_no_lock(server: &Running) {
    let mut other = plain_session(server).await;
    execute(&mut other, "SET GLOBAL wait_timeout = 1").await;
    let locks = connect(server, "").await.expect("the server runs");
    let held = locks.mutex("job").lock().ttl(Duration::from_secs(30)).await.expect("the lock is free");
    // No renewal is due in this time, so the server ends all sessions.
    sleep(Duration::from_secs(3)).await;
    assert!(
        locks.mutex("job").try_lock().await.expect("the client opens another session").is_none(),
        "two clients hold the lock"
    );
    held.release().await.expect("the lock is still held");
    execute(&mut other, "SET GLOBAL wait_timeout = 28800").await;
}

pub(crate) async fn names_leave_no_rows(server: &Running) {
    for params in ["", "?mode=session"] {
        let locks = connect(server, params).await.expect("the server runs");
        for number in 0..50 {
            let name = format!("{}\u{1f512} É {number}", "n".repeat(number * 4));
            locks
                .mutex(name)
                .lock()
                .await
                .expect("the lock is free")
                .release()
                .await
                .expect("the lock is still held");
        }
        locks.close().await;
    }
    let mut other = plain_session(server).await;
    assert_eq!(
        query(&mut other, "SELECT COUNT(*) FROM dlock_queue").await,
        0,
        "a claim is left in the queue"
    );
    assert_eq!(
        query(&mut other, "SELECT COUNT(*) FROM dlock_fence").await,
        1024,
        "rows were added to the fence"
    );
    assert_eq!(named_locks(&mut other).await, 0, "a session still owns a named lock");
}

async fn expiry(session: &mut MySqlConnection, name: &str) -> i64 {
    query(session, &format!("SELECT expires FROM dlock_queue WHERE name = '{name}'")).await
}

/// Waits until the claim of this name is renewed.
async fn until_renewed(session: &mut MySqlConnection, name: &str) {
    let last = expiry(session, name).await;
    until(session, &format!("SELECT expires > {last} FROM dlock_queue WHERE name = '{name}'"), 1).await;
}

/// A client renews its holds with few calls. Such a call must leave out a hold whose guard was
/// released, also while the release fails: its keeper gives up after one ttl.
pub(crate) async fn a_hold_whose_release_fails_is_not_renewed(server: &Running) {
    const TTL: Duration = Duration::from_secs(6);
    let mut other = plain_session(server).await;
    connect(server, "").await.expect("the client creates the tables").close().await;
    let create = "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'x';
        GRANT SELECT, UPDATE ON dlock.* TO app@'127.0.0.1';
        GRANT INSERT, DELETE ON dlock.dlock_queue TO app@'127.0.0.1'";
    execute(&mut other, create).await;
    let url = format!("mysql://app:x@{}/dlock", server.servers()[0].address());
    let locks = Registry::new().with(DRIVER).connect(&url).await.expect("the rights suffice");
    let released = locks.mutex("released").lock().ttl(TTL).await.expect("the lock is free");
    let kept = locks.mutex("kept").lock().ttl(TTL).await.expect("the lock is free");
    until_renewed(&mut other, "released").await;
    execute(&mut other, "REVOKE DELETE ON dlock.dlock_queue FROM app@'127.0.0.1'").await;
    released.release().await.expect_err("the client may not delete the claim");
    // A call that was sent before the release may still renew both.
    until_renewed(&mut other, "kept").await;
    let last = expiry(&mut other, "released").await;
    until_renewed(&mut other, "kept").await;
    assert_eq!(expiry(&mut other, "released").await, last, "a call of the other hold has renewed it");
    kept.release().await.expect_err("the client may not delete the claim");
}

pub(crate) async fn a_locked_row_costs_no_other_lock(server: &Running) {
    let (locks, mut other) =
        (connect(server, "").await.expect("the server runs"), plain_session(server).await);
    let (mut watcher, mut held) = (plain_session(server).await, Vec::new());
    for number in 0..20 {
        let lock = locks.mutex(format!("job {number}"));
        held.push(lock.lock().ttl(Duration::from_secs(15)).await.expect("the lock is free"));
    }
    let last = query(&mut watcher, "SELECT MAX(expires) FROM dlock_queue").await;
    execute(&mut other, "START TRANSACTION; SELECT * FROM dlock_queue WHERE name = 'job 7' FOR UPDATE").await;
    let renewed = format!("SELECT COUNT(*) FROM dlock_queue WHERE expires > {last}");
    until(&mut watcher, &renewed, 19).await;
    let waits = status(&mut watcher, &["Innodb_row_lock_waits"]).await;
    assert_eq!(waits, 0, "a renewal waited for the locked row");
    execute(&mut other, "COMMIT").await;
    until(&mut watcher, &renewed, 20).await;
    for (number, held) in held.into_iter().enumerate() {
        assert!(!held.is_lost(), "job {number} is lost");
    }
}

/// The reason why this store has no check-in.
pub(crate) async fn a_transaction_that_locks_the_row_of_a_claim_costs_the_hold(server: &Running) {
    const TTL: Duration = Duration::from_secs(3);
    let locks = connect(server, "").await.expect("the server runs");
    let beside = locks.mutex("beside").lock().ttl(TTL).await.expect("the lock is free");
    let mut holds = Vec::new();
    for clause in ["LOCK IN SHARE MODE", "FOR UPDATE"] {
        let held = locks.mutex(clause).lock().ttl(TTL).await.expect("the lock is free");
        let mut other = plain_session(server).await;
        // This isolation level locks the row, but no gap for rows of other claims.
        execute(&mut other, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await;
        let select = format!("SELECT * FROM dlock_queue WHERE name = '{clause}' {clause}");
        execute(&mut other, &format!("START TRANSACTION; {select}")).await;
        holds.push((clause, held, other));
    }
    for (clause, held, _transaction) in &holds {
        let lost = timeout(TTL * 4, held.lost()).await;
        let reason = lost.unwrap_or_else(|_| panic!("{clause}: the hold was renewed"));
        assert_eq!(reason, LostReason::Expired, "{clause}");
    }
    beside.release().await.expect("the lock is still held");
}

/// Each try of a crowd would otherwise lock the same row and commit, and the later ones would fail.
pub(crate) async fn a_refused_try_waits_for_no_locked_row(server: &Running) {
    let locks = connect(server, "").await.expect("the server runs");
    let mut other = plain_session(server).await;
    let held = locks.mutex("job").lock().await.expect("the lock is free");
    let reader = locks.rwlock("book").read().lock().await.expect("the lock is free");
    execute(&mut other, "START TRANSACTION; SELECT * FROM dlock_fence FOR UPDATE").await;
    execute(&mut other, "SELECT * FROM dlock_queue FOR UPDATE").await;
    for _ in 0..3 {
        assert!(locks.mutex("job").try_lock().await.expect("a reply").is_none());
        assert!(locks.rwlock("book").write().try_lock().await.expect("a reply").is_none());
    }
    execute(&mut other, "COMMIT").await;
    held.release().await.expect("held");
    reader.release().await.expect("held");
    assert!(locks.mutex("job").try_lock().await.expect("a reply").is_some(), "the lock is free");
}

/// The server writes a line to its log for each connection that ends without a message.
pub(crate) async fn a_client_that_closes_aborts_no_connection(server: &Running) {
    const ABORTED: &[&str] = &["Aborted_clients"];
    const SESSIONS: &str = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'dlock'";
    let mut other = plain_session(server).await;
    let before = status(&mut other, ABORTED).await;
    for params in ["", "?mode=session"] {
        let (locks, waiter) = (
            connect(server, params).await.expect("the server runs"),
            connect(server, params).await.expect("the server runs"),
        );
        let held = locks.mutex("job").lock().await.expect("the lock is free");
        let (next, released) = tokio::join!(waiter.mutex("job").lock(), async {
            sleep(SOON / 20).await;
            held.release().await
        });
        released.expect("held");
        next.expect("the lock is free").release().await.expect("held");
        locks.close().await;
        waiter.close().await;
        until(&mut other, SESSIONS, 1).await;
        assert_eq!(status(&mut other, ABORTED).await - before, 0, "with `{params}`");
    }
}

/// A release also deletes expired rows of dead clients.
pub(crate) async fn an_expired_row_that_is_locked_delays_no_release(server: &Running) {
    let (locks, mut other, mut watcher) = (
        connect(server, "").await.expect("the server runs"),
        plain_session(server).await,
        plain_session(server).await,
    );
    let pair = async || {
        locks.mutex("job").lock().await.expect("the lock is free").release().await.expect("held");
    };
    let expired =
        "INSERT INTO dlock_queue SELECT 'dead', 1, REPEAT('x', 16), 'mutex', 1, 1, 1, 'a dead client'";
    execute(&mut other, expired).await;
    // This isolation level locks the row, but no gap for rows of other claims.
    execute(&mut other, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await;
    execute(&mut other, "START TRANSACTION; SELECT * FROM dlock_queue WHERE name = 'dead' FOR UPDATE").await;
    for _ in 0..20 {
        pair().await;
    }
    let waits = status(&mut watcher, &["Innodb_row_lock_waits"]).await;
    assert_eq!(waits, 0, "a release waited for the locked row");
    execute(&mut other, "COMMIT").await;
    // A client deletes expired rows of other locks at most once a second.
    let deleted = async {
        while query(&mut other, "SELECT COUNT(*) FROM dlock_queue").await > 0 {
            pair().await;
        }
    };
    timeout(SOON, deleted).await.expect("the expired row is never deleted");
}

/// A caller that gives up while the tables are locked leaves a session that waits at the server.
/// The number of these sessions must stay small.
pub(crate) async fn locked_tables_collect_no_sessions(server: &Running) {
    const WAITING_FOR_TABLES: &str = "SELECT COUNT(*) FROM information_schema.processlist
        WHERE state LIKE 'Waiting for table%' AND time >= 5";
    let (locks, mut other) =
        (connect(server, "").await.expect("the server runs"), plain_session(server).await);
    execute(&mut other, "LOCK TABLES dlock_queue WRITE, dlock_fence WRITE, dlock_store WRITE").await;
    let lockers = (0..8).map(|number| {
        let lock = locks.mutex(format!("job {number}"));
        tokio::spawn(async move {
            loop {
                match lock.lock().ttl(Duration::from_secs(60)).await {
                    Err(error) => assert!(error.is_transient(), "{error:?}"),
                    Ok(held) => return held.release().await.expect("the lock is still held"),
                }
            }
        })
    });
    let lockers: Vec<_> = lockers.collect();
    sleep(SOON * 2).await;
    // A statement waits for one second, and a call for at most three.
    let left = query(&mut other, WAITING_FOR_TABLES).await;
    execute(&mut other, "UNLOCK TABLES").await;
    for locker in lockers {
        locker.await.expect("the task does not panic");
    }
    assert_eq!(left, 0, "sessions of callers that have given up are still waiting");
}

pub(crate) async fn a_call_that_fails_rings_no_doorbell(server: &Running) {
    let mut other = plain_session(server).await;
    let ttl = Duration::from_secs(60);
    let first = connect(server, "").await.expect("the server runs");
    let held = first.mutex("job").lock().ttl(ttl).await.expect("the lock is free");
    let mut waiting = Vec::new();
    for behind in 1..=2 {
        let locks = connect(server, "").await.expect("the server runs");
        waiting.push(tokio::spawn(async move {
            let held = locks.mutex("job").lock().ttl(ttl).await;
            held.expect("the waiter gets the lock").release().await.expect("the lock is still held");
        }));
        until(&mut other, WAITING, behind).await;
    }
    execute(&mut other, "LOCK TABLES dlock_queue WRITE").await;
    // The waiters poll every two seconds, and find no change.
    sleep(SOON).await;
    let listening = query(&mut other, WAITING).await;
    execute(&mut other, "UNLOCK TABLES").await;
    assert_eq!(listening, 2, "a doorbell was rung, and its waiter has to poll from now on");
    held.release().await.expect("the lock is still held");
    for waiting in waiting {
        waiting.await.expect("the task does not panic");
    }
}

pub(crate) async fn a_hold_that_is_taken_back_late_has_its_own_ttl(server: &Running) {
    let (locks, mut other) =
        (connect(server, "").await.expect("the server runs"), plain_session(server).await);
    let job = locks.mutex("job");
    let held = job.lock().await.expect("the lock is free");
    let ticket = held.detach(Duration::from_secs(24 * 3600)).await.expect("the lock is still held");
    execute(&mut other, "LOCK TABLES dlock_queue WRITE").await;
    let resumed = tokio::spawn({
        let locks = locks.clone();
        async move { locks.resume(&ticket).await }
    });
    // The first calls fail.
    sleep(SOON / 2).await;
    execute(&mut other, "UNLOCK TABLES").await;
    let held = resumed.await.expect("the task does not panic").expect("the store kept the detached hold");
    let left = "SELECT (MAX(expires) - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) DIV 1000000 FROM dlock_queue";
    let left = query(&mut other, left).await;
    assert!(left < 3600, "if the client dies now, the hold stays for {left} s");
    held.release().await.expect("the lock is still held");
}

pub(crate) async fn a_server_without_autocommit_holds_no_transaction_open(server: &Running) {
    let mut other = plain_session(server).await;
    // With RELEASE a commit would end the session.
    execute(&mut other, "SET GLOBAL autocommit = 0, GLOBAL completion_type = 'RELEASE'").await;
    for mode in ["", "?mode=session"] {
        let locks = connect(server, mode).await.expect("the server runs");
        let held = locks.mutex("job").lock().await.expect("the lock is free");
        let open = query(&mut other, "SELECT COUNT(*) FROM information_schema.innodb_trx").await;
        assert_eq!(open, 0, "{mode}: a transaction stays open, and keeps other clients from writing");
        held.release().await.expect("the lock is still held");
        let sessions = status(&mut other, &["Connections"]).await;
        for _ in 0..2 {
            let held = locks.mutex("job").lock().await.expect("the lock was released");
            held.release().await.expect("the lock is still held");
        }
        assert_eq!(status(&mut other, &["Connections"]).await, sessions, "{mode}: a session has ended");
        let next = connect(server, mode).await.expect("the server runs");
        drop(next.mutex("job").try_lock().await.expect("the store replies").expect("the lock was released"));
    }
}
